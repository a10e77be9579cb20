"""Which family a template speaks. The templates here have the shape of real ones, and only as much of them as tells."""

from __future__ import annotations

import pytest

from gateway.tools.families import DEFAULT, FAMILIES, HERMES, detect, named

# ruff: noqa: RUF001 - the marks of DeepSeek models have full-width bars

LOOP = "{% if tools %}{{ tools | tojson }}{% endif %}{% for call in message.tool_calls %}"
TEMPLATES = {
    "hermes": """<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + call.arguments|tojson + '}\\n</tool_call>""",
    "exaone": """<tool_call>{"name": "{{ call.name }}", "arguments": {{ call.arguments }}}</tool_call>""",
    "smollm_2": """<tool_call>[{"name": "func_name1", "arguments": {"argument1": "value1"}}]</tool_call>""",
    "granite_3": """<|tool_call|>[{"name": "..."}]""",
    "mistral_list": """{{ "[TOOL_CALLS] [" }}{{ call.function|tojson }}{{ "]" + eos_token }}""",
    "mistral": """{{ "[TOOL_CALLS]" + call.name + "[ARGS]" + call.arguments }}""",
    "llama": """Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}""",
    "llama_4": """[func_name1(params_name1=params_value1, params_name2=params_value2), func_name2(params)]""",
    "qwen_3_coder": """{{ '<tool_call>\\n<function=' + call.name + '>\\n' }}<parameter=""",
    "mimo": """<tool_call><function={{ call.name }}><parameter=""",
    "glm_4_5": """{{ '\\n<tool_call>' + call.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>""",
    "glm_4_7": """{{ '<tool_call>' + call.name }}<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>""",
    "minimax": """{%- set begin = '<minimax:tool_call>' %}<invoke name="{{ call.name }}">""",
    "minimax_m3": """{%- set ns = ']<]minimax[>[' %}{{ ns + '<tool_call>' }}""",
    "kimi": """<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>""",
    "kimi_k3": """{{ '<|open|>' + tag }}{{ '<|sep|>' }}""",
    "deepseek_r1": """<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.name }}\n```json\n""",
    "deepseek_v3_1": """<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>""",
    "deepseek_v3_2": """{% set dsml = "｜DSML｜" %}<{{ dsml }}function_calls>""",
    "deepseek_v4": """{% set dsml = "｜DSML｜" %}<{{ dsml }}tool_calls>""",
    "deepseek_v4_1": """{% set dsml = "｜DSML｜" %}<{{ dsml }} calls>""",
    "harmony": """{{ '<|start|>assistant to=' }}{{ 'functions.' + call.name + '<|channel|>commentary json<|message|>' }}""",
    "gemma_4": """<|tool_call>call:{{ call.name }}{...}<tool_call|>""",
    "cohere": """<cofl:tool_calls><cofl:tool_call id="0" name="{{ call.name }}">""",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_tell_their_family(name: str) -> None:
    assert detect(LOOP + TEMPLATES[name] + "{% endfor %}") is FAMILIES[name]


def test_template_without_tools() -> None:
    assert (
        detect("{% for message in messages %}<|im_start|>{{ message.content }}<tool_call>{% endfor %}")
        is None
    )
    assert detect(LOOP + "{{ call }}") is None


def test_names_and_aliases() -> None:
    assert named("hermes") is HERMES is DEFAULT
    assert named("Qwen2.5") is None
    assert named("qwen-2.5") is named("qwen_3")
    assert named("GPT-OSS") is FAMILIES["harmony"]
    assert named("nobody") is None

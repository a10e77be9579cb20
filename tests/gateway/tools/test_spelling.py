"""Calls in prompts look as the model is to write them: its parser reads them."""

from __future__ import annotations

import json

import pytest

from gateway.chat_template import ChatTemplate
from gateway.tokenizer import Tokenizer
from gateway.tools.arguments.style import ToolShape
from gateway.tools.calls import calls_of
from gateway.tools.families import FAMILIES
from gateway.tools.family import Family
from gateway.tools.parser import ReplyParser
from gateway.tools.spelling import call_writer, can_spell, example_call

SPELLED = [family for family in FAMILIES.values() if can_spell(family)]


@pytest.mark.parametrize("family", SPELLED, ids=lambda family: family.name)
def test_the_parser_reads_what_is_written(family: Family) -> None:
    calls = [("add", {"a": 1, "b": 'é"<'}), ("stop", {})]
    if not family.several:
        calls = calls[:1]
    parser = ReplyParser(family, [ToolShape("add"), ToolShape("stop")])
    parts = [*parser.feed(call_writer(family)(calls)), *parser.finish()]
    read = calls_of(parts)
    assert [(call.begin.name, json.loads(call.arguments), call.whole) for call in read] == [
        (name, arguments, True) for name, arguments in calls
    ]


@pytest.mark.parametrize("family", SPELLED, ids=lambda family: family.name)
def test_an_example_is_a_call(family: Family) -> None:
    example = example_call(family).replace("VALUE", "1")
    parser = ReplyParser(family, [ToolShape("NAME")])
    (call,) = calls_of([*parser.feed(example), *parser.finish()])
    assert json.loads(call.arguments) == {"PARAMETER": 1}


def test_the_history_of_a_template_without_calls_is_written_so() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}", Tokenizer.hash())
    called = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "assistant", "content": "So:", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    writing = template.writing(lambda calls: "; ".join(f"{name} {arguments}" for name, arguments in calls))
    assert writing.render(messages) == "[So:\nadd {'a': 1}][<tool_response>\n2\n</tool_response>]"
    assert "<tool_call>" in template.render(messages)

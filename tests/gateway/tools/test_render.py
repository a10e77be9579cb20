"""Tools as a prompt shows them."""

from __future__ import annotations

import json

from gateway.tools.definitions import CustomTool, FunctionTool, Tool
from gateway.tools.render import custom_arguments, tool_prompt
from grammar.contract import Contract
from grammar.spec import ANY_OBJECT, FreeText, Lark, Regex

PARAMETERS = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": ["{tools}"]}}}
TOOLS: tuple[Tool, ...] = (
    FunctionTool("sum", "Sum {example} <é>", PARAMETERS, True, Contract(ANY_OBJECT, ())),
    FunctionTool("stop", None, {"type": "object"}, False, Contract(ANY_OBJECT, ())),
    CustomTool("shell", "Runs it", Lark('start: "ls"')),
    CustomTool("pick", None, Regex("a|b")),
    CustomTool("note", None, FreeText()),
)


def test_a_list_holds_what_models_were_trained_on_and_nothing_of_ours() -> None:
    listed = tool_prompt(TOOLS, "").listed
    assert listed[0] == {
        "type": "function",
        "function": {"name": "sum", "description": "Sum {example} <é>", "parameters": PARAMETERS},
    }
    assert listed[1] == {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}
    shell, pick, note = (entry["function"] for entry in listed[2:])
    assert shell["description"] == 'Runs it\n\nThe input follows this grammar (Lark):\nstart: "ls"'
    assert "a|b" in pick["description"]
    assert "description" not in note
    assert note["parameters"]["required"] == ["input"]
    assert json.loads(custom_arguments("l's\n")) == {"input": "l's\n"}


def test_a_text_has_one_line_a_tool_and_shows_how_to_call() -> None:
    prompt = tool_prompt(TOOLS, "<call>NAME</call>")
    lines = prompt.text.splitlines()
    begin, end = lines.index("<tools>"), lines.index("</tools>")
    assert [json.loads(line) for line in lines[begin + 1 : end]] == list(prompt.listed)
    assert lines[-1] == "<call>NAME</call>"


def test_the_same_tools_give_the_same_bytes() -> None:
    assert tool_prompt(TOOLS, "x") == tool_prompt(TOOLS, "x")
    assert list(tool_prompt(TOOLS, "x").listed[0]["function"]["parameters"]["properties"]) == ["z", "a"]

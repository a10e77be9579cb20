"""Bugs that others had with calls: each reply is read right, however it is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.arguments.style import ToolShape
from gateway.tools.families import FAMILIES, HERMES, QWEN_3_CODER
from gateway.tools.structure import structure
from grammar.contract import audit

from .rendering import calls, fill
from .replies import Call, Reply, read_all_ways, tool
from .test_formats import before, refused

CASES = Path("../shared/data/bug_cases")
PARSERS = {"hermes": HERMES, "qwen3_coder": QWEN_3_CODER}


def shapes(case: dict[str, Any]) -> list[ToolShape]:
    functions = [entry["function"] for entry in case["request"]["tools"]]
    return [ToolShape(f["name"], audit(f["parameters"]).grammar, f["parameters"]) for f in functions]


@pytest.mark.parametrize("number", ["06", "08", "15"])
def test_reported_replies(number: str) -> None:
    path = next(iter(CASES.glob(f"{number}_*.json")), None)
    if path is None:
        pytest.skip("the collected cases are not here")
    case = json.loads(path.read_text("utf-8"))
    family = PARSERS[case["request"]["parser"]]
    reply = read_all_ways(family, shapes(case), case["request"]["model_output"])
    assert [{"name": call.name, "arguments": call.value} for call in reply.calls] == case["expect"][
        "tool_calls"
    ]
    assert all(call.whole for call in reply.calls)
    assert reply.content == ""
    assert (
        refused(
            structure(family, shapes(case), mode="auto", allowed=[s.name for s in shapes(case)]),
            case["request"]["model_output"],
        )
        is None
    )


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_end_mark_inside_a_string() -> None:
    shape = tool("save", {"text": {"type": "string"}})
    text = '{"text": "the tag </tool_call> closes a call, <tool_call> opens it"}'
    assert read_all_ways(HERMES, [shape], hermes("save", text)).calls == [Call("save", text, whole=True)]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_parameters_are_an_empty_object(family: Any) -> None:
    text = before(family) + calls(family, [(tool("ping", {}), {})]) + fill(family.tail)
    assert read_all_ways(family, [tool("ping", {})], text).calls[0].arguments == "{}"


@pytest.mark.parametrize(
    "command",
    [
        "echo \"}\" '{' ]",
        "awk '{print $1}' | sed 's/\\\\/x/' && echo \\\"",
        'cat <<EOF\n{"a": [}\nEOF',
        "}}</tool_call>{{",
    ],
)
def test_braces_and_quotes_in_a_command(command: str) -> None:
    shape = tool("run", {"command": {"type": "string"}, "timeout": {"type": "integer"}})
    arguments = json.dumps({"command": command, "timeout": 3})
    (call,) = read_all_ways(HERMES, [shape], hermes("run", arguments)).calls
    assert call.arguments == arguments


def test_several_calls_have_several_indices() -> None:
    shape = tool("get", {"city": {"type": "string"}})
    text = "\n".join(hermes("get", json.dumps({"city": city})) for city in ("Oslo", "Rome", "Bern"))
    reply = read_all_ways(HERMES, [shape], text)  # checks the indices
    assert [call.value["city"] for call in reply.calls] == ["Oslo", "Rome", "Bern"]


def test_arguments_are_text() -> None:
    shape = tool("get", {"city": {"type": "string"}})
    (call,) = read_all_ways(HERMES, [shape], hermes("get", '{"city": "Oslo"}')).calls
    assert call.arguments == '{"city": "Oslo"}'


def test_no_call_where_none_is_wanted() -> None:
    shape = tool("get", {"city": {"type": "string"}})
    text = hermes("get", '{"city": "Oslo"}')
    assert refused(structure(HERMES, [shape], mode="none"), text)
    assert read_all_ways(HERMES, [], text) == Reply(content=text)

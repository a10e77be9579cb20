"""`tool_choice` and `parallel_tool_calls`, read against the tools there are."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.tools.choice import NO_CALLS, ToolChoice, read_choice
from gateway.tools.definitions import CustomTool, FunctionTool, Tool
from grammar.contract import Contract
from grammar.spec import ANY_OBJECT, FreeText


def function(name: str) -> FunctionTool:
    return FunctionTool(name, None, {"type": "object"}, False, Contract(ANY_OBJECT, ()))


TOOLS: tuple[Tool, ...] = (function("add"), function("sub"), CustomTool("shell", None, FreeText()))
ALL = ("add", "sub", "shell")


def named(name: str, kind: str = "function") -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


def allowed(mode: str, *entries: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(entries)}}


@pytest.mark.parametrize(
    ("value", "parallel", "expected"),
    [
        (None, None, ToolChoice("auto", ALL)),
        (None, True, ToolChoice("auto", ALL)),
        ("auto", False, ToolChoice("auto", ALL, parallel=False)),
        ("required", None, ToolChoice("required", ALL)),
        ("none", None, ToolChoice("none", ())),
        (named("sub"), True, ToolChoice("named", ("sub",), parallel=False)),
        (named("shell", "custom"), None, ToolChoice("named", ("shell",), parallel=False)),
        (allowed("auto", named("sub"), named("add")), None, ToolChoice("auto", ("add", "sub"))),
        (
            allowed("required", named("shell", "custom"), named("sub")),
            False,
            ToolChoice("required", ("sub", "shell"), parallel=False),
        ),
    ],
)
def test_what_may_be_called(value: object, parallel: bool | None, expected: ToolChoice) -> None:
    assert read_choice(value, parallel, TOOLS) == expected


def test_without_tools_nothing_is_called() -> None:
    assert read_choice(None, None, ()) == read_choice("none", None, ()) == NO_CALLS


@pytest.mark.parametrize(
    ("value", "parallel", "param"),
    [
        ("auto", None, "tool_choice"),
        ("required", None, "tool_choice"),
        (named("add"), None, "tool_choice"),
        (None, True, "parallel_tool_calls"),
        ("none", False, "parallel_tool_calls"),
    ],
)
def test_they_make_no_sense_without_tools(value: object, parallel: bool | None, param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_choice(value, parallel, ())
    assert refusal.value.message == (
        f"Invalid value for '{param}': '{param}' is only allowed when 'tools' are specified."
    )
    assert (refusal.value.param, refusal.value.code) == (param, None)


@pytest.mark.parametrize(
    ("value", "param", "code"),
    [
        ("any", "tool_choice", "invalid_value"),
        (3, "tool_choice", "invalid_type"),
        ({}, None, None),
        ({"type": "tool"}, "tool_choice.type", "invalid_value"),
        ({"type": "function"}, "tool_choice.function", "missing_required_parameter"),
        ({"type": "function", "name": "add"}, "tool_choice.name", "unknown_parameter"),
        ({"type": "function", "function": "add"}, "tool_choice.function", "invalid_type"),
        ({"type": "function", "function": {}}, "tool_choice.function.name", "missing_required_parameter"),
        ({"type": "function", "function": {"name": 1}}, "tool_choice.function.name", "invalid_type"),
        (named("zzz"), "tool_choice", None),
        (named("shell"), "tool_choice", None),
        (named("add", "custom"), "tool_choice", None),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools", "missing_required_parameter"),
        (
            {"type": "allowed_tools", "allowed_tools": {"tools": [named("add")]}},
            "tool_choice.allowed_tools.mode",
            "missing_required_parameter",
        ),
        (allowed("none", named("add")), "tool_choice.allowed_tools.mode", "invalid_value"),
        (allowed("auto"), "tool_choice.allowed_tools.tools", "empty_array"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}},
            "tool_choice.allowed_tools.tools",
            "missing_required_parameter",
        ),
        (allowed("auto", "add"), "tool_choice.allowed_tools.tools[0]", "invalid_type"),
        (allowed("auto", {"type": "x"}), "tool_choice.allowed_tools.tools[0].type", "invalid_value"),
        (allowed("auto", named("add"), named("zzz")), "tool_choice", None),
    ],
)
def test_what_is_refused(value: object, param: str | None, code: str | None) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read_choice(value, None, TOOLS)
    assert (refusal.value.param, refusal.value.code) == (param, code)

"""`tool_choice` and `parallel_tool_calls`: which tools may, must or must not be called in an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InvalidRequest
from ..openai.fields import missing, unknown, wrong_type
from .definitions import CustomTool, Tool

Mode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`none`: no call; `auto`: as many as the model likes; `required`: at least one; `named`: exactly one.

    `allowed` are the names that may be called, in the order of `tools`; `parallel`: more than one call in an answer.
    """

    mode: Mode
    allowed: tuple[str, ...]
    parallel: bool = True


NO_CALLS = ToolChoice("none", ())
_WORDS: dict[str, Mode] = {"none": "none", "auto": "auto", "required": "required"}


def read_choice(value: object, parallel: bool | None, tools: Sequence[Tool]) -> ToolChoice:
    """The choice among `tools`, none if there are none. Raises InvalidRequest."""
    if not tools:
        return _without_tools(value, parallel)
    names = tuple(tool.name for tool in tools)
    together = parallel is not False
    if value is None:
        return ToolChoice("auto", names, together)
    if isinstance(value, str):
        return _word(value, names, together)
    if not isinstance(value, dict):
        raise wrong_type("tool_choice", "one of 'none', 'auto' and 'required', or an object", value)
    kind = value.get("type")
    if kind is None:
        raise InvalidRequest("'$.tool_choice' is invalid. It has no 'type'.", code=None)
    if kind == "allowed_tools":
        return _allowed(value, tools, together)
    if kind in ("function", "custom"):
        name = _named(value, "tool_choice", tools)
        return ToolChoice("named", (name,), parallel=False)
    raise InvalidRequest(
        f"Invalid value: '{str(kind)[:50]}'. Supported values are: 'function', 'custom', and 'allowed_tools'.",
        param="tool_choice.type",
    )


def _without_tools(value: object, parallel: bool | None) -> ToolChoice:
    if parallel is not None:
        raise _only_with_tools("parallel_tool_calls")
    if value is not None and value != "none":
        raise _only_with_tools("tool_choice")
    return NO_CALLS


def _word(word: str, names: tuple[str, ...], together: bool) -> ToolChoice:
    mode = _WORDS.get(word)
    if mode is None:
        raise InvalidRequest(
            f"Invalid value: '{word[:50]}'. Supported values are: 'none', 'auto', and 'required'.",
            param="tool_choice",
        )
    return ToolChoice(mode, () if mode == "none" else names, together)


def _allowed(value: Mapping[str, object], tools: Sequence[Tool], together: bool) -> ToolChoice:
    at = "tool_choice.allowed_tools"
    only = _fields(value, "tool_choice", "allowed_tools")
    mode = only.get("mode")
    if mode is None:
        raise missing(f"{at}.mode")
    if mode not in ("auto", "required"):
        raise InvalidRequest(
            f"Invalid value: '{str(mode)[:50]}'. Supported values are: 'auto' and 'required'.",
            param=f"{at}.mode",
        )
    listed = only.get("tools")
    if not isinstance(listed, list):
        raise missing(f"{at}.tools") if listed is None else wrong_type(f"{at}.tools", "an array", listed)
    if not listed:
        raise InvalidRequest(f"Invalid '{at}.tools': empty array.", param=f"{at}.tools", code="empty_array")
    for field in only.keys() - {"mode", "tools"}:
        raise unknown(f"{at}.{field}")
    chosen = {_named(entry, f"{at}.tools[{i}]", tools) for i, entry in enumerate(listed)}
    names = tuple(tool.name for tool in tools if tool.name in chosen)
    return ToolChoice("required" if mode == "required" else "auto", names, together)


def _named(entry: object, at: str, tools: Sequence[Tool]) -> str:
    """The name in `{"type": "function", "function": {"name": …}}`, or the same of a custom tool."""
    if not isinstance(entry, dict):
        raise wrong_type(at, "an object", entry)
    kind = entry.get("type")
    if kind not in ("function", "custom"):
        raise InvalidRequest(
            f"Invalid value: '{str(kind)[:50]}'. Supported values are: 'function' and 'custom'.",
            param=f"{at}.type",
        )
    inner = _fields(entry, at, kind)
    name = inner.get("name")
    if not isinstance(name, str):
        raise (
            missing(f"{at}.{kind}.name")
            if name is None
            else wrong_type(f"{at}.{kind}.name", "a string", name)
        )
    if not any(tool.name == name and isinstance(tool, CustomTool) == (kind == "custom") for tool in tools):
        what = "function" if kind == "function" else "custom tool"
        raise InvalidRequest(
            f"Invalid value for 'tool_choice': no {what} named '{name[:64]}' was specified in the 'tools' parameter.",
            param="tool_choice",
            code=None,
        )
    return name


def _fields(value: Mapping[str, object], at: str, kind: str) -> Mapping[str, object]:
    """What an object `{"type": kind, kind: {…}}` holds."""
    for field in value.keys() - {"type", kind}:
        raise unknown(f"{at}.{field}")
    inner = value.get(kind)
    if not isinstance(inner, dict):
        raise missing(f"{at}.{kind}") if inner is None else wrong_type(f"{at}.{kind}", "an object", inner)
    return inner


def _only_with_tools(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid value for '{param}': '{param}' is only allowed when 'tools' are specified.",
        param=param,
        code=None,
    )

"""System, tools and messages of a request, checked block by block, as the messages that a template reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..caching.segments import NO_MESSAGE
from ..config import Limits
from ..conversation import Conversation
from ..errors import InvalidRequest, unsupported
from ..openai.fields import missing, unknown, wrong_type
from ..prompts import Message
from ..template_sandbox import to_json
from ..tools.dialects import Given, ToolDialect
from .cache_control import CacheMarks, Place

MAX_BLOCKS = 4096
_TEXT = {"type", "text", "cache_control", "citations"}
_NOT_SERVED = ("image", "document", "search_result", "redacted_thinking", "server_tool_use")


@dataclass(slots=True)
class Read:
    """`prefills`: the last message is an answer's beginning, for the model to go on."""

    conversation: Conversation
    marks: CacheMarks
    prefills: bool = False


def read_blocks(system: object, tools: object, messages: object, limits: Limits) -> Read:
    """Raises InvalidRequest with the path of the first thing that is wrong. Of the tools only their `cache_control` is
    read."""
    reader = _Reader(Conversation([]), CacheMarks())
    reader.tools(tools)
    reader.system(system)
    given = _list(messages, "messages", limits.max_messages)
    if not given:
        raise InvalidRequest(
            "messages: at least one message is required", param="messages", code="empty_array"
        )
    for i, message in enumerate(given):
        reader.message(message, f"messages.{i}")
    last = reader.conversation.messages[-1]
    prefills = last["role"] == "assistant"
    if prefills and "tool_calls" in last:
        raise InvalidRequest(
            "messages: a call of a tool needs its result in the next message.", param="messages"
        )
    return Read(reader.conversation, reader.marks, prefills)


@dataclass(slots=True)
class _Reader:
    conversation: Conversation
    marks: CacheMarks
    _texts: list[str] = field(default_factory=list)
    """Of the message that is being read."""

    # -- what there is -----------------------------------------------------------------------------------------------------

    def tools(self, tools: object) -> None:
        for i, tool in enumerate(tools if isinstance(tools, list) else ()):
            if isinstance(tool, dict):
                self.marks.block(Place(NO_MESSAGE, i, f"tools.{i}"), tool.get("cache_control"))

    def system(self, system: object) -> None:
        if system is None or system == []:
            return
        if isinstance(system, str):
            self._take(system, Place(0, 0, "system"), None)
        else:
            for i, block in enumerate(_list(system, "system", MAX_BLOCKS)):
                self._text(_typed(block, f"system.{i}", ("text",)), f"system.{i}")
        self._say({"role": "system"})

    def message(self, value: object, at: str) -> None:
        if not isinstance(value, dict):
            raise wrong_type(at, "an object", value)
        for name in value.keys() - {"role", "content"}:
            raise unknown(f"{at}.{name}")
        role = value.get("role")
        if role not in ("user", "assistant", "system"):
            raise InvalidRequest(f"{at}.role: expected 'user' or 'assistant'.", param=f"{at}.role")
        content = value.get("content")
        if content is None:
            raise missing(f"{at}.content")
        if isinstance(content, str):
            self._take(content, self._place(f"{at}.content"), None)
            self._say({"role": role})
        elif role == "assistant":
            self._assistant(_list(content, f"{at}.content", MAX_BLOCKS), f"{at}.content")
        else:
            self._user(_list(content, f"{at}.content", MAX_BLOCKS), f"{at}.content", role)

    def _user(self, blocks: Sequence[object], at: str, role: str) -> None:
        """Results of tools are messages of their own."""
        for i, block in enumerate(blocks):
            here = f"{at}.{i}"
            typed = _typed(block, here, ("text", "tool_result"))
            if typed["type"] == "text":
                self._text(typed, here)
                continue
            if self._texts:
                self._say({"role": role})
            self._result(typed, here)
        if self._texts:
            self._say({"role": role})

    def _result(self, block: Mapping[str, Any], at: str) -> None:
        _only(block, at, {"type", "tool_use_id", "content", "is_error", "cache_control"})
        content = block.get("content")
        said = "Error: " if block.get("is_error") is True else ""
        if isinstance(content, str) or content is None:
            said += content or ""
        else:
            for i, part in enumerate(_list(content, f"{at}.content", MAX_BLOCKS)):
                said += _string(_typed(part, f"{at}.content.{i}", ("text",)), "text", f"{at}.content.{i}")
        self._take(said, self._place(at), block.get("cache_control"))
        self._say({"role": "tool", "tool_call_id": _string(block, "tool_use_id", at)})

    def _assistant(self, blocks: Sequence[object], at: str) -> None:
        message: Message = {"role": "assistant"}
        calls: list[dict[str, Any]] = []
        for i, block in enumerate(blocks):
            here = f"{at}.{i}"
            typed = _typed(block, here, ("text", "thinking", "tool_use"))
            if typed["type"] == "text":
                self._text(typed, here)
            elif typed["type"] == "thinking":
                _only(typed, here, {"type", "thinking", "signature"})
                thoughts = str(message.get("reasoning_content", ""))
                message["reasoning_content"] = thoughts + _string(typed, "thinking", here)
            else:
                calls.append(self._call(typed, here))
        if calls:
            message["tool_calls"] = calls
        self._say(message)

    def _call(self, block: Mapping[str, Any], at: str) -> dict[str, Any]:
        _only(block, at, {"type", "id", "name", "input", "cache_control", "caller"})
        given = block.get("input")
        if not isinstance(given, dict):
            raise missing(f"{at}.input") if given is None else wrong_type(f"{at}.input", "an object", given)
        place = Place(len(self.conversation.messages), max(len(self._texts) - 1, 0), at)
        self.marks.block(place, block.get("cache_control"))
        function = {"name": _string(block, "name", at), "arguments": to_json(given)}
        return {"id": _string(block, "id", at), "type": "function", "function": function}

    # -- texts of the message that is being read ----------------------------------------------------------------------------

    def _text(self, block: Mapping[str, Any], at: str) -> None:
        _only(block, at, _TEXT)
        self._take(_string(block, "text", at), self._place(at), block.get("cache_control"))

    def _place(self, at: str) -> Place:
        return Place(len(self.conversation.messages), len(self._texts), at)

    def _take(self, text: str, place: Place, control: object) -> None:
        self._texts.append(text)
        self.marks.block(place, control)

    def _say(self, message: Message) -> None:
        texts, self._texts = self._texts, []
        if len(texts) > 1:
            self.conversation.parts[len(self.conversation.messages)] = texts
        content = "".join(texts) if texts or "tool_calls" not in message else None
        self.conversation.messages.append({**message, "content": content})


def _list(value: object, at: str, most: int) -> list[object]:
    if not isinstance(value, list):
        raise missing(at) if value is None else wrong_type(at, "an array", value)
    if len(value) > most:
        raise InvalidRequest(f"{at}: at most {most} items.", param=at, code="array_above_max_length")
    return value


def _typed(block: object, at: str, kinds: Sequence[str]) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise wrong_type(at, "an object", block)
    kind = block.get("type")
    if kind in _NOT_SERVED:
        raise unsupported(f"{at}.type", "this model reads text only")
    if kind not in kinds:
        raise InvalidRequest(
            f"{at}.type: expected {' or '.join(repr(name) for name in kinds)}, got {str(kind)[:50]!r}.",
            param=f"{at}.type",
        )
    return block


def _only(block: Mapping[str, Any], at: str, known: set[str]) -> None:
    for name in block.keys() - known:
        if block[name] is not None:
            raise unknown(f"{at}.{name}")


def _string(block: Mapping[str, Any], name: str, at: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise missing(f"{at}.{name}") if value is None else wrong_type(f"{at}.{name}", "a string", value)
    return value


def _tool(item: object, at: str) -> Given:
    """`{"name", "description", "input_schema"}`; tools that Anthropic's servers run have types of their own."""
    if not isinstance(item, dict):
        raise wrong_type(at, "an object", item)
    if item.get("type") not in (None, "custom"):
        raise unsupported(f"{at}.type", "tools are the client's own")
    if item.get("input_schema") is None:
        raise missing(f"{at}.input_schema")
    left_out = ("type", "cache_control", "eager_input_streaming")
    return "function", {name: value for name, value in item.items() if name not in left_out}, at


ANTHROPIC = ToolDialect("anthropic", _tool, schema="input_schema")

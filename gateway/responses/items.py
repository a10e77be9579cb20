"""Items: what a response is asked with and what it answers with, checked one by one, and as the messages that a template
reads.

An item is kept as the object that clients see. Those of a client get ids when they come; those of an answer have theirs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..caching.boundaries import Breakpoint
from ..caching.fields import read_breakpoint
from ..config import Limits
from ..conversation import Conversation
from ..errors import InvalidRequest, unsupported
from ..openai.fields import missing, unknown, wrong_type
from ..prompts import Message
from ..tools.render import custom_arguments

Item = dict[str, Any]

BREAKPOINT = "prompt_cache_breakpoint"
REFERENCE = "item_reference"
MAX_PARTS = 1024
ROLES = ("user", "assistant", "system", "developer")
STATUSES = ("in_progress", "completed", "incomplete")

_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fc",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctc",
    "call": "call",
}
_NOT_SERVED_PARTS = ("input_image", "input_file", "input_audio")


def new_item_id(kind: str, response_id: str | None = None) -> str:
    """48 hex digits. Those of an item of an answer begin with those of its response: so it can be found by its id."""
    if response_id is None:
        return f"{_PREFIXES[kind]}_{secrets.token_hex(24)}"
    return f"{_PREFIXES[kind]}_{response_id.partition('_')[2]}{secrets.token_hex(8)}"


def response_of(item_id: str) -> str:
    """The id of the response that it would be an item of the answer of."""
    return f"resp_{item_id.rpartition('_')[2][:32]}"


def read_items(
    value: object, limits: Limits, param: str = "input", *, references: bool = False
) -> list[Item]:
    """A text, which is a user's message, or an array of items; with ids. With `references` items may stand for others: their
    type is REFERENCE. Raises InvalidRequest with the path of the first thing that is wrong."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise missing(param) if value is None else wrong_type(param, "a string or an array of items", value)
    if len(value) > limits.max_messages:
        raise InvalidRequest(
            f"Invalid '{param}': at most {limits.max_messages} items, but got {len(value)}.",
            param=param,
            code="array_above_max_length",
        )
    return [
        _Reader(f"{param}[{i}]", limits, references=references).item(item) for i, item in enumerate(value)
    ]


def check_ids(before: Sequence[Item], new: Sequence[Item], param: str) -> None:
    """An id names one item of a conversation. Raises InvalidRequest."""
    taken = {item["id"] for item in before}
    for position, item in enumerate(new):
        if item["id"] in taken:
            raise InvalidRequest(
                f"There is an item '{item['id']}' already in this conversation.",
                param=f"{param}[{position}].id",
            )
        taken.add(item["id"])


class _Reader:
    """One item, at the path `at`."""

    def __init__(self, at: str, limits: Limits, *, references: bool) -> None:
        self._at = at
        self._references = references
        self._limits = limits

    def item(self, value: object) -> Item:
        if not isinstance(value, dict):
            raise wrong_type(self._at, "an object", value)
        given = {name: field for name, field in value.items() if field is not None}
        kind = given.pop("type", "message" if "role" in given else None)
        if kind is None:
            raise missing(f"{self._at}.type")
        if kind == REFERENCE and self._references:
            return self._reference(given)
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise unsupported(
                f"{self._at}.type", f"items of type '{str(kind)[:60]}' are not; {', '.join(_READERS)} are"
            )
        item_id = self._label(given.pop("id", None), "id", optional=True) or new_item_id(kind)
        item: Item = {"id": item_id, "type": kind, **read(self, given)}
        for name in given:
            raise unknown(f"{self._at}.{name}")
        return item

    def _reference(self, given: Item) -> Item:
        item: Item = {"type": REFERENCE, "id": self._label(given.pop("id", None), "id")}
        for name in given:
            raise unknown(f"{self._at}.{name}")
        return item

    # -- one kind each: takes what it knows out of `given` ---------------------------------------------------------------

    def message(self, given: Item) -> Item:
        role = given.pop("role", None)
        if role not in ROLES:
            at = f"{self._at}.role"
            if role is None:
                raise missing(at)
            raise InvalidRequest(
                f"Invalid value: '{str(role)[:50]}'. Supported values are: "
                f"{', '.join(repr(name) for name in ROLES)}.",
                param=at,
            )
        given.pop("phase", None)
        kind = "output_text" if role == "assistant" else "input_text"
        return {
            "status": self._status(given),
            "role": role,
            "content": self._content(given.pop("content", None), kind, "content"),
        }

    def reasoning(self, given: Item) -> Item:
        if "encrypted_content" in given:
            raise unsupported(f"{self._at}.encrypted_content", "thoughts are in plain text here")
        summary = self._texts(given.pop("summary", []), "summary_text", "summary")
        content = self._texts(given.pop("content", []), "reasoning_text", "content")
        return {"status": self._status(given), "summary": summary, "content": content}

    def function_call(self, given: Item) -> Item:
        return {
            "status": self._status(given),
            **self._call(given),
            "arguments": self._text(given, "arguments"),
        }

    def custom_tool_call(self, given: Item) -> Item:
        return {"status": self._status(given), **self._call(given), "input": self._text(given, "input")}

    def output(self, given: Item) -> Item:
        call_id = self._label(given.pop("call_id", None), "call_id")
        output = given.pop("output", None)
        if not isinstance(output, str):
            output = self._content(output, "input_text", "output")
        return {"status": self._status(given), "call_id": call_id, "output": output}

    # -- parts of them -----------------------------------------------------------------------------------------------------

    def _call(self, given: Item) -> Item:
        return {
            "call_id": self._label(given.pop("call_id", None), "call_id"),
            "name": self._label(given.pop("name", None), "name"),
        }

    def _status(self, given: Item) -> str:
        status = given.pop("status", "completed")
        if status not in STATUSES:
            raise InvalidRequest(f"Invalid value for '{self._at}.status'.", param=f"{self._at}.status")
        return str(status)

    def _content(self, value: object, kind: str, name: str) -> list[Item]:
        at = f"{self._at}.{name}"
        if isinstance(value, str):
            return [_part(kind, value)]
        if value is None:
            raise missing(at)
        return [self._content_part(part, kind, f"{at}[{i}]") for i, part in enumerate(self._list(value, at))]

    def _content_part(self, part: object, kind: str, at: str) -> Item:
        if not isinstance(part, dict):
            raise wrong_type(at, "an object", part)
        said = part.get("type")
        if said is None:
            raise missing(f"{at}.type")
        if said in _NOT_SERVED_PARTS:
            raise unsupported(f"{at}.type", "this model reads text only")
        if kind == "output_text" and said == "refusal":
            return {"type": "refusal", "refusal": self._string(part.get("refusal"), f"{at}.refusal")}
        if said not in ("text", "input_text", "output_text"):
            raise InvalidRequest(
                f"Invalid value: '{str(said)[:50]}'. Supported values are: '{kind}'.", param=f"{at}.type"
            )
        known = {"type", "text", BREAKPOINT, "annotations", "logprobs"}
        for field in part.keys() - known:
            if part[field] is not None:
                raise unknown(f"{at}.{field}")
        read = _part(kind, self._string(part.get("text"), f"{at}.text"))
        if (mark := part.get(BREAKPOINT)) is not None:
            read_breakpoint(mark, f"{at}.{BREAKPOINT}")
            read[BREAKPOINT] = mark
        return read

    def _texts(self, value: object, kind: str, name: str) -> list[Item]:
        at = f"{self._at}.{name}"
        texts = []
        for i, part in enumerate(self._list(value, at)):
            if not isinstance(part, dict) or part.get("type") != kind:
                raise InvalidRequest(f"Expected parts of type '{kind}' in '{at}'.", param=f"{at}[{i}]")
            texts.append({"type": kind, "text": self._string(part.get("text"), f"{at}[{i}].text")})
        return texts

    def _list(self, value: object, at: str) -> list[object]:
        if not isinstance(value, list):
            raise wrong_type(at, "an array of objects", value)
        if len(value) > MAX_PARTS:
            raise InvalidRequest(
                f"Invalid '{at}': at most {MAX_PARTS} items.", param=at, code="array_above_max_length"
            )
        return value

    def _text(self, given: Item, name: str) -> str:
        return self._string(given.pop(name, None), f"{self._at}.{name}")

    def _string(self, value: object, at: str) -> str:
        if not isinstance(value, str):
            raise missing(at) if value is None else wrong_type(at, "a string", value)
        return value

    def _label(self, value: object, name: str, *, optional: bool = False) -> str:
        at = f"{self._at}.{name}"
        if value is None and optional:
            return ""
        text = self._string(value, at)
        if len(text) > self._limits.max_string:
            raise InvalidRequest(
                f"Invalid '{at}': longer than {self._limits.max_string} characters.",
                param=at,
                code="string_above_max_length",
            )
        return text


_READERS: Mapping[str, Callable[[_Reader, Item], Item]] = {
    "message": _Reader.message,
    "reasoning": _Reader.reasoning,
    "function_call": _Reader.function_call,
    "function_call_output": _Reader.output,
    "custom_tool_call": _Reader.custom_tool_call,
    "custom_tool_call_output": _Reader.output,
}


def _part(kind: str, text: str) -> Item:
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": [], "logprobs": []}
    return {"type": kind, "text": text}


# ---- as messages -----------------------------------------------------------------------------------------------------


def conversation_of(items: Sequence[Item]) -> Conversation:
    """The messages that these items are. Thoughts, a text and calls that follow one another are one message of the
    assistant's, as the model said it."""
    conversation = Conversation([])
    for item in items:
        _SAYING[item["type"]](conversation, item)
    return conversation


def _say_message(conversation: Conversation, item: Item) -> None:
    texts = [part.get("text", part.get("refusal", "")) for part in item["content"]]
    if item["role"] == "assistant":
        message = _open(conversation, lambda last: last["content"] is None and "tool_calls" not in last)
        message["content"] = "".join(texts)
        index = len(conversation.messages) - 1
    else:
        index = len(conversation.messages)
        conversation.messages.append({"role": item["role"], "content": "".join(texts)})
    _note_parts(conversation, index, item["content"], texts)


def _say_reasoning(conversation: Conversation, item: Item) -> None:
    text = "".join(part["text"] for part in item["content"] or item["summary"])
    if text:
        message = _open(
            conversation, lambda last: last.keys() == {"role", "content"} and last["content"] is None
        )
        message["reasoning_content"] = text


def _say_call(conversation: Conversation, item: Item) -> None:
    custom = item["type"] == "custom_tool_call"
    arguments = custom_arguments(item["input"]) if custom else item["arguments"]
    message = _open(conversation, lambda _: True)
    calls: list[object] = message.setdefault("tool_calls", [])  # type: ignore[assignment]
    calls.append(
        {
            "id": item["call_id"],
            "type": "function",
            "function": {"name": item["name"], "arguments": arguments},
        }
    )


def _say_output(conversation: Conversation, item: Item) -> None:
    output = item["output"]
    texts = [output] if isinstance(output, str) else [part["text"] for part in output]
    index = len(conversation.messages)
    message: Message = {"role": "tool", "tool_call_id": item["call_id"], "content": "".join(texts)}
    conversation.messages.append(message)
    if not isinstance(output, str):
        _note_parts(conversation, index, output, texts)


def _open(conversation: Conversation, takes: Callable[[Message], bool]) -> Message:
    """The assistant's message that still goes on, if it `takes` what comes, or a new one."""
    last = conversation.messages[-1] if conversation.messages else None
    if last is not None and last["role"] == "assistant" and takes(last):
        return last
    message: Message = {"role": "assistant", "content": None}
    conversation.messages.append(message)
    return message


def _note_parts(conversation: Conversation, index: int, parts: Sequence[Item], texts: list[str]) -> None:
    for number, part in enumerate(parts):
        if (mark := part.get(BREAKPOINT)) is not None:
            conversation.breakpoints.append(Breakpoint(index, number, read_breakpoint(mark, BREAKPOINT)))
    if len(texts) > 1:
        conversation.parts[index] = texts


_SAYING: Mapping[str, Callable[[Conversation, Item], None]] = {
    "message": _say_message,
    "reasoning": _say_reasoning,
    "function_call": _say_call,
    "function_call_output": _say_output,
    "custom_tool_call": _say_call,
    "custom_tool_call_output": _say_output,
}

"""The messages of a chat request, checked one by one and reduced to what a template reads: role, text, name, calls and results."""

from __future__ import annotations

from typing import Any

from ..caching.boundaries import Breakpoint
from ..caching.fields import read_breakpoint
from ..config import Limits
from ..conversation import Conversation
from ..errors import InvalidRequest, unsupported
from ..prompts import Message
from ..tools.render import custom_arguments
from .fields import missing, unknown, wrong_type

ROLES = ("developer", "system", "user", "assistant", "tool")
IGNORED = frozenset({"annotations"})
"""Parts of an answer of ours that clients send back with the history; they hold nothing a model reads."""
NOT_SERVED = frozenset({"audio", "function_call", "refusal"})
BREAKPOINT = "prompt_cache_breakpoint"
MAX_PARTS = 1024
MAX_CALLS = 128


def read_messages(value: object, limits: Limits) -> list[Message]:
    """Raises InvalidRequest with the path of the first thing that is wrong."""
    return read_conversation(value, limits).messages


def read_conversation(value: object, limits: Limits) -> Conversation:
    """Raises InvalidRequest with the path of the first thing that is wrong."""
    if not isinstance(value, list):
        raise wrong_type("messages", "an array of objects", value)
    if not value:
        raise InvalidRequest(
            "Invalid 'messages': empty array. Expected an array with minimum length 1.",
            param="messages",
            code="empty_array",
        )
    _check_count(value, limits.max_messages, "messages")
    conversation = Conversation([])
    for i, item in enumerate(value):
        conversation.messages.append(_message(item, f"messages[{i}]", limits, conversation))
    return conversation


def generation_prompt(asked: bool | None, *, continues: bool) -> bool:
    """Whether the prompt ends by opening an answer: yes unless told otherwise, and never when it continues the last message.

    Raises InvalidRequest for a request that wants both.
    """
    if continues and asked:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.",
            param="continue_final_message",
        )
    return not continues if asked is None else asked


def _message(value: object, at: str, limits: Limits, conversation: Conversation) -> Message:
    """The next message. What a template has no use for is noted in the conversation."""
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    given = {name: field for name, field in value.items() if field is not None and name not in IGNORED}
    role = _role(given.pop("role", None), f"{at}.role")
    message: Message = {"role": role}
    if role == "assistant" and "tool_calls" in given:
        message["tool_calls"] = _calls(given.pop("tool_calls"), f"{at}.tool_calls", limits)
    if role == "assistant" and "reasoning_content" in given:
        message["reasoning_content"] = _text(given.pop("reasoning_content"), f"{at}.reasoning_content")
    if role == "tool":
        message["tool_call_id"] = _label(given.pop("tool_call_id", None), f"{at}.tool_call_id", limits)
    if "tool_calls" in message and "content" not in given:
        message["content"] = None
    else:
        message["content"] = _content(given.pop("content", None), f"{at}.content", conversation)
    if "name" in given:
        message["name"] = _label(given.pop("name"), f"{at}.name", limits)
    for name in given:
        raise _unknown(f"{at}.{name}", known=name in NOT_SERVED)
    return message


def _role(role: object, at: str) -> str:
    if not isinstance(role, str):
        raise wrong_type(at, "a string", role) if role is not None else missing(at)
    if role not in ROLES:
        supported = ", ".join(f"'{name}'" for name in ROLES)
        raise InvalidRequest(
            f"Invalid value: '{role[:50]}'. Supported values are: {supported}.",
            param=at,
            code="invalid_value",
        )
    return role


def _calls(value: object, at: str, limits: Limits) -> list[dict[str, object]]:
    """Calls of functions that an earlier answer made."""
    if not isinstance(value, list):
        raise wrong_type(at, "an array of objects", value)
    if not value:
        raise InvalidRequest(f"Invalid '{at}': empty array.", param=at, code="empty_array")
    _check_count(value, MAX_CALLS, at)
    return [_call(item, f"{at}[{i}]", limits) for i, item in enumerate(value)]


def _call(value: object, at: str, limits: Limits) -> dict[str, object]:
    """As a call of a function: to a custom tool it is one with the text as its only argument."""
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    kind = value.get("type", "function")
    if kind not in ("function", "custom"):
        raise unsupported(f"{at}.type", "only functions and custom tools are called")
    called = value.get(kind)
    if not isinstance(called, dict):
        raise wrong_type(f"{at}.{kind}", "an object", called)
    call_id = _label(value.get("id"), f"{at}.id", limits)
    name = _label(called.get("name"), f"{at}.{kind}.name", limits)
    if kind == "function":
        arguments = _text(called.get("arguments", ""), f"{at}.function.arguments")
    else:
        arguments = custom_arguments(_text(called.get("input", ""), f"{at}.custom.input"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _text(value: object, at: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(at, "a string", value)
    return value


def _content(content: object, at: str, conversation: Conversation) -> str:
    if content is None:
        raise missing(at)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(at, "a string or an array of objects", content)
    if not content:
        raise InvalidRequest(f"Invalid '{at}': empty array.", param=at, code="empty_array")
    _check_count(content, MAX_PARTS, at)
    message = len(conversation.messages)
    texts: list[str] = []
    for i, item in enumerate(content):
        part = _part(item, f"{at}[{i}]")
        texts.append(part["text"])
        if (asked := part.get(BREAKPOINT)) is not None:
            ttl = read_breakpoint(asked, f"{at}[{i}].{BREAKPOINT}")
            conversation.breakpoints.append(Breakpoint(message, i, ttl))
    if len(texts) > 1:
        conversation.parts[message] = texts
    return "".join(texts)


def _part(part: object, at: str) -> dict[str, Any]:
    """A part of a content, which has a text and perhaps a breakpoint."""
    if not isinstance(part, dict):
        raise wrong_type(at, "an object", part)
    kind = part.get("type")
    if kind is None:
        raise missing(f"{at}.type")
    if kind != "text":
        raise InvalidRequest(
            f"Unsupported content part at '{at}': this model reads parts of type 'text' only.",
            param=f"{at}.type",
            code="unsupported_parameter",
        )
    for name in part.keys() - {"type", "text", BREAKPOINT}:
        if part[name] is not None:
            raise unknown(f"{at}.{name}")
    text = part.get("text")
    if not isinstance(text, str):
        raise wrong_type(f"{at}.text", "a string", text)
    return part


def _label(value: object, at: str, limits: Limits) -> str:
    if not isinstance(value, str):
        raise wrong_type(at, "a string", value) if value is not None else missing(at)
    if len(value) > limits.max_string:
        raise InvalidRequest(
            f"Invalid '{at}': longer than {limits.max_string} characters.",
            param=at,
            code="string_above_max_length",
        )
    return value


def _check_count(items: list[object], limit: int, at: str) -> None:
    if len(items) > limit:
        raise InvalidRequest(
            f"Invalid '{at}': at most {limit} items, but got {len(items)}.",
            param=at,
            code="array_above_max_length",
        )


def _unknown(param: str, *, known: bool) -> InvalidRequest:
    return unsupported(param[:100]) if known else unknown(param)

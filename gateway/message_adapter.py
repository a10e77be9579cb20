"""Chat messages said in words that a template has.

What a template can do is found out by trying it, not by reading it, with one exception: a branch for `developer` is
looked for in its source, because a template that writes any role's name would seem to have one.

* null or missing content is the empty string; text parts are joined with nothing between them.
* `developer` is `system` where the template has no branch for it.
* System messages are joined by a blank line into one at the start where the template takes none elsewhere, and into the
  first user message where it takes none at all.
* JSON strings of call arguments become objects, which is what templates expect.
* For a template without tools the calls of a message are text at its end, in the form that the model is to write them,
  and a run of results is a user message of `<tool_response>` blocks.
* Tools that a template has no place for are described at the end of the system message.
* Where a template takes no other ids of calls than nine letters and digits, they become such.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .template_sandbox import Message, TemplateError, TemplateSandbox

CallWriter = Callable[[Sequence[tuple[str, Any]]], str]
"""The text of a run of calls, each a name and arguments: an object, or what was no JSON."""

_ROLES = {"system", "developer", "user", "assistant", "tool"}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a template was seen to do."""

    system: bool
    """Shows a system message at the start."""
    late_system: bool
    """Shows system messages anywhere, in their place."""
    developer: bool
    """Tells `developer` from other roles."""
    text_content: bool
    """Takes content as a string (if not: as a list of parts)."""
    calls: bool
    """Shows calls in the history, and their results."""
    long_ids: bool
    """Takes any string as the id of a call."""
    tools: bool
    """Shows the tools it is given, with their parameters."""


class MessageAdapter:
    """Immutable."""

    def __init__(self, sandbox: TemplateSandbox, write_calls: CallWriter) -> None:
        self.can = _probe(sandbox)
        self._write_calls = write_calls

    def writing(self, write_calls: CallWriter) -> MessageAdapter:
        """The same with calls written so where the template cannot."""
        twin = copy.copy(self)
        twin._write_calls = write_calls
        return twin

    def adapt(self, messages: Sequence[Message], tools: str = "") -> list[Message]:
        """New messages; the given ones are not changed. `tools` describes them to a template that has no place for them.

        Raises TemplateError for an unknown role and for content that is not text.
        """
        if not messages:
            raise TemplateError("there are no messages")
        adapted = [self._normal(message) for message in messages]
        if not self.can.calls:
            adapted = list(self._without_calls(adapted))
        elif not self.can.long_ids:
            adapted = [_with_short_ids(message) for message in adapted]
        if tools:
            adapted = _with_tools(adapted, tools)
        if not self.can.late_system and any(m["role"] == "system" for m in adapted):
            adapted = _gather_system(adapted, own_message=self.can.system)
        return adapted if self.can.text_content else [_with_parts(m) for m in adapted]

    def _normal(self, message: Message) -> Message:
        role = message.get("role")
        # templates build special tokens out of roles, so only these may pass
        if role not in _ROLES:
            raise TemplateError(f"unknown role {role!r}")
        if role == "developer" and not self.can.developer:
            role = "system"
        normal = {**message, "role": role, "content": _flat(message.get("content"))}
        if calls := normal.pop("tool_calls", None):
            normal["tool_calls"] = [_with_object_arguments(call) for call in calls]
        return normal

    def _without_calls(self, messages: Iterable[Message]) -> Iterator[Message]:
        results: list[str] = []
        for message in messages:
            if message["role"] == "tool":
                results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
                continue
            if results:
                yield _say("user", "\n".join(results))
                results = []
            yield self._with_calls_as_text(message) if "tool_calls" in message else message
        if results:
            yield _say("user", "\n".join(results))

    def _with_calls_as_text(self, message: Message) -> Message:
        functions = [call["function"] for call in message["tool_calls"]]
        calls = self._write_calls([(function["name"], function["arguments"]) for function in functions])
        content = f"{message['content']}\n{calls}" if message["content"] else calls
        return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}


def _probe(sandbox: TemplateSandbox) -> Abilities:
    text_content = _shows(sandbox, [_say("user", "qfirst")], "qfirst") or not _shows(
        sandbox, [_with_parts(_say("user", "qfirst"))], "qfirst"
    )

    def shows(messages: Sequence[Message], *marks: str) -> bool:
        return _shows(sandbox, messages if text_content else [_with_parts(m) for m in messages], *marks)

    early = [_say("system", "qsystem"), _say("user", "qfirst")]
    late = [*early, _say("assistant", "qlast"), _say("system", "qlate"), _say("user", "qmore")]
    function = {"name": "qname", "arguments": {"qkey": "qvalue"}}

    def shows_calls(call_id: str) -> bool:
        called = [
            _say("user", "qfirst"),
            {
                **_say("assistant", ""),
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            },
            {**_say("tool", "qresult"), "tool_call_id": call_id, "name": "qname"},
            _say("assistant", "qlast"),
            _say("user", "qmore"),
        ]
        return shows(called, "qfirst", "qname", "qvalue", "qresult", "qlast")

    long_ids = shows_calls("call_of_any_length")
    asked = [_say("user", "qfirst")]
    return Abilities(
        system=shows(early, "qsystem", "qfirst"),
        late_system=shows(late, "qsystem", "qfirst", "qlast", "qlate", "qmore"),
        developer=re.search(r"""["']developer["']""", sandbox.source) is not None,
        text_content=text_content,
        calls=long_ids or shows_calls("call00001"),
        long_ids=long_ids,
        tools=_shows(
            sandbox,
            asked if text_content else [_with_parts(m) for m in asked],
            "qtool",
            "qparameter",
            tools=[_TOOL],
        ),
    )


_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "qtool",
        "description": "qdescription",
        "parameters": {
            "type": "object",
            "properties": {"qparameter": {"type": "string", "description": "qmeaning"}},
            "required": ["qparameter"],
        },
    },
}


def _shows(
    sandbox: TemplateSandbox,
    messages: Sequence[Message],
    *marks: str,
    tools: Sequence[Message] | None = None,
) -> bool:
    """Whether the template renders these messages with all the marks, in order."""
    try:
        text = sandbox.render(messages, add_generation_prompt=True, tools=tools)
    except TemplateError:
        return False
    return re.search(".*".join(marks), text, re.DOTALL) is not None


def _say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _flat(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise TemplateError("this model takes only text as content")
    return "".join(text for text in texts if text)


def _with_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        if isinstance(parsed, dict):  # what a model wrote need not be JSON
            arguments = parsed
    return {**call, "function": {**function, "arguments": arguments}}


def _with_short_ids(message: Message) -> Message:
    short = dict(message)
    if "tool_calls" in message:
        short["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        short["tool_call_id"] = _short_id(message["tool_call_id"])
    return short


def _short_id(call_id: str) -> str:
    """Nine letters and digits, the same for the same id."""
    if re.fullmatch("[A-Za-z0-9]{9}", call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _with_tools(messages: Sequence[Message], tools: str) -> list[Message]:
    """Behind the first system message, so that what stood there before keeps its cached prefix."""
    if messages[0]["role"] != "system":
        return [_say("system", tools), *messages]
    first = messages[0]
    return [{**first, "content": f"{first['content']}\n\n{tools}"}, *messages[1:]]


def _gather_system(messages: Sequence[Message], *, own_message: bool) -> list[Message]:
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    others = [m for m in messages if m["role"] != "system"]
    if own_message:
        return [_say("system", system), *others]
    first = next((i for i, m in enumerate(others) if m["role"] == "user"), None)
    if first is None:
        return [_say("user", system), *others]
    joined = {**others[first], "content": f"{system}\n\n{others[first]['content']}"}
    return [*others[:first], joined, *others[first + 1 :]]

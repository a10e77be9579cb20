"""A reply with thoughts and calls as OpenAI writes it: deltas of a stream, and a message.

`reasoning_content` is what DeepSeek, vLLM and SGLang call thoughts. Custom tools are streamed as functions are, with
`custom` and `input` in place of `function` and `arguments`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence

from ..chat_template import Message
from ..tools.calls import calls_of
from ..tools.parser import Arguments, CallBegins, Content, Part, Reasoning
from ..tools.render import custom_arguments

Delta = dict[str, object]


class Deltas:
    """The deltas of one choice's stream."""

    def __init__(self) -> None:
        self._kinds: list[str] = []
        """Of the calls so far."""
        self._ids: set[str] = set()
        self.told: list[str] = []
        """The ids of the calls so far."""

    @property
    def calls(self) -> bool:
        """Whether anything was called."""
        return bool(self._kinds)

    def write(self, parts: Iterable[Part]) -> Iterator[Delta]:
        for part in parts:
            match part:
                case Content(text):
                    yield {"content": text}
                case Reasoning(text):
                    yield {"reasoning_content": text}
                case CallBegins(index):
                    self._kinds.append(part.kind)
                    call = _call(part, "", self._ids)
                    self.told.append(str(call["id"]))
                    yield {"tool_calls": [{"index": index, **call}]}
                case Arguments(index, text):
                    kind = self._kinds[index]
                    yield {"tool_calls": [{"index": index, kind: {_FIELD[kind]: text}}]}


def message(parts: Sequence[Part], told: Sequence[str] = ()) -> Delta:
    """All of it as an assistant's message. Without text the content is null if there are calls, else empty. `told` are the ids
    of its calls, as far as a client knows them already."""
    thoughts = "".join([part.text for part in parts if isinstance(part, Reasoning)])
    content = "".join([part.text for part in parts if isinstance(part, Content)])
    ids: set[str] = set()
    calls = [_call(call.begin, call.arguments, ids) for call in calls_of(parts)]
    for call, call_id in zip(calls, told, strict=False):
        call["id"] = call_id
    said = plain_message(content)
    if calls and not content:
        said["content"] = None
    if thoughts:
        said["reasoning_content"] = thoughts
    if calls:
        said["tool_calls"] = calls
    return said


def plain_message(content: str) -> Delta:
    return {"role": "assistant", "content": content, "refusal": None, "annotations": []}


def heard(parts: Sequence[Part], text: str) -> Message:
    """An answer as the history of the next turn has it; of a reply without parts that is its `text`."""
    calls = [
        {
            "type": "function",
            "function": {
                "name": call.begin.name,
                "arguments": call.arguments
                if call.begin.kind == "function"
                else custom_arguments(call.arguments),
            },
        }
        for call in calls_of(parts)
    ]
    thoughts = "".join([part.text for part in parts if isinstance(part, Reasoning)])
    return {
        "role": "assistant",
        "content": text,
        **({"reasoning_content": thoughts} if thoughts else {}),
        **({"tool_calls": calls} if calls else {}),
    }


_FIELD = {"function": "arguments", "custom": "input"}


def _call(begin: CallBegins, arguments: str, ids: set[str]) -> Delta:
    return {
        "id": _new_id(begin.id, ids),
        "type": begin.kind,
        begin.kind: {"name": begin.name, _FIELD[begin.kind]: arguments},
    }


def _new_id(own: str | None, ids: set[str]) -> str:
    """The format's own name for the call, which its models look for in the history, unless it is taken; else one of ours."""
    if own is None or own in ids:
        return f"call_{secrets.token_hex(12)}"
    ids.add(own)
    return own

"""What a chat template writes around what it is given, learned by rendering conversations of known words.

It tells where in a prompt a content stands even if that is a word the template itself uses. A template may write other
things than it was seen to: frames are where to look first, not a promise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .template_sandbox import Message, TemplateError

START = ""

MAX_OPENING = 48
"""Characters: a role between its marks is shorter."""


@dataclass(frozen=True, slots=True)
class Frames:
    """`gaps` by the roles of two neighbours: what stands between their contents, or before the first, the role before which
    is START. `openings` by role: what comes right before a content, without blanks alone; none of them ends with another."""

    gaps: Mapping[tuple[str, str], tuple[str, ...]]
    openings: Mapping[str, tuple[str, ...]]


NO_FRAMES = Frames({}, {})


def learn_frames(render: Callable[[Sequence[Message]], str]) -> Frames:
    """`render` writes messages as prompts of the model are written. Raises nothing: what it refuses teaches nothing."""
    gaps: dict[tuple[str, str], dict[str, None]] = {}
    tails: dict[str, set[str]] = {}
    for conversation in _conversations():
        try:
            text = render(conversation)
        except TemplateError:
            continue
        for before, role, gap in _gaps(text, conversation):
            tail = _WORDS.split(gap)[-1]  # behind a call, or something that was moved there
            tails.setdefault(role, set()).add(tail[-MAX_OPENING:])
            if before is not None and tail == gap:
                gaps.setdefault((before, role), {})[gap] = None
    return Frames(
        {pair: tuple(found) for pair, found in gaps.items()},
        {role: _shortest(found) for role, found in tails.items()},
    )


_WORDS = re.compile(
    r"q(?:first|second|third|fourth|fifth|system|developer|aside|result|other|last|name)|call00001"
)


def _conversations() -> Iterator[list[Message]]:
    turns = [
        _say("user", "qfirst"),
        _say("assistant", "qsecond"),
        _say("user", "qthird"),
        _say("assistant", "qfourth"),
        _say("user", "qfifth"),
    ]
    yield turns
    yield [_say("system", "qsystem"), *turns]
    yield [_say("developer", "qdeveloper"), *turns]
    yield [*turns[:2], _say("system", "qsystem"), turns[2]]
    call = {"id": "call00001", "type": "function", "function": {"name": "qname", "arguments": "{}"}}
    called = [turns[0], _say("assistant", "qaside") | {"tool_calls": [call]}, _result("qresult")]
    yield [*called, turns[2]]
    yield [*called, _result("qother"), _say("assistant", "qlast"), turns[2]]


def _say(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _result(content: str) -> Message:
    return _say("tool", content) | {"tool_call_id": "call00001", "name": "qname"}


def _gaps(text: str, conversation: Sequence[Message]) -> Iterator[tuple[str | None, str, str]]:
    """The role before (None behind a call), the role, and the text between: wherever two contents follow each other."""
    end = 0
    before: str | None = START
    for message in conversation:
        start = text.find(message["content"], end)
        if start < 0:
            return
        yield before, message["role"], text[end:start]
        end = start + len(message["content"])
        before = None if "tool_calls" in message else message["role"]


def _shortest(tails: set[str]) -> tuple[str, ...]:
    shortest: list[str] = []
    for tail in sorted((tail for tail in tails if tail.strip()), key=len):
        if not any(tail.endswith(shorter) for shorter in shortest):
            shortest.append(tail)
    return tuple(shortest)

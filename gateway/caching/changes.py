"""Where two prompts part, and what changed there: whether it was the client, the template or the tokenizer.

The texts say where, what the client sent says what. Both matter: a template may show what did not change in another way,
and may not show what did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import orjson

from ..chat_template import Message
from ..reasoning import REASONING_FORMATS
from ..tokenizer import Tokenizer
from .common import common_characters
from .records import Record
from .relation import related
from .segments import NO_MESSAGE, Span, joined
from .telling import Telling, texts_of
from .volatile import volatile_at

Reason = Literal[
    "hit",
    "partial_hit",
    "cold",
    "in_flight",
    "evicted",
    "expired",
    "flushed",
    "restarted",
    "bypass",
    "model_changed",
    "adapter_changed",
    "namespace_changed",
    "prompt_cache_key_changed",
    "tools_changed",
    "system_changed",
    "message_edited",
    "reasoning_dropped",
    "template_rewrote_history",
    "template_kwargs_changed",
    "retokenized",
    "history_truncated",
    "volatile_pattern",
]

Segment = Literal["prompt", "tools", "system", "message", "reasoning", "tool_call", "template"]

RESYNC = 64
"""Tokens within which two spellings of the same text meet again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a prompt. `part` counts the parts of the message's content, or its calls, or the tools; `char` the characters
    in the part (of the whole prompt where it is no part of anything), and `at` those of the prompt's text. `now` and `was`
    are the part's text in either prompt, as far as it is known."""

    segment: Segment
    message: int | None
    part: int | None
    char: int
    at: int
    now: str | None = field(default=None, repr=False)
    was: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Change:
    reason: Reason
    detail: Mapping[str, object]
    place: Place


def find_change(
    record: Record, baseline: Record, common: int, tokenizer: Tokenizer, *, guessed: bool = False
) -> Change | None:
    """What is behind it that a prompt and an older one (with its answer) part after so many tokens.

    None only where it was `guessed` that they have to do with each other, and they have not.
    """
    if guessed and not related(record, baseline):
        return None
    now, was = Telling(record, tokenizer), Telling(baseline, tokenizer)
    compared = _Compared(now, was, _parting(now, was, common))
    if _respelled(now, was, common):
        return compared.retokenized(common)
    if now.messages is None or was.messages is None:
        return compared.volatile(compared.prompt())
    return compared.volatile(compared.change())


def _parting(now: Telling, was: Telling, common: int) -> int:
    """From which character on the texts differ; or mean something else, if one has a mark there that the other spells."""
    marks = [now.tokenizer.is_special(side.token(common)) for side in (now, was)]
    return now.tokens.char_at(common) if any(marks) else common_characters(now.text, was.whole)


def _respelled(now: Telling, was: Telling, common: int) -> bool:
    """Whether from there on other tokens say the same, until both go on in step.

    What is a mark in one and the same characters as text in the other is not the same.
    """
    table = now.tokenizer.byte_table(skip_special=False)
    ours = memoryview(now.record.ids).cast("I")[common : common + RESYNC]
    theirs = memoryview(was.record.whole).cast("I")[common : common + RESYNC]
    if any(now.tokenizer.is_special(side.token(common)) for side in (now, was)):
        return False
    one = other = b""
    i = j = 0
    while i < len(ours) and j < len(theirs):
        if len(one) <= len(other):
            one += table[ours[i]]
            i += 1
        else:
            other += table[theirs[j]]
            j += 1
        if one == other:
            return bool(one)
        if not (one.startswith(other) or other.startswith(one)):
            return False
    return False


class _Held(NamedTuple):
    side: Telling
    span: Span


@dataclass(slots=True)
class _Compared:
    """Two prompts whose texts are the same up to `char`, of which one went on with its answer."""

    now: Telling
    was: Telling
    char: int

    # -- what it may be ------------------------------------------------------------------------------------------------

    def retokenized(self, common: int) -> Change:
        at = self.now.tokens.char_at(common)
        place = self._place_at(at)
        if common >= self.was.record.tokens and self.was.messages is not None:
            place = replace(place, message=len(self.was.messages))
        return Change("retokenized", {"message": place.message, "token": common}, place)

    def prompt(self) -> Change:
        """Of a completion."""
        place = Place("prompt", None, None, self.char, self.char, self.now.text, self.was.text)
        return Change("message_edited", {"message": None}, place)

    def change(self) -> Change:
        """Of a chat: by whose words it is, then by what is known to differ, and else it was the template."""
        for held in self._held():
            if held.span.kind == "tool" and self._tools_differ:
                return self._tools()
            if held.span.kind != "tool" and self._differs(held.span.message):
                return self._message(held.span.message, held)
        first = self._first
        if first is not None and self._may_be_in(first):
            return self._message(first, None)
        if self._tools_differ:
            return self._tools()
        place = self._place_at(self.char)
        if self.now.record.variables != self.was.record.variables:
            return Change("template_kwargs_changed", {"variables": self._variables()}, place)
        return Change("template_rewrote_history", {"message": place.message}, place)

    def volatile(self, change: Change) -> Change:
        """The same, unless what changed does so each time."""
        if change.reason in ("history_truncated", "reasoning_dropped", "template_kwargs_changed"):
            return change
        found = volatile_at(self.now.text, self.was.whole, self.char)
        if found is None:
            return change
        place = change.place
        detail = {"kind": found.kind, "message": place.message, "in": change.reason}
        return Change("volatile_pattern", detail, place)

    # -- whose words ---------------------------------------------------------------------------------------------------

    def _held(self) -> list[_Held]:
        """What holds the place in either text; then what ends right before it."""
        found = [
            *((side, side.segments.at(self.char)) for side in (self.now, self.was)),
            *((side, side.span_at(self.char)) for side in (self.now, self.was)),
        ]
        return [_Held(side, span) for side, span in found if span is not None]

    @property
    def _first(self) -> int | None:
        """The first message that is another one, or is there on one side only."""
        ours, theirs = self.now.messages or (), self.was.messages or ()
        for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
            if a != b:
                return index
        return None if len(ours) == len(theirs) else min(len(ours), len(theirs))

    def _differs(self, index: int) -> bool:
        return self.now.message(index) != self.was.message(index)

    @property
    def _tools_differ(self) -> bool:
        return self.now.tools != self.was.tools

    def _may_be_in(self, index: int) -> bool:
        """Whether the place is among words of the message that were not found in the text."""
        return any(self._unfound(side, index) for side in (self.now, self.was))

    def _unfound(self, side: Telling, index: int) -> bool:
        message = side.message(index)
        if message is not None and message["role"] != "assistant" and side.segments.find("content", index):
            return False  # all of it was found
        begin, end = side.around(index)
        return begin <= self.char <= end

    # -- the causes ----------------------------------------------------------------------------------------------------

    def _message(self, index: int, held: _Held | None) -> Change:
        ours, theirs = self.now.message(index), self.was.message(index)
        if ours is not None and theirs is None:
            return self._answer(index, ours, held)
        moved = self._moved(index)
        if ours is None or theirs is None or moved is not None:
            place = Place("message", index, None, 0, self.char)
            return Change("history_truncated", {"message": index, **(moved or {})}, place)
        place = self._place_in(index, held)
        if theirs.get("reasoning_content") and not ours.get("reasoning_content"):
            thought = self.was.segments.find("reasoning", index)
            if thought is not None and self.char <= thought.end:
                return _dropped(index, place)
        if place.segment == "system":
            return Change("system_changed", {"message": index}, place)
        return Change("message_edited", {"message": index, "role": ours["role"]}, place)

    def _answer(self, index: int, message: Message, held: _Held | None) -> Change:
        """The message is what came of the answer to the older request."""
        place = self._place_in(index, held)
        if message["role"] != "assistant":
            return Change("history_truncated", {"message": index, "removed": 1}, place)
        if self.char < self._thoughts_end():
            thoughts = message.get("reasoning_content")
            if not thoughts:
                return _dropped(index, place)
            kept = place.segment != "reasoning" or thoughts.strip() in self.was.answer
        else:
            kept = held is None or self._as_answered(message, held)
        if kept:
            return Change("template_rewrote_history", {"message": index}, place)
        return Change("message_edited", {"message": index, "role": "assistant"}, place)

    def _as_answered(self, message: Message, held: _Held) -> bool:
        """Whether the client sent that part just as it had been answered."""
        span = held.span
        if span.kind == "call":
            arguments = message["tool_calls"][span.part]["function"]["arguments"]
            return isinstance(arguments, str) and arguments.strip() in self.was.answer
        if joined(message["content"]).strip() not in self.was.answer:
            return False
        more = self.was.tokenizer.specials.split(self.was.whole[self.char :])
        all_of_it = not "".join(piece for piece in more if isinstance(piece, str)).strip()
        return self.char < span.end or "tool_calls" in message or all_of_it

    def _thoughts_end(self) -> int:
        """Where the thoughts of the older request's answer end in its text; 0 if it has none."""
        begin = max(len(self.was.text) - TAIL, 0)
        ends = [
            place + len(marks.close)
            for marks in REASONING_FORMATS.values()
            if (place := self.was.whole.find(marks.close, begin)) >= 0
        ]
        return max(ends, default=0)

    def _moved(self, index: int) -> dict[str, object] | None:
        """If the history goes on as the older one did some messages later: how many are missing."""
        ours, theirs = self.now.messages or (), self.was.messages or ()
        rest = ours[index:]
        if rest[1:2] == theirs[index + 1 : index + 2] and len(rest) > 1:
            return None  # it goes on as if this one were the other
        for later in range(index + 1, len(theirs)):
            if rest and rest[0] == theirs[later] and _same_start(rest, theirs[later:]):
                return {"removed": later - index}
        for later in range(index + 2, len(theirs)):
            if len(rest) > 1 and rest[1] == theirs[later] and _same_start(rest[1:], theirs[later:]):
                return {"removed": later - index, "replaced_by": 1}
        return None

    def _tools(self) -> Change:
        ours, theirs = self.now.tools, self.was.tools
        index = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
            min(len(ours), len(theirs)),
        )
        one = ours[index] if index < len(ours) else None
        other = theirs[index] if index < len(theirs) else None
        change, tool = _tool_change(ours, theirs, one, other)
        char = common_characters(one or "", other or "")
        place = Place("tools", None, index, char, self.char, one, other)
        return Change("tools_changed", {"change": change, "tool": tool}, place)

    def _variables(self) -> list[str]:
        ours, theirs = self.now.variables, self.was.variables
        return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))

    # -- places --------------------------------------------------------------------------------------------------------

    def _place_in(self, index: int, held: _Held | None) -> Place:
        """In a message that changed: what part of it, and from which of its characters on."""
        if held is None:
            return Place(self._segment(index), index, None, 0, self.char)
        span = held.span
        char = self.char - span.start + span.skipped
        if span.kind == "content":
            return self._place_in_content(index, held, char)
        now, was = (side.shown(side.segments.find(*span[:3])) for side in (self.now, self.was))
        if now is not None and was is not None:
            char = common_characters(now, was)
        if span.kind == "reasoning":
            return Place("reasoning", index, None, char, self.char, now, was)
        return Place("tool_call", index, span.part, char, self.char, now, was)

    def _place_in_content(self, index: int, held: _Held, char: int) -> Place:
        ours, theirs = self.now.message(index), self.was.message(index)
        char += sum(map(len, texts_of(held.side.message(index))[: held.span.part]))
        now, was = "".join(texts_of(ours)), "".join(texts_of(theirs))
        same = common_characters(now, was)
        if theirs is not None and same in (len(now), len(was)):
            char = min(char, same)  # the text went on with what the template says as the other content does
        part, char = _part_at(texts_of(ours or theirs), char)
        return Place(
            self._segment(index), index, part, char, self.char, _text_of(ours, part), _text_of(theirs, part)
        )

    def _place_at(self, at: int) -> Place:
        """In words that nobody changed: a part's, or the template's around the next one."""
        span = self.now.span_at(at)
        if span is None:
            following = self.now.segments.after(at) or self.now.segments.before(at)
            message = None if following is None or following.message == NO_MESSAGE else following.message
            return Place("template", message, None, at, at)
        if span.kind == "tool":
            return Place("tools", None, span.part, at - span.start, at)
        char = at - span.start + span.skipped
        if span.kind == "content":
            return Place(self._segment(span.message), span.message, span.part, char, at)
        if span.kind == "reasoning":
            return Place("reasoning", span.message, None, char, at)
        return Place("tool_call", span.message, span.part, char, at)

    def _segment(self, index: int) -> Segment:
        if self.now.messages is None:
            return "prompt"
        message = self.now.message(index) or self.was.message(index)
        return "system" if message is not None and message["role"] in ("system", "developer") else "message"


TAIL = 64
"""Characters at the end of a prompt in which a template may have opened thoughts."""


def _text_of(message: Message | None, part: int) -> str | None:
    texts = texts_of(message)
    return texts[part] if part < len(texts) else None


def _part_at(texts: Sequence[str], char: int) -> tuple[int, int]:
    """The part that holds a character of them all, the last if none does; and which of its characters that is."""
    for part, text in enumerate(texts[:-1]):
        if char < len(text):
            return part, char
        char -= len(text)
    return max(len(texts) - 1, 0), char


def _dropped(index: int, place: Place) -> Change:
    return Change(
        "reasoning_dropped", {"message": index}, replace(place, segment="reasoning", part=None, char=0)
    )


def _same_start(one: Sequence[Message], other: Sequence[Message]) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))


def _tool_change(
    ours: list[str], theirs: list[str], one: str | None, other: str | None
) -> tuple[str, str | None]:
    """What happened to the tools, and the name of the first that it happened to."""
    names, before = [_name(line) for line in ours], [_name(line) for line in theirs]
    mine, known = (None if line is None else _name(line) for line in (one, other))
    if mine is not None and mine == known:
        return "schema", mine
    if sorted(names, key=str) == sorted(before, key=str):
        return "reordered", mine
    if mine is not None and mine not in before:
        return "added", mine
    if known is not None and known not in names:
        return "removed", known
    return "reordered", mine if mine is not None else known


def _name(line: str) -> Any:
    return orjson.loads(line)["function"]["name"]

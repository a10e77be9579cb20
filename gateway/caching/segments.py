"""Where in a rendered prompt everything stands that a client sent, in characters; and which tokens spell which characters.

A template may strip what it is given, move it or leave it out, and what is said twice stands twice. Contents are looked
for in their order, behind what the template was seen to write before them; what is not found so is looked for between
its neighbours; what is not found there either has no span. Nothing here is a promise about a template: a span says that
these characters are those of the part, no more.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from ..chat_template import Message, Rendered, ToolPrompt
from ..frames import START, Frames
from ..reasoning import REASONING_FORMATS
from ..template_sandbox import to_json
from ..tokenizer import Tokenizer

Kind = Literal["tool", "content", "reasoning", "call"]

NO_MESSAGE = -1

SEARCHES = 4
"""Characters that may be looked through in vain, in lengths of the prompt: what is found costs the prompt once."""


class Span(NamedTuple):
    """Characters `start` to `end` of a prompt are those of a part of a message from its character `skipped` on: the
    template left out what is before, and perhaps blanks behind.

    `part` counts the content's parts, the message's calls (whose arguments it is), or the tools.
    """

    kind: Kind
    message: int
    part: int
    start: int
    end: int
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Segments:
    """`spans` do not overlap and are in the order of the text, which has `length` characters."""

    length: int
    spans: tuple[Span, ...] = ()

    def find(self, kind: Kind, message: int, part: int = 0) -> Span | None:
        return next((s for s in self.spans if s[:3] == (kind, message, part)), None)

    def at(self, char: int) -> Span | None:
        """What holds this character; None for the template's own words."""
        span = self.before(char)
        return span if span is not None and char < span.end else None

    def before(self, char: int) -> Span | None:
        """The last span that begins at or before this character."""
        index = bisect_right(self.spans, char, key=lambda span: span.start)
        return self.spans[index - 1] if index else None

    def after(self, char: int) -> Span | None:
        """The first span that begins behind this character."""
        index = bisect_right(self.spans, char, key=lambda span: span.start)
        return self.spans[index] if index < len(self.spans) else None


def locate(prompt: Rendered, messages: Sequence[Message], tools: ToolPrompt | None = None) -> Segments:
    """Where these messages and tools stand in the prompt that was made of them. Linear; tens of microseconds for a usual
    chat. Contents may be strings or lists of text parts."""
    search = _Search(prompt.text, prompt.frames)
    spans = [*search.contents(messages)]
    spans += search.besides(messages, spans)
    if tools is not None:
        spans += search.tools(tools.lines)
    spans.sort(key=lambda span: (span.start, span.end))
    return Segments(len(prompt.text), tuple(_disjoint(spans)))


def plain(text: str) -> Segments:
    """A prompt of a completion: one part."""
    return Segments(len(text), (Span("content", 0, 0, 0, len(text)),) if text else ())


@dataclass(slots=True)
class _Search:
    text: str
    frames: Frames
    left: int = field(init=False)
    """How many characters may still be looked through in vain."""

    def __post_init__(self) -> None:
        self.left = SEARCHES * len(self.text) + 4096

    def contents(self, messages: Sequence[Message]) -> Iterator[Span]:
        """The contents that are found; in order but for system messages that the template puts first."""
        found: list[_Found | None] = []
        cursor = 0
        before: str | None = START
        for message in messages:
            place = self._next(message, before, cursor)
            found.append(place)
            if place is not None:
                cursor = place.end
            before = None if place is None or "tool_calls" in message else message["role"]
        self._look_between(messages, found)
        for index, (message, place) in enumerate(zip(messages, found, strict=True)):
            if place is not None and place.end > place.start:
                yield from _parts(index, message["content"], place)

    def besides(self, messages: Sequence[Message], contents: Sequence[Span]) -> Iterator[Span]:
        """Thoughts and calls: around the content of their message, before and behind what belongs to others."""
        edges = {span.message: (span.start, span.end) for span in reversed(contents)}
        for span in contents:
            edges[span.message] = (edges[span.message][0], span.end)
        following = _following(len(messages), edges, len(self.text))
        end = 0
        for index, message in enumerate(messages):
            mine = edges.get(index)
            if "reasoning_content" in message or "tool_calls" in message:
                stop = following[index]
                if thoughts := message.get("reasoning_content"):
                    place = self._within(thoughts, end, stop if mine is None else mine[0])
                    if place is not None:
                        yield Span("reasoning", index, 0, place.start, place.end, place.skipped)
                        end = place.end
                if mine is not None:
                    end = max(end, mine[1])
                for part, call in enumerate(message.get("tool_calls") or ()):
                    place = self._arguments(call["function"].get("arguments"), end, stop)
                    if place is not None:
                        yield Span("call", index, part, place.start, place.end)
                        end = place.end
            if mine is not None:
                end = max(end, mine[1])

    def tools(self, lines: Sequence[str]) -> Iterator[Span]:
        """The definitions that are shown as JSON, as most templates do."""
        cursor = 0
        for part, line in enumerate(lines):
            start = self._find(line, cursor, len(self.text))
            if start >= 0:
                cursor = start + len(line)
                yield Span("tool", NO_MESSAGE, part, start, cursor)

    # -- one content ---------------------------------------------------------------------------------------------------

    def _next(self, message: Message, before: str | None, cursor: int) -> _Found | None:
        """Where it stands behind something the template was seen to write."""
        role, content = message["role"], joined(message["content"])
        for gap in () if before is None else self.frames.gaps.get((before, role), ()):
            if self.text.startswith(gap, cursor):
                start = cursor + len(gap)
                for skipped, shown in _shown(content):
                    if self.text.startswith(shown, start):
                        return _Found(start, start + len(shown), skipped)
        if not content:
            return None
        openings = self.frames.openings.get(role, ())
        for skipped, shown in _shown(content) if openings else ():
            starts = [self._find(opening + shown, cursor, len(self.text)) for opening in openings]
            places = [
                start + len(opening) for start, opening in zip(starts, openings, strict=True) if start >= 0
            ]
            if places:
                return _Found(min(places), min(places) + len(shown), skipped)
        return None

    def _look_between(self, messages: Sequence[Message], found: list[_Found | None]) -> None:
        """What was not found in its frame is looked for between its neighbours, and a system message before all others."""
        following = _following(
            len(found), {i: (p.start, p.end) for i, p in enumerate(found) if p is not None}, len(self.text)
        )
        end = 0
        for index, message in enumerate(messages):
            if found[index] is None and (content := joined(message["content"])):
                found[index] = self._within(content, end, following[index])
                if found[index] is None and message["role"] in ("system", "developer"):
                    found[index] = self._within(content, 0, _first(found, messages, len(self.text)))
            if (place := found[index]) is not None:
                end = max(end, place.end)

    def _within(self, content: str, start: int, stop: int) -> _Found | None:
        for skipped, shown in _shown(content):
            place = self._find(shown, start, stop)
            if place >= 0:
                return _Found(place, place + len(shown), skipped)
        return None

    def _arguments(self, arguments: object, start: int, stop: int) -> _Found | None:
        """As they were sent, or as templates write JSON."""
        if not isinstance(arguments, str) or not arguments:
            return None
        place = self._find(arguments, start, stop)
        if place >= 0:
            return _Found(place, place + len(arguments), 0)
        try:
            shown = to_json(json.loads(arguments))
        except (ValueError, RecursionError):
            return None
        place = self._find(shown, start, stop)
        return None if place < 0 else _Found(place, place + len(shown), 0)

    def _find(self, what: str, start: int, stop: int) -> int:
        if self.left < 0:
            return -1
        place = self.text.find(what, start, stop)
        if place < 0:
            self.left -= max(stop - start, 0)
        return place


class _Found(NamedTuple):
    start: int
    end: int
    skipped: int


def joined(content: Any) -> str:
    """A content in one piece."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def _shown(content: str) -> Iterator[tuple[int, str]]:
    """As templates show a content, from which of its characters on: whole, without blanks around it, or without the
    thoughts that some models leave in it."""
    yield 0, content
    core = content.strip()
    if core and len(core) < len(content):
        yield content.find(core[0]), core
        yield 0, content.rstrip()
    for marks in REASONING_FORMATS.values():
        if marks.close in content:
            answer = content.rpartition(marks.close)[2].strip()
            if answer:
                yield content.rfind(answer), answer


def _parts(index: int, content: Any, place: _Found) -> Iterator[Span]:
    """The parts of a content of which the characters from `place.skipped` on are shown."""
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    shown = place.skipped + place.end - place.start
    begin = 0
    for part, text in enumerate(texts):
        start, end = max(begin, place.skipped), min(begin + len(text), shown)
        if start < end:
            shift = place.start - place.skipped
            yield Span("content", index, part, start + shift, end + shift, start - begin)
        begin += len(text)


def _following(count: int, edges: dict[int, tuple[int, int]], length: int) -> list[int]:
    """For each message where the content of the next that was found begins."""
    following = [length] * count
    for index in range(count - 2, -1, -1):
        edge = edges.get(index + 1)
        following[index] = following[index + 1] if edge is None else edge[0]
    return following


def _first(found: Sequence[_Found | None], messages: Sequence[Message], length: int) -> int:
    """Where the first content begins that is not a system message."""
    return next(
        (
            place.start
            for place, message in zip(found, messages, strict=True)
            if place is not None and message["role"] not in ("system", "developer")
        ),
        length,
    )


def _disjoint(spans: Sequence[Span]) -> Iterator[Span]:
    end = 0
    for span in spans:
        if span.start >= end:
            yield span
            end = span.end


# -- tokens ------------------------------------------------------------------------------------------------------------


class TokenMap:
    """Which tokens of a prompt spell which characters of its text. Made on demand: it costs some ten nanoseconds a token."""

    def __init__(self, ids: Sequence[int], text: str, tokenizer: Tokenizer) -> None:
        self._text = text
        self._ascii = text.isascii()
        self._ends = _ends(ids, text, tokenizer.byte_table(skip_special=False))

    def token_at(self, char: int) -> int:
        """How many tokens end at or before this character: the last boundary at or before it."""
        place = char if self._ascii else len(self._text[:char].encode("utf-8", "surrogatepass"))
        return bisect_right(self._ends, place)

    def char_at(self, token: int) -> int:
        """Where the token begins: the character it begins in, if that is in the middle of one."""
        place = self._ends[token - 1] if token else 0
        if self._ascii:
            return min(place, len(self._text))
        return len(self._text.encode("utf-8", "surrogatepass")[:place].decode("utf-8", "ignore"))


def _ends(ids: Sequence[int], text: str, table: Sequence[bytes]) -> list[int]:
    """At which byte of the text each token ends. A tokenizer may normalise the text and put spaces before words, so that
    its tokens do not spell it to the byte: then they are found in it one after the other."""
    raw = list(map(table.__getitem__, ids))
    data = text.encode("utf-8", "surrogatepass")
    if b"".join(raw) == data:
        return list(accumulate(map(len, raw)))
    ends: list[int] = []
    end = 0
    for piece in raw:
        end = _end_of(piece, data, end)
        ends.append(end)
    return ends


REACH = 64
"""Bytes that a normaliser may have changed before a token is found again."""


def _end_of(piece: bytes, data: bytes, start: int) -> int:
    if data.startswith(piece, start):
        return start + len(piece)
    bare = piece.removeprefix(b" ")
    if len(bare) < len(piece) and data.startswith(bare, start):
        return start + len(bare)
    place = data.find(bare, start, start + REACH) if len(bare) > 1 else -1
    return start if place < 0 else place + len(bare)

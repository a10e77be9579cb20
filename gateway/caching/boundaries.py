"""Where in a prompt entries may stand: the tokens before a boundary do not depend on what comes behind it.

A breakpoint marks the end of a part of a message, which need not be the end of a token: more text might have been joined to
its last word. So a boundary is the last end of a token up to which the part's text is tokenised in one way, whatever follows.
Then whoever agrees up to that part begins with the same tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from ..chat_template import Message, Rendered
from ..tokenizer import Tokenizer
from .ask import CacheAsk, Mark
from .segments import NO_MESSAGE, Segments, TokenMap

EXPLICIT_MARKS = 4
"""So many breakpoints of a request count, the latest; with an implicit one there is one less."""

REACH = 16
"""Tokens before a boundary that what follows may change; words are shorter, and where there are no blanks between words a
token depends on its neighbours only."""


class Breakpoint(NamedTuple):
    """A breakpoint at the end of a part of a message, or of a tool where the message is NO_MESSAGE. `ttl` in seconds; None is the request's."""

    message: int
    part: int
    ttl: float | None = None


class Boundaries:
    """Those of one prompt. `segments` says where the parts of its messages stand in it."""

    def __init__(self, prompt: Rendered, segments: Segments, tokenizer: Tokenizer) -> None:
        self._prompt = prompt
        self._segments = segments
        self._tokenizer = tokenizer
        self._map = TokenMap(prompt.ids, prompt.text, tokenizer)

    def marks(
        self, ask: CacheAsk, breakpoints: Sequence[Breakpoint], messages: Sequence[Message]
    ) -> list[Mark]:
        """Where the entries of a chat are to stand: at its breakpoints, and in implicit mode at the end of the latest
        message that a later request is likely to share."""
        wanted = list(breakpoints)[-EXPLICIT_MARKS:]
        if ask.mode == "implicit" and ask.implicit_mark:
            implicit = implicit_breakpoint(messages)
            wanted = [*wanted[1 - EXPLICIT_MARKS :], *([] if implicit is None else [implicit])]
        return [Mark(tokens, place.ttl) for place in wanted if (tokens := self.tokens(place))]

    def tokens(self, place: Breakpoint) -> int:
        """How many tokens are before it; 0 if the prompt shows nothing of what is before it."""
        end = self._end(place)
        return self._settled(end) if end else 0

    def _end(self, place: Breakpoint) -> int:
        """The character behind the part, or behind what is shown of the parts before it: a part may be empty or left out."""
        kind = "tool" if place.message == NO_MESSAGE else "content"
        at_or_before = [
            span.end
            for span in self._segments.spans
            if span.kind == kind and (span.message, span.part) <= (place.message, place.part)
        ]
        return max(at_or_before, default=0)

    def _settled(self, end: int) -> int:
        """The last boundary at or before the character `end` that nothing behind it could move.

        Tokenizers cut a text into words, numbers, blanks and runs of other characters, perhaps with one more character before
        them, and tokenise each by itself. So what may change is the run that the character ends, and one before it.
        """
        last = self._map.token_at(end)
        first = max(0, last - REACH)
        for index in range(last - 1, first - 1, -1):
            if self._tokenizer.is_special(self._prompt.ids[index]):
                first = index + 1  # what is before a special token is tokenised by itself
                break
        text, begin = self._prompt.text, self._map.char_at(first)
        end -= self._tokenizer.unfinished(text[begin:end])
        start = max(end - 1, 0)
        while start > begin and _kind(text[start - 1]) == _kind(text[end - 1]):
            start -= 1
        return max(first, self._map.token_at(max(start - 1, 0)))


def implicit_breakpoint(messages: Sequence[Message]) -> Breakpoint | None:
    """At the end of the latest of: a user's message, the last of a run of tools' results, the last of the system's messages
    that the conversation begins with. None if there is none."""
    opening = next(
        (i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")),
        len(messages),
    )
    for index in range(len(messages) - 1, -1, -1):
        role = messages[index]["role"]
        if role in ("user", "tool") or index == opening - 1:
            content = messages[index]["content"]
            return Breakpoint(index, len(content) - 1 if isinstance(content, list) else 0)
    return None


def _kind(char: str) -> str:
    """What tokenizers tell apart: blanks, numbers, letters with what modifies them, and the rest."""
    if char.isspace():
        return " "
    category = unicodedata.category(char)[0]
    return category if category == "N" else "L" if category in "LM" else "."

"""Which token of a reply said what: tokens wait until the parser has made something of their characters.

The marks of a format are found some tokens later, and only what became content has log-probabilities to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import TokenLogprob

from .pieces import TokenDetail
from .tools.parser import Content, Part, Reasoning


class Attribution:
    """`reasoning` counts the tokens of thoughts, with the mark that opened them if the model wrote it."""

    __slots__ = ("_offset", "_waiting", "reasoning")

    def __init__(self) -> None:
        self.reasoning = 0
        self._waiting: list[_Token] = []
        self._offset = 0

    def add(self, token: int, length: int, logprob: TokenLogprob | None, *, shown: bool) -> None:
        """A token that completed so many characters, as the parser counts them. `shown`: its detail is asked for."""
        self._waiting.append(_Token(token, length, logprob, shown))

    def complete(self, length: int) -> None:
        """So many characters were made of what tokens before had begun and never ended."""
        if not length:
            return
        if not self._waiting:  # the token that began them had ended others, and was told of with those
            self._waiting.append(_Token(-1, 0, None, shown=False, thought=True))
        self._waiting[-1].length += length

    def settle(self, parts: Sequence[Part], held: int) -> list[TokenDetail]:
        """The tokens all of whose characters are in these parts, or before, when the parser holds so many back."""
        if not parts:
            return []
        end = sum([token.length for token in self._waiting]) - held
        content = sum([len(part.text) for part in parts if isinstance(part, Content)])
        begin = end - content  # a token is too short for content and a whole call behind it
        thought = any(isinstance(part, Reasoning) for part in parts)
        place = whole = 0
        for token in self._waiting:
            if place >= end:
                break
            if content and place + max(token.length, 1) > begin:
                token.said_content = True
            self.reasoning += thought and not token.thought
            token.thought |= thought
            place += token.length
            if place <= end:
                whole += 1
        settled = [detail for token in self._waiting[:whole] for detail in self._detail(token)]
        del self._waiting[:whole]
        return settled

    def rest(self) -> list[TokenDetail]:
        """The tokens that still wait when the reply is over."""
        return [detail for token in self._waiting for detail in self._detail(token)]

    def _detail(self, token: _Token) -> list[TokenDetail]:
        offset = self._offset
        self._offset += token.length
        logprob = token.logprob if token.said_content else None
        return [TokenDetail(token.id, offset, logprob)] if token.shown else []


@dataclass(slots=True)
class _Token:
    id: int
    length: int
    logprob: TokenLogprob | None
    shown: bool
    said_content: bool = False
    thought: bool = False

"""One sequence's place in its grammar: what a cursor knows, and the tokens that end the sequence."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .backends.base import Bits, Compiled
from .errors import DeadEnd, MatcherError
from .vocabulary import Vocabulary


class Matcher:
    """For one thread at a time. After a MatcherError from anything but `accept` it is of no more use."""

    __slots__ = ("_accepted", "_bits", "_cursor", "_end_tokens", "ended")

    def __init__(self, compiled: Compiled, end_tokens: Collection[int], vocabulary: Vocabulary) -> None:
        """`end_tokens` end the sequence where the grammar lets the text end. They may spell text: then they are part of
        it wherever the grammar wants that text and the text may not end."""
        self._cursor = compiled.start()
        self._end_tokens = tuple(token for token in end_tokens if 0 <= token < vocabulary.size)
        self._bits = [(token // 32, np.uint32(1 << token % 32).view(np.int32)) for token in self._end_tokens]
        self._accepted = 0
        self.ended = False
        """An end token has been accepted."""

    @property
    def accepting(self) -> bool:
        """The text may end here."""
        return self._cursor.accepting()

    @property
    def complete(self) -> bool:
        """The text has to end here: it may, and no other token may follow, as far as the backend knows without a mask."""
        return self._cursor.accepting() and self._cursor.exhausted()

    def fill(self, row: Bits) -> None:
        """Overwrite `row` with the tokens that may come next, end tokens among them if the text may end here.

        Raises DeadEnd if there are none: always once the sequence has ended.
        """
        if self.ended:
            raise DeadEnd("the text has ended")
        self._cursor.fill(row)
        if self._cursor.accepting():
            for word, bit in self._bits:
                row[word] |= bit
        if not row.any():
            raise DeadEnd("the grammar allows no token to follow")

    def accept(self, token: int) -> None:
        """Go on by a token. Raises MatcherError and changes nothing if it may not come next."""
        if self.ended:
            raise MatcherError(f"token {token} comes after the end of the text")
        if token in self._end_tokens and self._cursor.accepting():
            self.ended = True
        elif not self._cursor.accept(token):
            raise MatcherError(f"the grammar does not allow token {token} here")
        self._accepted += 1

    def forced(self) -> tuple[int, ...]:
        """The tokens that must come next, an end token last if it is known that nothing else may follow them.

        Accepts none, and computes no mask: it is asked between two steps.
        """
        if self.ended:
            return ()
        tokens: list[int] = []
        for token in self._cursor.forced():
            if not self._cursor.accept(token):
                break
            tokens.append(token)
        if not tokens:
            return self._end_tokens[:1] if self.complete else ()
        complete = self.complete
        self._cursor.rollback(len(tokens))
        return (*tokens, *self._end_tokens[:1]) if complete else tuple(tokens)

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens, the end token counted."""
        if not 0 <= count <= self._accepted:
            raise MatcherError(f"{count} tokens cannot be taken back of {self._accepted}")
        if count == 0:
            return
        self._accepted -= count
        if self.ended:
            self.ended = False
            count -= 1
        if count:
            self._cursor.rollback(count)

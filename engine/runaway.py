"""Values that a model would never end: it repeats itself inside a string, or writes digit after digit.

A model that is free breaks out of such a loop by ending its answer. Under a grammar it may not, and a small one then goes
on until its tokens are spent and what it wrote is no JSON. So a string that has gone round in circles for a while may only
go on to its end, and a number that has more digits than any program keeps may only go on without another. Both stay what
the grammar allows; nothing is done where it leaves no way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from grammar.backends.base import Bits
from grammar.spec import Concat, Either, Grammar, JsonSchema, Repeat
from grammar.vocabulary import Vocabulary

SPAN = 48
"""Tokens that a passage and its repetitions have to cover, before anything is done about them."""

REPEATS = 4
LONGEST = 64
"""The tokens of the longest passage that is looked for."""

TAIL = REPEATS * LONGEST
"""Tokens that a look at the end of an answer takes in."""

DIGITS = 32
"""Tokens of nothing but digits in a row: a double keeps 17 digits (IEEE 754)."""


@dataclass(frozen=True, slots=True)
class RunawayGuard:
    """Bits of masks: tokens with a quotation mark in them, and tokens that begin with a digit."""

    quoting: Bits
    numeric: Bits
    digits: frozenset[int]
    quote: int | None
    letter: int | None
    newline: int | None

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> RunawayGuard:
        tokens = vocabulary.tokens
        spelled = {token: number for number, token in enumerate(tokens) if token in (b'"', b"a", b"\n")}
        return cls(
            quoting=_bits((i for i, token in enumerate(tokens) if b'"' in token), vocabulary.words),
            numeric=_bits((i for i, token in enumerate(tokens) if token[:1].isdigit()), vocabulary.words),
            digits=frozenset(i for i, token in enumerate(tokens) if token.isdigit()),
            quote=spelled.get(b'"'),
            letter=spelled.get(b"a"),
            newline=spelled.get(b"\n"),
        )

    def restrain(self, row: Bits, tail: Sequence[int]) -> bool:
        """Take from the mask what would carry on a value without an end; whether there was one. `tail` are the latest
        tokens of the answer, at most TAIL of them; the answer may not end here."""
        if self.quote is None or self.letter is None or self.newline is None or len(tail) < DIGITS:
            return False
        if _allows(row, self.quote) and _allows(row, self.letter):
            if _allows(row, self.newline):
                return False  # a string has its line breaks escaped: these are thoughts, or text beside calls
            return goes_round(tail) and _keep(row, row & self.quoting)
        in_digits = all(token in self.digits for token in tail[-DIGITS:])
        return in_digits and _keep(row, row & ~self.numeric)


def goes_round(tail: Sequence[int]) -> bool:
    """Whether the tokens end in one passage, repeated at least REPEATS times and over SPAN tokens."""
    last = len(tail) - 1
    for period in range(1, min(LONGEST, len(tail) // REPEATS) + 1):
        needed = max(REPEATS * period, SPAN)
        if needed > len(tail) or tail[last] != tail[last - period]:
            continue
        if all(tail[i] == tail[i - period] for i in range(last, last - needed + period, -1)):
            return True
    return False


def has_values(grammar: Grammar) -> bool:
    """Whether any of it is JSON: elsewhere a quotation mark ends nothing."""
    match grammar:
        case JsonSchema():
            return True
        case Concat(parts=nodes) | Either(options=nodes):
            return any(map(has_values, nodes))
        case Repeat(part=part):
            return has_values(part)
        case _:
            return False


def _allows(row: Bits, token: int) -> bool:
    return bool(row[token // 32] >> (token % 32) & 1)


def _keep(row: Bits, kept: Bits) -> bool:
    """Make the mask what is kept of it, unless that is nothing."""
    if not kept.any():
        return False
    row[:] = kept
    return True


def _bits(tokens: Iterable[int], words: int) -> Bits:
    bits = np.zeros(words * 32, dtype=np.uint8)
    bits[list(tokens)] = 1
    packed: Bits = np.packbits(bits, bitorder="little").view(np.int32)
    return packed

"""Trees with special tokens, for an engine that knows texts only: cut at those tokens, and followed piece by piece.

A way through a tree is a row of segments, grammars without special tokens, with one such token between two of them. A
tree has several ways where the tokens are optional. All of them are followed at once as long as they agree with the text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from ..errors import BadGrammar
from ..spec import BackendName, Concat, Either, Grammar, Marker, Repeat
from .base import Bits, Compiled, Cursor

MOST_WAYS = 16

_Pieces = tuple[Grammar | int, ...]
"""Nodes without special tokens, and special tokens by id."""


@dataclass(frozen=True, slots=True)
class Way:
    """`tokens[i]` stands between `segments[i]` and the next one, so there is one more segment than tokens."""

    segments: tuple[Grammar, ...]
    tokens: tuple[int, ...]


def ways(grammar: Grammar, specials: Mapping[str, int]) -> tuple[Way, ...]:
    """All ways through a tree. Raises BadGrammar if they are more than a few, as where tokens repeat without end."""
    found = tuple(dict.fromkeys(_way(pieces) for pieces in _cut(grammar, specials)))
    if not found:
        raise BadGrammar("a choice without options allows nothing")
    return found


def _way(pieces: _Pieces) -> Way:
    segments: list[list[Grammar]] = [[]]
    tokens: list[int] = []
    for piece in pieces:
        if isinstance(piece, int):
            tokens.append(piece)
            segments.append([])
        else:
            segments[-1].append(piece)
    joined = (nodes[0] if len(nodes) == 1 else Concat(tuple(nodes)) for nodes in segments)
    return Way(tuple(joined), tuple(tokens))


def _cut(grammar: Grammar, specials: Mapping[str, int]) -> list[_Pieces]:
    if not _marked(grammar, specials):
        return [(grammar,)]
    match grammar:
        case Marker(text=text):
            return [(specials[text],)]
        case Concat(parts=parts):
            return _combined([_cut(part, specials) for part in parts])
        case Either(options=options):
            return _few([pieces for option in options for pieces in _cut(option, specials)])
        case Repeat(part=part, least=least, most=most, between=between) if most is not None and not between:
            once = _cut(part, specials)
            return _few([row for count in range(least, most + 1) for row in _combined([once] * count)])
    raise BadGrammar("special tokens that repeat cannot be put together with EBNF")


def _combined(rows: Sequence[list[_Pieces]]) -> list[_Pieces]:
    count = 1
    for row in rows:
        count *= len(row)
        _check(count)
    return [tuple(piece for pieces in combination for piece in pieces) for combination in product(*rows)]


def _few(rows: list[_Pieces]) -> list[_Pieces]:
    _check(len(rows))
    return rows


def _check(count: int) -> None:
    if count > MOST_WAYS:
        raise BadGrammar("so many optional special tokens cannot be put together with EBNF")


def _marked(grammar: Grammar, specials: Collection[str]) -> bool:
    match grammar:
        case Marker(text=text):
            return text in specials
        case Concat(parts=nodes) | Either(options=nodes):
            return any(_marked(node, specials) for node in nodes)
        case Repeat(part=part):
            return _marked(part, specials)
    return False


@dataclass(frozen=True, slots=True)
class SegmentsGrammar:
    """`ways` hold the compiled segments, and the tokens between them."""

    backend: BackendName
    ways: tuple[tuple[tuple[Compiled, ...], tuple[int, ...]], ...]
    words: int

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.segments())

    def segments(self) -> Iterator[Compiled]:
        """Each once, in an order that is always the same."""
        return iter(dict.fromkeys(each for segments, _ in self.ways for each in segments))

    def start(self) -> SegmentsCursor:
        return SegmentsCursor([_Walker(*way) for way in self.ways], self.words)


def compiled_ways(
    found: Sequence[Way], compile_: Callable[[Grammar], Compiled], backend: BackendName, words: int
) -> SegmentsGrammar:
    """Every segment is compiled once, in the order of `SegmentsGrammar.segments`."""
    done: dict[Grammar, Compiled] = {}
    for way in found:
        for segment in way.segments:
            if segment not in done:
                done[segment] = compile_(segment)
    rows = tuple((tuple(done[segment] for segment in way.segments), way.tokens) for way in found)
    return SegmentsGrammar(backend, rows, words)


@dataclass(slots=True)
class _Walker:
    """A place on one way: the cursors of the segments it came through, and how many tokens each has taken, that before it
    included."""

    segments: tuple[Compiled, ...]
    tokens: tuple[int, ...]
    length: int = 0
    _cursors: list[Cursor] = field(default_factory=list)
    _taken: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._enter(0)

    @property
    def cursor(self) -> Cursor:
        return self._cursors[-1]

    def next_token(self) -> int | None:
        """The special token that may come now."""
        place = len(self._cursors) - 1
        return self.tokens[place] if place < len(self.tokens) and self.cursor.accepting() else None

    def accepting(self) -> bool:
        return len(self._cursors) == len(self.segments) and self.cursor.accepting()

    def exhausted(self) -> bool:
        return self.next_token() is None and self.cursor.exhausted()

    def accept(self, token: int) -> bool:
        if token == self.next_token():
            self._enter(1)
        elif self.cursor.accept(token):
            self._taken[-1] += 1
        else:
            return False
        self.length += 1
        return True

    def back_to(self, length: int) -> None:
        """Take back tokens until so many are left, if there are more."""
        while self.length > length:
            here = self._taken[-1] - (len(self._cursors) > 1)
            count = min(here, self.length - length)
            if count:
                self.cursor.rollback(count)
                self._taken[-1] -= count
                self.length -= count
            else:  # the token before the segment
                del self._cursors[-1], self._taken[-1]
                self.length -= 1

    def _enter(self, taken: int) -> None:
        self._cursors.append(self.segments[len(self._cursors)].start())
        self._taken.append(taken)


class SegmentsCursor:
    """A walker that refused a token stays where it was, shorter than the text, until that is taken back."""

    __slots__ = ("_length", "_row", "_walkers")

    def __init__(self, walkers: Sequence[_Walker], words: int) -> None:
        self._walkers = walkers
        self._length = 0
        self._row: Bits = np.empty(words, dtype=np.int32)

    def fill(self, row: Bits) -> None:
        row[:] = 0
        for walker in self._alive():
            walker.cursor.fill(self._row)
            row |= self._row
            token = walker.next_token()
            if token is not None:
                row[token // 32] |= np.uint32(1 << token % 32).view(np.int32)

    def accept(self, token: int) -> bool:
        accepted = [walker.accept(token) for walker in self._alive()]
        self._length += any(accepted)
        return any(accepted)

    def rollback(self, count: int) -> None:
        self._length -= count
        for walker in self._walkers:
            walker.back_to(self._length)

    def forced(self) -> Sequence[int]:
        return ()

    def accepting(self) -> bool:
        return any(walker.accepting() for walker in self._alive())

    def exhausted(self) -> bool:
        return all(walker.exhausted() for walker in self._alive())

    def _alive(self) -> list[_Walker]:
        return [walker for walker in self._walkers if walker.length == self._length]

"""Which idle leaf of the prefix tree goes next, and what that is decided by.

First comes the rank, made of what was promised (see `Rank`), then the lease's priority, then the worth: the uses a page may
expect per second that it is kept, times what its tokens cost to compute again, per page. What is worth equally little goes
least recently used first.

The expected uses are learned. A leaf is the end of some sequence's path; what is known of it is how that sequence ended (it
waits for its tools, or not), how often the same path had been gone on from before, and whether several paths share it. For
each of these kinds `ReturnTimes` counts how many leaves were used again at which age and how many grew older. A leaf
moves through steps of age that double in length, so what changes with time alone costs a few heap operations in its whole
life, and no choice needs a scan.

The worth is the index of Gittins (1979) of the stopping problem "keep the page until it is used or no longer worth its
place": the largest ratio, over all times to give up at, of the chance to be used by then to the time that it is kept. For a
known time of next use it is the reciprocal of that, which is Belady's (1966) order.

Nothing here holds pages, counts them or knows who may have how many: its caller does, with one thread.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import floor, inf, log2

from .node import Node

STEPS = tuple(0.5 * 2.0**i for i in range(13))
"""Where each step of age ends, in seconds; the last one has no end."""

HITS_TO_PROTECT = 2
"""A page on a path that was used again so often is no passer-by."""


class Rank(IntEnum):
    """What goes first. Beyond the last there is only what never goes, and that is never offered."""

    SPENT = 0
    PROBATION = 1
    PROTECTED = 2
    LAPSED = 3
    LEASED = 4
    PINNED = 5


@dataclass(frozen=True, slots=True)
class RecomputeCost:
    """Seconds to compute a token: `flat`, and `slope` more for every position before it (attention reads them all)."""

    flat: float = 1.0
    slope: float = 1.0 / 16384

    def page(self, position: int, tokens: int) -> float:
        return tokens * (self.flat + self.slope * position)


class ReturnTimes:
    """How the leaves of one kind fared: at each step of age, how many were used again and how many grew older.

    Counts start with a few made-up ones that stand for what is usual, and are halved now and then, so that what was learned
    long ago fades.
    """

    __slots__ = ("_passed", "_returned", "_seen")
    _FADE = 2048

    def __init__(self, usual: Iterable[float]) -> None:
        """`usual`: the chance to be used again in a step for whoever reaches it, for each step."""
        self._returned = [2 * chance for chance in usual]
        self._passed = [2 - returned for returned in self._returned]
        self._seen = 0

    def used(self, step: int) -> None:
        self._returned[step] += 1
        self._seen += 1
        if self._seen >= self._FADE:
            self._seen = 0
            self._returned = [count / 2 for count in self._returned]
            self._passed = [count / 2 for count in self._passed]

    def passed(self, step: int) -> None:
        self._passed[step] += 1

    def rates(self) -> list[float]:
        """For each step: expected uses per second of keeping a leaf that has just reached it, at the best time to give up."""
        chances = [r / (r + p) for r, p in zip(self._returned, self._passed, strict=True)]
        return [_index(chances, step) for step in range(len(chances))]


def _index(chances: list[float], start: int) -> float:
    best = kept = 0.0
    waiting = 1.0
    for chance, seconds in zip(chances[start:], _LENGTHS[start:], strict=True):
        kept += waiting * (1 - chance / 2) * seconds
        waiting *= 1 - chance
        best = max(best, (1 - waiting) / kept)
    return best


_LENGTHS = [STEPS[0], *(b - a for a, b in pairwise(STEPS)), STEPS[-1]]

Standing = tuple[int, int, int, int, int]
"""Rank, priority, kind, step of age, level of cost: leaves of equal standing go by their last use."""

_SPENT: Standing = (Rank.SPENT, 0, 0, 0, 0)

Entry = tuple[float, int, Node]
"""Last use, seat, leaf. Stale once the leaf has another seat."""


class _Order:
    """Leaves by standing, each standing a heap, and a heap over the standings."""

    __slots__ = ("_heads", "_heaps", "_worth")

    def __init__(self, worth: Callable[[Standing], float]) -> None:
        self._worth = worth
        self._heaps: dict[Standing, list[Entry]] = {}
        self._heads: list[tuple[int, int, float, Standing]] = []

    def push(self, standing: Standing, entry: Entry) -> None:
        heap = self._heaps.get(standing)
        if heap is None:
            self._heaps[standing] = [entry]
            heapq.heappush(self._heads, self._head(standing))
        else:
            heapq.heappush(heap, entry)

    def first(self) -> Node | None:
        """What goes next, left in its place."""
        while self._heads:
            standing = self._heads[0][3]
            heap = self._heaps[standing]
            while heap and heap[0][2].seat != heap[0][1]:
                heapq.heappop(heap)
            if heap:
                return heap[0][2]
            del self._heaps[standing]
            heapq.heappop(self._heads)
        return None

    def skip(self) -> None:
        """Take out what `first` has just returned."""
        heapq.heappop(self._heaps[self._heads[0][3]])

    def reprice(self) -> None:
        """The worth of standings has changed."""
        self._heads = [self._head(standing) for standing in self._heaps]
        heapq.heapify(self._heads)

    def compact(self) -> None:
        """Drop what is stale."""
        for standing, heap in list(self._heaps.items()):
            live = [entry for entry in heap if entry[2].seat == entry[1]]
            if live:
                heapq.heapify(live)
                self._heaps[standing] = live
            else:
                del self._heaps[standing]
        self.reprice()

    def _head(self, standing: Standing) -> tuple[int, int, float, Standing]:
        return (standing[0], standing[1], self._worth(standing), standing)

    def __iter__(self) -> Iterator[tuple[Standing, Entry]]:
        for standing, heap in self._heaps.items():
            for entry in heap:
                if entry[2].seat == entry[1]:
                    yield standing, entry


_SHARED = 0
_KINDS = 7  # shared, then twice (ended, paused) never, once, and more often gone on from


def _usual(kind: int) -> list[float]:
    """What is assumed of a kind before anything is seen: tools come back in seconds, people in minutes, and who has come
    back comes back again."""
    if kind == _SHARED:
        return [0.1] * (len(STEPS) + 1)
    paused, streak = divmod(kind - 1, 3)
    if paused:
        return [0.8, 0.4] + [0.2] * (len(STEPS) - 1)
    return [0.02 * (1 + streak)] * 5 + [0.05 * (1 + streak)] * (len(STEPS) - 4)


class Evictor:
    """The idle leaves that may go, in the order in which they should.

    The tree's owner says what is on offer, and writes the facts on the node: `start` (the position of the page's first
    token), `used` (seconds, at its last use), `hits`, `streak`, `owner`, `claim`, `expires` (when it is gone at the latest,
    or -inf for what was flushed). A node on offer whose facts change is offered again. `seat`, `shared` and `paused` are
    written here. Seconds are `clock`'s.
    """

    _LEARN_EVERY = 64

    def __init__(self, clock: Callable[[], float], cost: RecomputeCost | None = None) -> None:
        self._clock = clock
        self._cost = RecomputeCost() if cost is None else cost
        self._times = [ReturnTimes(_usual(kind)) for kind in range(_KINDS)]
        self._rates = [times.rates() for times in self._times]
        self._seats = 0
        self._offered = 0
        self._placed = 0  # since the last time that all was compacted
        self._learned = 0
        self._all = _Order(self._worth)
        self._payers: dict[str, _Order] = {}
        self._timers: list[tuple[float, int, Node, int]] = []  # until when, seat, leaf, step of age
        self._aside: dict[
            str, list[tuple[int, Node]]
        ] = {}  # seat, leaf: on offer, but their owner was spared

    def __len__(self) -> int:
        return self._offered

    # ---- what is on offer ---------------------------------------------------------------------------------------------

    def offer(self, node: Node) -> None:
        """An idle leaf may go from now on. One that is on offer already is judged anew. O(log leaves)."""
        if not node.seat:
            self._offered += 1
        self._place(node, self._clock())

    def withdraw(self, node: Node) -> None:
        """A node may not go: it is held, or no leaf any more, or out of the tree. Nothing happens to one not on offer."""
        if node.seat:
            node.seat = 0
            self._offered -= 1

    def next(
        self,
        payer: str | None = None,
        spared: Callable[[str], bool] = lambda owner: False,
        *,
        below: Rank | None = None,
    ) -> Node | None:
        """Withdraw what goes first and return it: of one owner, or of all but those for whom `spared` is true now. None if
        nothing is left, or nothing that ranks `below`. Amortised O(log leaves)."""
        now = self._clock()
        self._advance(now)
        node = self._first_but(spared, now) if payer is None else self._order_of(payer).first()
        if node is None or (below is not None and self._standing(node, now)[0][0] >= below):
            return None
        self.withdraw(node)
        self._hand_down(node)
        return node

    def resumed(self, node: Node) -> int:
        """A sequence was found to go on from `node`, the last page of its prefix. To be told before anything is written on
        the node; returns the streak of the pages that come below it."""
        now = self._clock()
        self._advance(now)
        if node.seat:
            self._learn(node, now)
        node.paused = False
        return 0 if node.keys or node.shared else node.streak + 1

    def worth(self, node: Node) -> float:
        """What leaves of equal rank and priority are compared by, now: expected uses a second times recomputing them."""
        return self._worth(self._standing(node, self._clock())[0])

    def reprice(self, cost: RecomputeCost) -> None:
        """What it costs to compute a token has been measured anew. Linear in the leaves."""
        self._cost = cost
        now = self._clock()
        for node in list(self):
            self._place(node, now)

    # ---- choosing ----------------------------------------------------------------------------------------------------

    def _first_but(self, spared: Callable[[str], bool], now: float) -> Node | None:
        for owner in [owner for owner in self._aside if not spared(owner)]:
            for seat, node in self._aside.pop(owner):
                if node.seat == seat:
                    self._place(node, now)
        while True:
            first = self._all.first()
            if first is None or not spared(first.owner):
                return first
            self._all.skip()
            self._aside.setdefault(first.owner, []).append((first.seat, first))

    def _order_of(self, payer: str) -> _Order:
        """An owner's leaves are ordered on their own from the first time that it has to pay."""
        order = self._payers.get(payer)
        if order is None:
            order = self._payers[payer] = _Order(self._worth)
            for standing, entry in self._all:
                if entry[2].owner == payer:
                    order.push(standing, entry)
            for seat, node in self._aside.get(payer, ()):
                if node.seat == seat:
                    order.push(self._standing(node, self._clock())[0], (node.used, seat, node))
        return order

    def _hand_down(self, node: Node) -> None:
        """Tell the parent of a page that goes what the end of its path was like: it becomes the end."""
        parent = node.parent
        if len(parent.keys) > 1 or parent.used > node.used:
            parent.shared = True
        else:
            parent.shared |= node.shared
            parent.paused = _paused(node)

    # ---- where a leaf stands -----------------------------------------------------------------------------------------

    def _place(self, node: Node, now: float) -> None:
        standing, until = self._standing(node, now)
        self._seats += 1
        node.seat = self._seats
        entry = (node.used, node.seat, node)
        self._all.push(standing, entry)
        order = self._payers.get(node.owner)
        if order is not None:
            order.push(standing, entry)
        if until < inf:
            heapq.heappush(self._timers, (until, node.seat, node, standing[3]))
        self._placed += 1
        if self._placed > 1024 + 2 * self._offered:
            self._compact()

    def _standing(self, node: Node, now: float) -> tuple[Standing, float]:
        """Where a leaf stands at `now`, and until when."""
        if node.expires <= now:
            return _SPENT, inf
        age = now - node.used
        step = bisect_right(STEPS, age)
        until = node.used + STEPS[step] if step < len(STEPS) else inf
        until = min(until, node.expires)
        rank, priority = Rank.PROBATION, 0
        claim = node.claim
        if claim is not None:
            if claim.pinned:
                rank = Rank.PINNED
            elif now < claim.until:
                rank, until = Rank.LEASED, min(until, claim.until)
            elif now < claim.lapses:
                rank, until = Rank.LAPSED, min(until, claim.lapses)
            if rank is not Rank.PROBATION:
                priority = claim.priority
        if rank is Rank.PROBATION and (node.hits >= HITS_TO_PROTECT or node.streak >= HITS_TO_PROTECT):
            rank = Rank.PROTECTED
        cost = self._cost.page(node.start, len(node.key))
        return (rank, priority, _kind(node), step, floor(2 * log2(cost))), until

    def _worth(self, standing: Standing) -> float:
        _, _, kind, step, cost = standing
        return self._rates[kind][step] * 2 ** (cost / 2)

    def _advance(self, now: float) -> None:
        """Move the leaves whose standing has changed with time."""
        while self._timers and self._timers[0][0] <= now:
            _, seat, node, step = heapq.heappop(self._timers)
            if node.seat == seat:
                times = self._times[_kind(node)]
                for passed in range(step, bisect_right(STEPS, now - node.used)):
                    times.passed(passed)
                self._place(node, now)

    def _learn(self, node: Node, now: float) -> None:
        self._times[_kind(node)].used(bisect_right(STEPS, now - node.used))
        self._learned += 1
        if self._learned % self._LEARN_EVERY == 0:
            self._rates = [times.rates() for times in self._times]
            for order in (self._all, *self._payers.values()):
                order.reprice()

    def _compact(self) -> None:
        """Forget what is stale. Linear, and rare enough to be O(1) for each leaf placed."""
        self._placed = 0
        for order in (self._all, *self._payers.values()):
            order.compact()
        self._payers = {payer: order for payer, order in self._payers.items() if order.first() is not None}
        for owner, aside in list(self._aside.items()):
            self._aside[owner] = [(seat, node) for seat, node in aside if node.seat == seat]
        self._timers = [timer for timer in self._timers if timer[2].seat == timer[1]]
        heapq.heapify(self._timers)

    # ---- truth -------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Node]:
        """Every leaf on offer, in no order."""
        for _, (_, _, node) in self._all:
            yield node
        for aside in self._aside.values():
            for seat, node in aside:
                if node.seat == seat:
                    yield node

    def check(self, leaves: Iterable[Node]) -> None:
        """Assert that exactly `leaves` are on offer, each once wherever it has to be."""
        expected = {id(node) for node in leaves}
        offered = [id(node) for node in self]
        assert len(offered) == self._offered, f"{self._offered} leaves counted on offer, {len(offered)} are"
        assert len(set(offered)) == len(offered), "a leaf is on offer twice"
        assert set(offered) == expected, "what is on offer is not what may go"
        for payer, order in self._payers.items():
            mine = {id(entry[2]) for _, entry in order}
            assert mine == {id(node) for node in self if node.owner == payer}, "a payer's leaves are misfiled"


def _paused(node: Node) -> bool:
    return node.paused or (node.claim is not None and node.claim.pause)


def _kind(node: Node) -> int:
    if node.shared:
        return _SHARED
    return 1 + 3 * _paused(node) + min(node.streak, 2)

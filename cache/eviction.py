"""Which idle leaf of the prefix tree goes next, and what that is decided by.

First comes the rank, made of what was promised (see `Rank`), then the lease's priority, then the worth: the uses a page may
expect per second that it is kept, times what its tokens cost to compute again, per page. What is worth equally little goes
least recently used first.

The expected uses are learned. A leaf is the end of some sequence's path; what is known of it is its fate: that others share
it and how many found it, or how its sequence ended - it waits for tools of a kind, or for nobody knows what - and how often
the same path had been gone on from before. For each fate `ReturnTimes` counts how many were used again at which age and how
many grew older, also after they were evicted (`Ghosts`): else what is kept too short would never be seen to come back.
Before anything is learned all fates are worth the same, and that is the order of least recent use. A leaf moves through steps
of age that double in length, so what changes with time alone costs a few heap operations in its whole life, and no choice
needs a scan.

The worth is the index of Gittins (1979) of the stopping problem "keep the page until it is used or no longer worth its
place": the largest ratio, over all times to give up at, of the chance to be used by then to the time that it is kept. For a
known time of next use it is the reciprocal of that, which is Belady's (1966) order. Beckmann, Chen and Cidon (2018) rank by
the same ratio up to the eviction that they expect (least hit density).

Nothing here holds pages, counts them or knows who may have how many: its caller does, with one thread.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from math import floor, inf, log2

from .ghosts import Ghost, Ghosts
from .lease import Wait
from .node import Node
from .return_times import STEPS, ReturnTimes, step_of

KINDS = 64
"""So many kinds of tools have return times of their own. The rest are like all of them together."""

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


Standing = tuple[int, int, int, int, int]
"""Rank, priority, kind, step of age, level of cost: leaves of equal standing go by their last use."""

_SPENT: Standing = (Rank.SPENT, 0, 0, 0, 0)

Entry = tuple[float, int, Node]
"""Last use, seat, leaf. Stale once the leaf has another seat."""

Head = tuple[int, int, float, float, int, Standing]
"""Rank, priority, worth; last use and seat of the first entry; its standing."""


class _Order:
    """Leaves by standing, each standing a heap, and a heap over their first entries."""

    __slots__ = ("_heads", "_heaps", "_valid", "_worth")

    def __init__(self, worth: Callable[[Standing], float]) -> None:
        self._worth = worth
        self._heaps: dict[Standing, list[Entry]] = {}  # none is empty
        self._heads: list[Head] = []
        self._valid: dict[Standing, Head] = {}  # the others in `_heads` have been replaced

    def push(self, standing: Standing, entry: Entry) -> None:
        heap = self._heaps.setdefault(standing, [])
        heapq.heappush(heap, entry)
        if heap[0] is entry:
            self._lead(standing)

    def first(self) -> Node | None:
        """What goes next, left in its place."""
        while self._heads:
            head = self._heads[0]
            standing = head[-1]
            if self._valid.get(standing) is not head:
                heapq.heappop(self._heads)
                continue
            _, seat, node = self._heaps[standing][0]
            if node.seat == seat:
                return node
            self.skip()
        return None

    def skip(self) -> None:
        """Take out what is first in the heap that has just been looked at."""
        standing = heapq.heappop(self._heads)[-1]
        heap = self._heaps[standing]
        heapq.heappop(heap)
        while heap and heap[0][2].seat != heap[0][1]:
            heapq.heappop(heap)
        if heap:
            self._lead(standing)
        else:
            del self._heaps[standing], self._valid[standing]

    def _lead(self, standing: Standing) -> None:
        used, seat, _ = self._heaps[standing][0]
        head = (standing[0], standing[1], self._worth(standing), used, seat, standing)
        self._valid[standing] = head
        heapq.heappush(self._heads, head)

    def reprice(self) -> None:
        """The worth of standings has changed."""
        self._heads.clear()
        for standing in self._heaps:
            self._lead(standing)

    def compact(self) -> None:
        """Drop what is stale."""
        for standing, heap in list(self._heaps.items()):
            live = [entry for entry in heap if entry[2].seat == entry[1]]
            if live:
                heapq.heapify(live)
                self._heaps[standing] = live
            else:
                del self._heaps[standing], self._valid[standing]
        self.reprice()

    def __iter__(self) -> Iterator[tuple[Standing, Entry]]:
        for standing, heap in self._heaps.items():
            for entry in heap:
                if entry[2].seat == entry[1]:
                    yield standing, entry

    def check(self) -> None:
        assert self._valid.keys() == self._heaps.keys(), "a standing without a head, or the other way round"
        for standing, heap in self._heaps.items():
            head = self._valid[standing]
            assert head[2:5] == (self._worth(standing), *heap[0][:2]), "a head that is not that of its heap"
            assert any(head is each for each in self._heads), "a head that nobody would come to"


_ENDED = (-1, -2, -3)  # never gone on from before, once, more often
_SHARED = (-4, -5, -6, -7, -8)  # found by nobody yet, by one, by two or three, up to seven, more
# what waits for tools has the kind of these, from 0 on


class Evictor:
    """The idle leaves that may go, in the order in which they should.

    The tree's owner says what is on offer, and writes the facts on the node: `start` (the position of the page's first
    token), `used` (seconds, at its last use), `hits`, `streak`, `owner`, `claim`, `expires` (when it is gone at the latest,
    or -inf for what was flushed). A node on offer whose facts change is offered again. `seat`, `shared` and `wait` are
    written here. Seconds are `clock`'s.
    """

    _LEARN_EVERY = 64

    def __init__(self, clock: Callable[[], float], cost: RecomputeCost | None = None) -> None:
        self._clock = clock
        self._cost = RecomputeCost() if cost is None else cost
        everyone = ReturnTimes()
        self._waiting = ReturnTimes(everyone)
        shared = ReturnTimes(everyone)
        self._times = {fate: ReturnTimes(everyone) for fate in _ENDED}
        self._times |= {fate: ReturnTimes(shared) for fate in _SHARED}
        self._kinds: OrderedDict[int, ReturnTimes] = OrderedDict()  # what was learned of last comes last
        self._fresh: set[int] = {*self._times}  # fates that more is known of than their rates say
        self._rates: dict[int, list[float]] = {}
        self._ghosts = Ghosts(lambda fate, step: self._times_of(fate).passed(step))
        self._seats = 0
        self._offered = 0
        self._placed = 0  # since the last time that all was compacted
        self._learned = 0
        self._due: dict[int, float] = {}
        self._usual: list[float] = []  # rates of kinds that have none of their own
        self._usually_due = inf
        self._rate()
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
        self._hand_down(node, now)
        return node

    def resumed(self, node: Node) -> int:
        """A sequence was found to go on from `node`, the last page of its prefix. To be told before anything is written on
        the node; returns the streak of the pages that come below it."""
        now = self._clock()
        self._advance(now)
        if node.seat:
            self._learn(_fate(node), step_of(node.used, now))
        node.wait = None
        return 0 if node.keys or node.shared else node.streak + 1

    def missed(self, chain: bytes) -> int:
        """A sequence would have gone on with the page of this chain. The streak of the pages that come in its place."""
        ghost = self._ghosts.take(chain)
        if ghost is None:
            return 0
        now = self._clock()
        self._advance(now)
        self._learn(ghost.fate, step_of(ghost.used, now))
        return 0 if ghost.fate in _SHARED else ghost.streak + 1

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

    def _hand_down(self, node: Node, now: float) -> None:
        """Tell the parent of a page that goes what the end of its path was like: it becomes the end. If it is that of others
        anyway, the path is gone."""
        parent = node.parent
        forked = len(parent.keys) > 1 or parent.used > node.used
        if forked or parent is node.root:
            parent.shared |= forked
            if node.expires > now:
                step = step_of(node.used, now)
                self._ghosts.add(node.chain, Ghost(_fate(node), node.streak, node.used, step))
            return
        parent.shared |= node.shared
        parent.wait = self._left_of(node)
        parent.streak = max(parent.streak, node.streak)

    def _left_of(self, node: Node) -> Wait | None:
        """What remains of the wait that ends at a page which goes: its promise is broken with that, but what is left of the
        conversation is kept like a promise for as long as its tools are due."""
        wait = _wait(node)
        if wait is None or wait is node.wait:
            return wait
        due = self._due.get(wait.kind, self._usually_due)
        return Wait(wait.kind, min(wait.until, node.used + due), wait.priority)

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
        step = step_of(node.used, now)
        until = node.used + STEPS[step] if step < len(STEPS) else inf
        rank, priority, changes = _promise(node, now)
        until = min(until, node.expires, changes)
        if rank is Rank.PROBATION and (node.hits >= HITS_TO_PROTECT or node.streak >= HITS_TO_PROTECT):
            rank = Rank.PROTECTED
        cost = self._cost.page(node.start, len(node.key))
        return (rank, priority, _fate(node), step, floor(2 * log2(cost))), until

    def _worth(self, standing: Standing) -> float:
        _, _, fate, step, cost = standing
        return self._rates.get(fate, self._usual)[step] * 2 ** (cost / 2)

    def _advance(self, now: float) -> None:
        """Move the leaves whose standing has changed with time."""
        self._ghosts.advance(now)
        while self._timers and self._timers[0][0] <= now:
            _, seat, node, step = heapq.heappop(self._timers)
            if node.seat == seat:
                times = self._times_of(_fate(node))
                for passed in range(step, step_of(node.used, now)):
                    times.passed(passed)
                self._place(node, now)

    def _learn(self, fate: int, step: int) -> None:
        self._times_of(fate).used(step)
        self._learned += 1
        if self._learned % self._LEARN_EVERY == 0:
            self._rate()
            for order in (self._all, *self._payers.values()):
                order.reprice()

    def _times_of(self, fate: int) -> ReturnTimes:
        """To be told something of this fate."""
        self._fresh.add(fate)
        if fate < 0:
            return self._times[fate]
        times = self._kinds.get(fate)
        if times is None:
            times = self._kinds[fate] = ReturnTimes(self._waiting)
            if len(self._kinds) > KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(fate)
        return times

    def _rate(self) -> None:
        """What was learned counts from now on."""
        self._usual = self._waiting.rates()
        self._usually_due = self._waiting.due()
        for fate in self._fresh:
            times = self._times.get(fate) or self._kinds.get(fate)
            if times is not None:
                self._rates[fate] = times.rates()
                self._due[fate] = times.due()
        self._fresh.clear()
        for fate in [fate for fate in self._rates if fate >= 0 and fate not in self._kinds]:
            del self._rates[fate], self._due[fate]

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
        assert len(self._kinds) <= KINDS, "more kinds of tools are told apart than may be"
        self._all.check()
        for payer, order in self._payers.items():
            order.check()
            mine = {id(entry[2]) for _, entry in order}
            assert mine == {id(node) for node in self if node.owner == payer}, "a payer's leaves are misfiled"


def _promise(node: Node, now: float) -> tuple[Rank, int, float]:
    """The rank of what was promised of a page, the priority in it, and until when. That of a conversation which waits for its
    tools is of all its pages, and what is left of it outlives the last ones."""
    rank, priority, until = Rank.PROBATION, 0, inf
    claim = node.claim
    if claim is not None:
        if claim.pinned:
            rank = Rank.PINNED
        elif now < claim.until:
            rank, until = Rank.LEASED, claim.until
        elif now < claim.lapses:
            rank, until = Rank.LAPSED, claim.lapses
        if rank is not Rank.PROBATION:
            priority = claim.priority
    wait = node.wait
    if wait is not None and now < wait.until and rank < Rank.LEASED:
        return Rank.LEASED, max(priority, wait.priority), min(until, wait.until)
    return rank, priority, until


def _wait(node: Node) -> Wait | None:
    """That of the conversation that ends here."""
    claim = node.claim
    return node.wait if claim is None or claim.wait is None else claim.wait


def _fate(node: Node) -> int:
    """Of which kind the path is that ends here."""
    if node.shared:
        return _SHARED[min(node.hits.bit_length(), len(_SHARED) - 1)]
    wait = _wait(node)
    return _ENDED[min(node.streak, 2)] if wait is None else wait.kind

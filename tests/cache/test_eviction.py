"""The order in which idle leaves go, and that nothing but the stated facts decides it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.cursor import Cursor
from cache.eviction import KINDS, Evictor, Rank
from cache.lease import Claim, Wait
from cache.node import Node
from cache.prefix_cache import PrefixCache
from cache.radix import RadixTree
from tests.fakes import ManualClock

SIZE = 16


@dataclass
class Grove:
    """Leaves to offer, each the end of a path of its own, and an evictor over them."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))
    tree: RadixTree = field(default_factory=lambda: RadixTree(SIZE))
    made: int = 0

    def __post_init__(self) -> None:
        self.evictor = Evictor(self.clock)

    def node(self, *, above: Node | None = None, used: float | None = None, **facts: object) -> Node:
        self.made += 1
        parent = self.tree.root(b"n") if above is None else above
        node = self.tree.insert(parent, (self.made, *[0] * (SIZE - 1)), self.made).node
        node.used = self.clock() if used is None else used
        for name, value in facts.items():
            setattr(node, name, value)
        return node

    def leaf(self, **facts: object) -> Node:
        node = self.node(**facts)
        self.evictor.offer(node)
        return node

    def order(self) -> list[Node]:
        found = []
        while (node := self.evictor.next()) is not None:
            found.append(node)
        return found


@pytest.fixture
def grove() -> Grove:
    return Grove()


def claim(until: float, lapses: float | None = None, **more: object) -> Claim:
    return Claim(until, until if lapses is None else lapses, **more)


def test_ranks_go_in_the_stated_order_whatever_was_used_last(grove: Grove) -> None:
    now = grove.clock()
    pinned = grove.leaf(used=now - 900, claim=claim(inf, pinned=True))
    leased = grove.leaf(used=now - 800, claim=claim(now + 60))
    lapsed = grove.leaf(used=now - 700, claim=claim(now - 1, now + 60))
    protected = grove.leaf(used=now - 600, hits=2)
    forgotten = grove.leaf(used=now - 500, claim=claim(now - 60, now - 1))
    expired = grove.leaf(used=now, hits=9, claim=claim(now + 60), expires=now)
    assert grove.order() == [expired, forgotten, protected, lapsed, leased, pinned]


def test_time_alone_changes_ranks(grove: Grove) -> None:
    now = grove.clock()
    leased = grove.leaf(claim=claim(now + 60, now + 120))
    protected = grove.leaf(hits=2)
    short = grove.leaf(hits=2, claim=claim(now + 200), expires=now + 90)
    fresh = grove.node(hits=1)
    for at, first in [(59, fresh), (91, short), (119, fresh), (121, fresh)]:
        grove.clock.now = now + at
        grove.evictor.offer(fresh)
        assert grove.evictor.next() is first
        grove.evictor.withdraw(fresh)
    assert grove.order() == [leased, protected], "a claim that has lapsed long ago protects from nothing"


def test_of_equal_ranks_the_lower_priority_goes_first_and_then_the_cheaper_page(grove: Grove) -> None:
    now = grove.clock()
    dear = grove.leaf(claim=claim(now + 60, priority=90))
    low = grove.leaf(claim=claim(now + 60, priority=10))
    path = [grove.node(used=now)]
    for _ in range(1500):
        path.append(grove.node(above=path[-1], used=now))
    deep = path[-1]
    grove.evictor.offer(deep)
    shallow = grove.leaf()
    assert grove.order() == [shallow, deep, low, dear]


def test_of_equals_the_least_recently_used_goes_first(grove: Grove) -> None:
    now = grove.clock()
    leaves = [grove.leaf(used=now - age) for age in (0.1, 0.4, 0.2, 0.3)]
    assert grove.order() == [leaves[i] for i in (1, 3, 2, 0)]


def test_passers_by_go_before_what_comes_back(grove: Grove) -> None:
    """Scan resistance: any number of pages that are seen once leave alone what has been used again."""
    now = grove.clock()
    regular = [grove.leaf(used=now - 60, hits=2) for _ in range(5)]
    for _ in range(100):
        grove.clock.now += 1
        scanned = grove.leaf()
        assert grove.evictor.next() is scanned
    assert set(grove.order()) == set(regular)


def test_a_payer_gives_its_own_and_the_spared_give_nothing(grove: Grove) -> None:
    now = grove.clock()
    mine = [grove.leaf(used=now - age, owner="a") for age in (3, 1)]
    theirs = [grove.leaf(used=now - age, owner="b") for age in (4, 2)]
    evictor = grove.evictor
    assert evictor.next("a") is mine[0]
    assert evictor.next(spared=lambda owner: owner == "b") is mine[1]
    assert evictor.next(spared=lambda owner: owner == "b") is None
    assert evictor.next("a") is None
    evictor.check(theirs)
    late = grove.leaf(used=now - 1, owner="a")
    assert evictor.next("b") is theirs[0], "who is spared may pay for itself"
    assert [evictor.next(), evictor.next(), evictor.next()] == [theirs[1], late, None]


# ---- what is learned -------------------------------------------------------------------------------------------------


def teach(grove: Grove, seconds: float, times: int = 150, **facts: object) -> None:
    """Paths that end like this are gone on from after so many seconds."""
    for _ in range(times):
        node = grove.leaf(**facts)
        grove.clock.now += seconds
        grove.evictor.resumed(node)
        grove.evictor.withdraw(node)


def waiting(now: float, kind: int) -> Claim:
    return claim(now + 120, wait=Wait(kind, now + 120))


def test_before_anything_is_learned_the_least_recently_used_goes_first_whatever_it_is(grove: Grove) -> None:
    now = grove.clock()
    facts: list[dict[str, object]] = [{"hits": 2}, {"streak": 5}, {"hits": 9, "shared": True}, {"streak": 2}]
    leaves = [grove.leaf(used=now - 30 + place, **each) for place, each in enumerate(facts)]
    assert grove.order() == leaves


def test_of_two_kinds_of_tools_the_one_that_comes_back_later_goes_first(grove: Grove) -> None:
    for kind, seconds in [(7, 0.3), (1 << 63, 40.0)] * 2:
        for _ in range(100):
            teach(grove, seconds, 1, claim=waiting(grove.clock(), kind))
    now = grove.clock()
    slow = [grove.leaf(claim=waiting(now, 1 << 63)) for _ in range(2)]
    fast = [grove.leaf(claim=waiting(now, 7)) for _ in range(2)]
    unknown = grove.leaf(claim=waiting(now, 8))
    assert grove.order() == [*slow, unknown, *fast], "what is not known is like all of them"


def test_what_is_late_goes_before_what_is_still_due(grove: Grove) -> None:
    for _ in range(100):
        teach(grove, 0.3, 1, claim=waiting(grove.clock(), 7))
        teach(grove, 40.0, 1, claim=waiting(grove.clock(), 9))
    now = grove.clock()
    due = grove.leaf(used=now - 35, claim=waiting(now, 9))
    late = grove.leaf(used=now - 34, claim=waiting(now, 7))
    assert grove.order() == [late, due]


def test_what_is_learned_does_not_depend_on_what_is_kept(grove: Grove) -> None:
    """Whatever comes back after more than the time that anything is kept would look like what never does."""
    for _ in range(150):
        gone = grove.leaf(hits=2)
        grove.clock.now += 20
        assert grove.evictor.next() is gone
        grove.clock.now += 40
        lost = grove.leaf(hits=2, streak=2)
        assert grove.evictor.next() is lost
        assert grove.evictor.missed(gone.chain) == 1
    now = grove.clock()
    dead = grove.leaf(used=now - 1, hits=2, streak=2)
    late = grove.leaf(used=now - 50, hits=2)
    assert grove.order() == [dead, late]


def test_where_paths_part_is_shared_and_where_one_only_grew_is_not(grove: Grove) -> None:
    now = grove.clock()
    fork, grown = grove.node(used=now), grove.node(used=now)
    for above in (fork, fork, grown):
        grove.leaf(above=above)
    while (node := grove.evictor.next()) is not None:
        grove.tree.remove(node)
    assert (fork.shared, grown.shared) == (True, False)


def test_a_path_that_comes_back_is_no_passer_by_even_if_it_was_evicted(grove: Grove) -> None:
    node = grove.leaf(streak=1)
    assert grove.evictor.next() is node
    assert grove.evictor.missed(node.chain) == 2
    assert grove.evictor.missed(node.chain) == 0, "once"
    assert grove.evictor.missed(b"nobody") == 0


def test_a_wait_for_tools_is_that_of_all_pages_of_the_conversation(grove: Grove) -> None:
    now = grove.clock()
    above = grove.node(used=now, hits=1)
    tip = grove.leaf(above=above, streak=1, claim=waiting(now, 7))
    other = grove.leaf(used=now + 1, hits=5)
    assert grove.evictor.next(below=Rank.PINNED) is other
    assert grove.evictor.next() is tip
    assert above.streak == 1
    grove.tree.remove(tip)
    grove.evictor.offer(above)
    late = grove.leaf(used=now + 2, hits=5)
    assert grove.evictor.next() is late
    grove.evictor.resumed(above)
    grove.evictor.offer(above)
    later = grove.leaf(used=now + 3, hits=5)
    assert grove.order() == [above, later], "it goes on: the wait is over"


def test_what_is_left_of_a_conversation_whose_tools_are_overdue_is_like_any_that_was_used_again(
    grove: Grove,
) -> None:
    for kind, seconds in [(7, 0.3), (9, 100.0)]:
        for _ in range(200):
            teach(grove, seconds, 1, claim=waiting(grove.clock(), kind))
    ranks = []
    for kind in (7, 9):
        now = grove.clock()
        above = grove.node(used=now, hits=2)
        tip = grove.leaf(above=above, claim=waiting(now, kind))
        grove.clock.now += 20
        assert grove.evictor.next(below=Rank.LEASED) is None, "what was promised is kept as it was"
        assert grove.evictor.next() is tip
        grove.tree.remove(tip)
        grove.evictor.offer(above)
        ranks.append(grove.evictor.next(below=Rank.LEASED) is above)
        grove.evictor.withdraw(above)
    assert ranks == [True, False]


def test_kinds_are_bounded_and_the_rest_is_like_all_of_them(grove: Grove) -> None:
    for kind in range(KINDS * 2):
        teach(grove, 0.2, 3, claim=waiting(grove.clock(), kind))
    grove.evictor.check([])
    assert grove.evictor.worth(grove.leaf(claim=waiting(grove.clock(), 0))) == pytest.approx(
        grove.evictor.worth(grove.leaf(claim=waiting(grove.clock(), 10**6)))
    )


def test_sums_of_seconds_that_are_rounded_hold_nobody_up(grove: Grove) -> None:
    grove.clock.now = 1023.9999999999997
    leaf = grove.leaf()
    grove.clock.now += 0.5
    assert grove.evictor.next() is leaf


# ---- upkeep ----------------------------------------------------------------------------------------------------------


def test_what_was_withdrawn_stays_until_it_is_offered_again(grove: Grove) -> None:
    first, second = grove.leaf(used=1), grove.leaf(used=2)
    grove.evictor.withdraw(first)
    assert grove.evictor.next() is second
    assert grove.evictor.next() is None
    grove.evictor.offer(first)
    grove.evictor.offer(first)
    assert len(grove.evictor) == 1
    assert grove.order() == [first]


class AgainstAnOracle(RuleBasedStateMachine):
    """Offers, withdrawals, time and uses in any order: what goes is always what the stated order says of what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.grove = Grove()
        self.on_offer: list[Node] = []
        self.withdrawn: list[Node] = []
        self.spared: set[str] = set()
        self.gone: list[bytes] = []

    @rule(
        age=st.sampled_from([0.0, 0.1, 1.0, 30.0, 3000.0]),
        hits=st.integers(0, 3),
        streak=st.integers(0, 3),
        owner=st.sampled_from("abc"),
        until=st.sampled_from([None, -5.0, 5.0, 500.0]),
        priority=st.sampled_from([10, 50]),
        pinned=st.sampled_from([False, False, True]),
        kind=st.sampled_from([None, 0, 7, 1 << 63]),
        expires=st.sampled_from([inf, inf, 10.0, -10.0]),
    )
    def add(
        self,
        *,
        age: float,
        hits: int,
        streak: int,
        owner: str,
        until: float | None,
        priority: int,
        pinned: bool,
        kind: int | None,
        expires: float,
    ) -> None:
        now = self.grove.clock()
        wait = Wait(kind, now + until) if until is not None and kind is not None else None
        terms = None if until is None else Claim(now + until, now + 2 * until, priority, pinned, wait)
        self.on_offer.append(
            self.grove.leaf(
                used=now - age, hits=hits, streak=streak, owner=owner, claim=terms, expires=now + expires
            )
        )

    @rule(seconds=st.sampled_from([0.01, 0.5, 3.0, 100.0, 5000.0]))
    def wait(self, seconds: float) -> None:
        self.grove.clock.now += seconds

    @rule(at=st.integers(0, 99))
    def hold(self, at: int) -> None:
        if self.on_offer:
            node = self.on_offer.pop(at % len(self.on_offer))
            self.grove.evictor.resumed(node)
            self.grove.evictor.withdraw(node)
            self.withdrawn.append(node)

    @rule(at=st.integers(0, 99))
    def let_go(self, at: int) -> None:
        if self.withdrawn:
            node = self.withdrawn.pop(at % len(self.withdrawn))
            node.used = self.grove.clock()
            node.hits += 1
            self.grove.evictor.offer(node)
            self.on_offer.append(node)

    @rule(at=st.integers(0, 99))
    def come_back(self, at: int) -> None:
        if self.gone:
            self.grove.evictor.missed(self.gone[at % len(self.gone)])

    @rule(
        times=st.sampled_from([1, 70]),
        seconds=st.sampled_from([0.1, 3.0, 100.0]),
        kind=st.sampled_from([0, 7]),
    )
    def learn(self, times: int, seconds: float, kind: int) -> None:
        for _ in range(times):
            teach(self.grove, seconds, 1, claim=waiting(self.grove.clock(), kind))

    @rule(owner=st.sampled_from("abc"))
    def spare(self, owner: str) -> None:
        self.spared ^= {owner}

    @rule(payer=st.sampled_from([None, None, "a", "b"]))
    def evict(self, payer: str | None) -> None:
        got = self.grove.evictor.next(payer, self.spared.__contains__)
        eligible = [
            node
            for node in self.on_offer
            if node.owner == payer or (payer is None and node.owner not in self.spared)
        ]
        if not eligible:
            assert got is None
            return
        assert got is not None
        assert got in eligible
        self.on_offer.remove(got)
        self.gone.append(got.chain)
        assert self.stated(got) == min(map(self.stated, eligible))

    def stated(self, node: Node) -> tuple[int, int, float, float]:
        now = self.grove.clock()
        if node.expires <= now:
            return (0, 0, 0.0, node.used)
        terms = node.claim
        rank = 2 if node.hits >= 2 or node.streak >= 2 else 1
        priority = 0
        if terms is not None and (terms.pinned or now < terms.lapses):
            rank = 5 if terms.pinned else 4 if now < terms.until else 3
            priority = terms.priority
        return (rank, priority, self.grove.evictor.worth(node), node.used)

    @invariant()
    def consistent(self) -> None:
        self.grove.evictor.check(self.on_offer)


AgainstAnOracle.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAgainstAnOracle = AgainstAnOracle.TestCase


def test_a_conversation_that_was_evicted_and_goes_on_is_known_again() -> None:
    cache = PrefixCache(4, 4, clock=ManualClock(1.0))
    for streak in range(3):
        cursor = Cursor(b"root")
        run(cache, cursor)
        assert cursor.streak == streak
        assert cache.evict(4) == 2


def test_who_was_put_off_does_not_come_back_to_its_own_pages() -> None:
    cache = PrefixCache(4, 4, clock=ManualClock(1.0))
    cursor = Cursor(b"root")
    for _ in range(2):
        run(cache, cursor)
        assert cursor.streak == 0
        assert cache.evict(4) == 2


def run(cache: PrefixCache, cursor: Cursor) -> None:
    tokens = list(range(8))
    assert not cache.match(cursor, [*tokens, 8]).pages
    pages = cache.allocate(2)
    assert pages is not None
    cache.publish(cursor, tokens, pages, len(tokens))
    cache.release(pages)


def test_an_order_of_its_own_is_used_even_while_it_holds_nothing() -> None:
    """An order without leaves is as long as none: that must not stand for no order at all."""
    order = Evictor(ManualClock())
    assert len(order) == 0
    cache = PrefixCache(4, 4, clock=ManualClock(), evictor=order)
    pages = cache.allocate(1)
    assert pages is not None
    cache.publish(Cursor(b"root"), [1, 2, 3, 4], pages, 4)
    cache.release(pages)
    assert len(order) == 1

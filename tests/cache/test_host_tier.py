"""Slots: each in one role, nothing read before it is written, nothing overwritten while it is read."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.lease import FlushScope
from cache.tiers.host import HostTier
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta
from tests.cache.tier_pages import path_of
from tests.fakes import ManualClock


def tier_of(slots: int, **more: Any) -> HostTier:
    return HostTier(slots, clock=ManualClock(), **more)


def store(tier: HostTier, meta: PageMeta, **standing: Any) -> TierPage:
    page = tier.reserve(meta, **standing)
    assert page is not None
    tier.fill(page)
    tier.check()
    return page


def test_a_page_is_found_once_it_is_filled() -> None:
    tier = tier_of(2)
    meta = path_of([1, 2])[0]
    page = tier.reserve(meta)
    assert page is not None
    assert tier.holds(meta.root, meta.chain)
    assert tier.find(meta.root, meta.chain) is None
    tier.fill(page)
    assert tier.find(meta.root, meta.chain) is page
    assert tier.find(b"other root", meta.chain) is None


def test_what_was_not_brought_is_forgotten() -> None:
    tier = tier_of(1)
    meta = path_of([1, 2])[0]
    page = tier.reserve(meta)
    assert page is not None
    tier.abandon(page)
    tier.check()
    assert not tier.holds(meta.root, meta.chain)
    store(tier, meta)


def test_a_full_tier_gives_what_matters_least() -> None:
    gone: list[TierPage] = []
    tier = tier_of(2, on_evict=gone.append)
    first, second = (store(tier, path_of([n, n])[0]) for n in (1, 2))
    tier.index.use([first])
    store(tier, path_of([3, 3])[0])
    assert gone == [second]
    assert tier.totals.evicted == 1


def test_a_page_seen_once_displaces_none_that_came_back() -> None:
    tier = tier_of(1)
    store(tier, path_of([1, 1])[0], hits=1)
    assert tier.reserve(path_of([2, 2])[0]) is None
    assert tier.reserve(path_of([2, 2])[0], hits=1) is not None


def test_a_pinned_slot_outlives_a_flush() -> None:
    tier = tier_of(1)
    page = store(tier, path_of([1, 1], tenant="a")[0])
    tier.pin(page)
    assert tier.flush_roots(FlushScope(tenant="a")) == 1
    assert tier.reserve(path_of([2, 2])[0]) is None, "somebody reads the slot"
    tier.unpin(page)
    tier.check()
    assert tier.reserve(path_of([2, 2])[0]) is not None


def test_a_page_in_the_making_is_flushed_too() -> None:
    tier = tier_of(1)
    meta = path_of([1, 1])[0]
    page = tier.reserve(meta)
    assert page is not None
    tier.flush_roots(FlushScope())
    tier.fill(page)
    tier.check()
    assert tier.find(meta.root, meta.chain) is None
    store(tier, meta)


def test_pages_past_their_end_are_not_found() -> None:
    tier = tier_of(2)
    meta = path_of([1, 1], max_age=5.0)[0]
    store(tier, meta)
    tier.index.now.now += 6.0  # type: ignore[attr-defined]
    assert tier.find(meta.root, meta.chain) is None
    store(tier, meta)
    tier.index.now.now += 6.0  # type: ignore[attr-defined]
    assert tier.sweep() == 1
    tier.check()
    assert tier.pages == 0


class Slots(RuleBasedStateMachine):
    """Random work on a small tier. `contents` is what a memory would hold: what is read has to be what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.tier = HostTier(4, clock=self.clock)
        self.contents: dict[int, bytes] = {}
        self.filling: list[TierPage] = []
        self.reading: list[TierPage] = []

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=2, max_size=6),
        root=st.sampled_from([b"a", b"b"]),
        hits=st.integers(0, 1),
        until=st.sampled_from([0.0, 5.0, 50.0]),
    )
    def reserve(self, tokens: list[int], root: bytes, hits: int, until: float) -> None:
        meta = path_of(tokens, root=root, tenant=root.decode(), max_age=20.0 if hits else None)[-1]
        if self.tier.holds(meta.root, meta.chain):
            return
        page = self.tier.reserve(meta, hits=hits, until=until)
        if page is not None:
            busy = {other.place for other in (*self.filling, *self.reading)}
            assert page.place not in busy, "a slot that is read or written was given away"
            self.contents[page.place] = b"?"
            self.filling.append(page)

    @rule(which=st.integers(0, 9), works=st.booleans())
    def end_filling(self, which: int, works: bool) -> None:
        if self.filling:
            page = self.filling.pop(which % len(self.filling))
            if works:
                self.contents[page.place] = page.meta.chain
                self.tier.fill(page)
            else:
                self.tier.abandon(page)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=2, max_size=6), root=st.sampled_from([b"a", b"b"]))
    def read(self, tokens: list[int], root: bytes) -> None:
        found = []
        for meta in path_of(tokens, root=root):
            page = self.tier.find(meta.root, meta.chain)
            if page is None:
                break
            assert page.meta.tokens == meta.tokens
            self.tier.pin(page)
            found.append(page)
        self.tier.index.use(found)
        self.reading += found

    @rule(which=st.integers(0, 9))
    def end_reading(self, which: int) -> None:
        if self.reading:
            self.tier.unpin(self.reading.pop(which % len(self.reading)))

    @rule(tenant=st.sampled_from([None, "a", "b"]), idle=st.sampled_from([None, None, 3.0]))
    def flush(self, tenant: str | None, idle: float | None) -> None:
        scope = FlushScope(tenant=tenant, idle_for=idle)
        fits = [page for page in self.tier.index.search(scope) if page is not None]
        if idle is None:
            assert self.tier.flush_roots(scope) == len(fits)
            return
        for page in self.tier.index.search(scope):
            if page is not None:
                assert self.tier.drop(page)
                fits.remove(page)
        assert not fits

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.tier.sweep()

    @invariant()
    def holds_together(self) -> None:
        self.tier.check()
        for page in self.reading:
            assert self.contents[page.place] == page.meta.chain, "read before it was written, or overwritten"
        for page in self.tier.index:
            assert not page.filled or self.contents[page.place] == page.meta.chain


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""Pages in slots of the host's memory. Which slot holds what; never the bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..lease import FlushScope, TenantLimits
from .index import Rank, Root, TierIndex, TierPage
from .page import PageMeta


@dataclass(slots=True)
class TierTotals:
    """What a tier did since the start, in pages: see `engine.request.TierCounters`."""

    stored: int = 0
    evicted: int = 0
    failed: int = 0


class HostTier:
    """`slots` slots, for one thread. A slot is free, or one page's; a page that is written or read is pinned, and so is its
    slot, even when the page itself was flushed meanwhile.

    `on_evict` hears of each page that went for want of room.
    """

    def __init__(
        self,
        slots: int,
        *,
        limits: Callable[[str], TenantLimits] = lambda tenant: TenantLimits(),
        clock: Callable[[], float],
        on_evict: Callable[[TierPage], None] = lambda page: None,
    ) -> None:
        self.slots = slots
        self.index = TierIndex(slots, limits=limits, clock=clock)
        self.totals = TierTotals()
        self._on_evict = on_evict
        self._free = list(range(slots - 1, -1, -1))
        self._leaving: dict[int, TierPage] = {}  # by slot: out of the index, but somebody has them pinned
        self._dead: list[Root] = []  # flushed, with slots to collect

    @property
    def pages(self) -> int:
        return self.index.count

    def find(self, root: bytes, chain: bytes) -> TierPage | None:
        """A page that can be read now."""
        page = self.index.get(root, chain)
        if page is None or not page.filled:
            return None
        if self.index.expired(page):
            self.drop(page)
            return None
        return page

    def holds(self, root: bytes, chain: bytes) -> bool:
        """Whether it is here or on its way."""
        return self.index.get(root, chain) is not None

    def reserve(self, meta: PageMeta, *, hits: int = 0, until: float = -math.inf) -> TierPage | None:
        """A slot for a page that is not here, pinned until `fill` or `abandon`; None if all hold what matters more."""
        rank = Rank.LEASED if until > self.index.now() else Rank.AGAIN if hits else Rank.ONCE
        slot = self._take_slot(meta.tenant, rank)
        if slot is None:
            return None
        page = self.index.add(meta, hits=hits, until=until)
        page.place = slot
        return page

    def fill(self, page: TierPage) -> None:
        """Its bytes are there."""
        page.filled = True
        self.totals.stored += 1
        self.unpin(page)

    def abandon(self, page: TierPage) -> None:
        """Its bytes will not come."""
        self.drop(page)
        self.unpin(page)

    def pin(self, page: TierPage) -> None:
        self.index.pin(page)

    def unpin(self, page: TierPage) -> None:
        self.index.unpin(page)
        if not page.pins and self._leaving.pop(page.place, None) is not None:
            self._free.append(page.place)

    def drop(self, page: TierPage) -> bool:
        """Nobody finds it any more; its slot is free once nobody has it pinned. False if it was gone already."""
        if not page.wanted:
            return False
        self.index.remove(page)
        self._let_go(page)
        return True

    def flush_roots(self, scope: FlushScope) -> int:
        """Drop the roots that fit a scope, in O(1) each; how many pages it were."""
        roots = self.index.matching_roots(scope)
        for root in roots:
            self.index.drop_root(root)
        self._dead += roots
        return sum(len(root.pages) for root in roots)

    def sweep(self) -> int:
        """Drop what is too old to be used; how many pages it were."""
        pages = self.index.too_old()
        for page in pages:
            self.drop(page)
        return len(pages)

    def _take_slot(self, payer: str, rank: Rank) -> int | None:
        while not self._free and self._dead:
            self._collect(self._dead.pop())
        if not self._free:
            victim = self.index.victim(payer, rank)
            if victim is None:
                return None
            self.totals.evicted += 1
            self.drop(victim)
            self._on_evict(victim)
        return self._free.pop()

    def _collect(self, root: Root) -> None:
        for page in root.pages.values():
            self._let_go(page)

    def _let_go(self, page: TierPage) -> None:
        if page.pins:
            self._leaving[page.place] = page
        else:
            self._free.append(page.place)

    def check(self) -> None:
        """Assert that every slot has exactly one role. Linear in the tier."""
        self.index.check()
        roles = [*self._free, *self._leaving, *(page.place for page in self.index)]
        for root in self._dead:
            roles += [page.place for page in root.pages.values()]
        assert sorted(roles) == list(range(self.slots)), "a slot with no role, or with two"
        for slot, page in self._leaving.items():
            assert page.place == slot
            assert page.pins, "a slot nobody has pinned is not free"
            assert not page.wanted
        for page in self.index:
            assert page.filled or page.pins, "a slot that nobody fills"

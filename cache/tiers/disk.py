"""Pages in files: which there are, and which go when there is no room. The files themselves are `page_files`.

For one thread. Files are written and removed by others, so a page is here from when it is decided to write it; it can be
found once it is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ..lease import FlushScope, TenantLimits
from .header import FoundPage
from .host import TierTotals
from .index import Rank, Root, TierIndex, TierPage
from .page import PageMeta


class DiskTier:
    """`capacity` pages of `page_bytes` in files, at most. Whoever calls what takes pages out removes their files: the calls return them."""

    def __init__(
        self,
        capacity: int,
        *,
        limits: Callable[[str], TenantLimits] = lambda tenant: TenantLimits(),
        clock: Callable[[], float],
        page_bytes: int = 0,
    ) -> None:
        self.page_bytes = page_bytes
        self.index = TierIndex(capacity, limits=limits, clock=clock)
        self.totals = TierTotals()

    @property
    def pages(self) -> int:
        return self.index.count

    def find(self, root: bytes, chain: bytes) -> TierPage | None:
        """A page that can be read, or could be when it was last seen."""
        page = self.index.get(root, chain)
        if page is None or not page.filled or self.index.expired(page):
            return None
        return page

    def holds(self, root: bytes, chain: bytes) -> bool:
        """Whether it is here or on its way."""
        return self.index.get(root, chain) is not None

    def restore(self, found: Iterable[FoundPage]) -> list[PageMeta]:
        """Take in what was there at the start; the pages that are too old or too many are returned."""
        refused: list[PageMeta] = []
        now = self.index.now()
        for one in sorted(found, key=lambda one: one.idle):
            meta = one.header.meta
            too_old = meta.max_age is not None and one.idle > meta.max_age
            if too_old or self.index.count >= self.index.capacity or self.holds(meta.root, meta.chain):
                refused.append(meta)
                continue
            page = self.index.add(meta, hits=one.header.hits, used=now - one.idle)
            self._settle(page)
        return refused

    def reserve(
        self, meta: PageMeta, *, hits: int = 0, until: float = -math.inf
    ) -> tuple[TierPage | None, TierPage | None]:
        """A place for a page that is not here, until `settle` or `drop`, None if all hold what matters more; and the page
        that went for it, if one did."""
        gone: TierPage | None = None
        if self.index.count >= self.index.capacity:
            rank = Rank.LEASED if until > self.index.now() else Rank.AGAIN if hits else Rank.ONCE
            gone = self.index.victim(meta.tenant, rank)
            if gone is None:
                return None, None
            self.totals.evicted += 1
            self.index.remove(gone)
        return self.index.add(meta, hits=hits, until=until), gone

    def settle(self, page: TierPage) -> None:
        """It is written."""
        self.totals.stored += 1
        self._settle(page)

    def _settle(self, page: TierPage) -> None:
        page.filled = True
        self.index.unpin(page)

    def drop(self, page: TierPage) -> bool:
        """Nobody finds it any more. False if it was gone already."""
        was = page.wanted
        self.index.remove(page)
        return was

    def flush_roots(self, scope: FlushScope) -> list[Root]:
        """Drop the roots that fit a scope, in O(1) each."""
        roots = self.index.matching_roots(scope)
        for root in roots:
            self.index.drop_root(root)
        return roots

    def sweep(self) -> list[TierPage]:
        """Drop what is too old to be used."""
        pages = self.index.too_old()
        for page in pages:
            self.index.remove(page)
        return pages

    def check(self) -> None:
        self.index.check()

"""What the scheduler has of the tiers below the device: pages that go are kept there, a prefix that ends goes on there.

Pure bookkeeping, like the scheduler itself. The bytes are moved when a plan is carried out: the saves and loads planned
here since the last plan are those of the next one, and are settled with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

from cache.tiers.disk import DiskTier
from cache.tiers.host import HostTier
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta, chains

from .batch import PageLoad, PageSave
from .load_costs import LoadCosts

HITS_TO_LAST = 2
"""What was used so often goes to disk as well."""

LEASE_TO_LAST = 1800.0
"""And so does what is leased for as many seconds."""


class LowerTiers:
    """The host's slots, and which pages are on disk. For one thread, with one plan in flight.

    A page is saved once and pinned until the step that saves it is over; a page that is loaded is pinned until the step that
    loads it is over. If that step is lost, nobody knows what was saved: those slots are given up.
    """

    def __init__(
        self, host: HostTier, *, page_size: int, costs: LoadCosts, disk: DiskTier | None = None
    ) -> None:
        self.host = host
        self.disk = disk
        self.costs = costs
        self._page_size = page_size
        self._saves: list[tuple[TierPage, int]] = []  # with the page on the device
        self._loads: list[tuple[TierPage, int]] = []
        self._flight: tuple[list[tuple[TierPage, int]], list[tuple[TierPage, int]]] | None = None
        self._lasting: deque[TierPage] = deque()

    # ---- down --------------------------------------------------------------------------------------------------------

    def keep(self, meta: PageMeta, page: int, *, hits: int = 0, until: float = -math.inf) -> None:
        """A page leaves the device, or should be in more places than that: save it if there is a slot for it.

        Its bytes must stay as they are until the next plan is carried out.
        """
        if meta.lowest == "device":
            return
        known = self.host.index.get(meta.root, meta.chain)
        if known is not None:
            self.host.index.renew(known, hits=hits, until=until)
        else:
            known = self.host.reserve(meta, hits=hits, until=until)
            if known is None:
                return
            self._saves.append((known, page))
        self._consider(known)

    def _consider(self, page: TierPage) -> None:
        """Have it written to disk as well, if it is worth that."""
        index = self.host.index
        if (
            self.disk is None
            or page.lasting
            or page.meta.lowest != "disk"
            or (page.hits < HITS_TO_LAST and page.until < index.now() + LEASE_TO_LAST)
        ):
            return
        page.lasting = True
        if page.filled:
            self._lasting.append(page)

    def take_lasting(self) -> Iterator[TierPage]:
        """Pages whose bytes are in their slots, to be written to disk; each once."""
        while self._lasting:
            page = self._lasting.popleft()
            if page.wanted:
                yield page

    # ---- up ----------------------------------------------------------------------------------------------------------

    def find(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> list[TierPage]:
        """The pages from `first` on, after the chain `parent`, of all but the last token, that are worth loading."""
        found = self._in_host(root, parent, tokens, first)
        return found if self.costs.host_pays(first, len(found)) else []

    def look_up(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> tuple[int, int]:
        """How many pages the host's memory has from `first` on, and how many the disk after those."""
        found = self._in_host(root, parent, tokens, first)
        after = found[-1].meta.chain if found else parent
        return len(found), len(self.on_disk(root, after, tokens, first + len(found)))

    def on_disk(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> list[TierPage]:
        """The run of pages from `first` on that are on disk."""
        found: list[TierPage] = []
        if self.disk is None or root not in self.disk.index.roots:
            return found
        for chain, key in chains(parent, tokens, self._page_size, first=first, limit=len(tokens) - 1):
            page = self.disk.find(root, chain)
            if page is None or page.meta.tokens != key:
                break
            found.append(page)
        return found

    def _in_host(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> list[TierPage]:
        found: list[TierPage] = []
        if root not in self.host.index.roots:
            return found
        for chain, key in chains(parent, tokens, self._page_size, first=first, limit=len(tokens) - 1):
            page = self.host.find(root, chain)
            if page is None or page.meta.tokens != key:
                break
            found.append(page)
        return found

    def load(self, found: Sequence[TierPage], pages: Sequence[int]) -> int:
        """Have what was found loaded into these pages by the next plan; how many of it came from disk for this."""
        self.host.index.use(found)
        from_disk = 0
        for page, target in zip(found, pages, strict=True):
            self.host.pin(page)
            self._loads.append((page, target))
            from_disk += page.from_disk
            page.from_disk = False
            self._consider(page)
        return from_disk

    # ---- a step ------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Something is to be saved, with a plan or without one."""
        return bool(self._saves)

    def take(self) -> tuple[tuple[PageSave, ...], tuple[PageLoad, ...]]:
        """What the next plan moves. `settle` when it is over."""
        assert self._flight is None, "the moves in flight have to be settled first"
        saves, loads = self._flight = (self._saves, self._loads)
        self._saves, self._loads = [], []
        return (
            tuple(PageSave(page, kept.place) for kept, page in saves),
            tuple(PageLoad(kept.place, page) for kept, page in loads),
        )

    def settle(self, *, saved: bool) -> None:
        """The step is over. Without `saved` nobody knows what the slots hold that it was to fill."""
        assert self._flight is not None, "no moves are in flight"
        saves, loads = self._flight
        self._flight = None
        for page, _ in saves:
            if not saved:
                self.host.totals.failed += 1
                self.host.abandon(page)
                continue
            self.host.fill(page)
            if page.lasting and page.wanted:
                self._lasting.append(page)
        for page, _ in loads:
            self.host.unpin(page)

    def check(self) -> None:
        """Assert what holds for slots that are moved. Linear in the tier."""
        self.host.check()
        saves, loads = self._flight or ([], [])
        filling = [page.place for page, _ in (*saves, *self._saves)]
        loading = {page.place for page, _ in (*loads, *self._loads)}
        assert len(set(filling)) == len(filling), "two pages for one slot"
        assert not set(filling) & loading, "a slot is read before it is written"
        for page, _ in (*saves, *self._saves):
            assert page.pins, "a slot that is written could be given away"
            assert not page.filled
        for page, _ in (*loads, *self._loads):
            assert page.pins, "a slot that is read could be given away"
            assert page.filled

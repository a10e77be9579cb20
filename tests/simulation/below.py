"""The tiers below a simulated device: slots of words, and a disk that is a dictionary and takes its time."""

from __future__ import annotations

import random
from collections.abc import Callable

from cache.flushing import fits_root
from cache.lease import FlushScope
from cache.tiers.host import HostTier
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta
from engine.load_costs import LoadCosts
from engine.lower_tiers import LowerTiers
from tests.fakes import ManualClock, WordRunner


class Below:
    """`slots` of the host. Pages that have to leave them go to a disk, and come back for nobody in particular."""

    def __init__(
        self,
        draw: random.Random,
        runner: WordRunner,
        clock: ManualClock,
        *,
        host: Callable[..., HostTier],
        tiers: Callable[..., LowerTiers],
        slots: int,
        page_size: int,
    ) -> None:
        self._random = draw
        self._runner = runner
        self._disk: dict[bytes, tuple[PageMeta, list[int]]] = {}
        self._coming: list[TierPage] = []
        self.host = host(slots, clock=clock, on_evict=self._went)
        costs = LoadCosts(host_page=1.0, disk_page=1.0, page_size=page_size)
        self.tiers = tiers(self.host, page_size=page_size, costs=costs)
        runner.reserve(slots)

    def _went(self, page: TierPage) -> None:
        self._disk[page.meta.chain] = (page.meta, list(self._runner.slots[page.place]))

    def begin(self) -> None:
        """A page is read from disk into a slot; or what is read there arrives, or does not."""
        draw = self._random
        if self._coming and draw.random() < 0.5:
            self._arrive(self._coming.pop(draw.randrange(len(self._coming))), works=draw.random() < 0.9)
        elif self._disk:
            meta, _ = self._disk[draw.choice(list(self._disk))]
            page = None
            if not self.host.holds(meta.root, meta.chain):
                page = self.host.reserve(meta, hits=draw.randrange(2))
            if page is not None:
                page.from_disk = True
                self._runner.slots[page.place] = [2] * len(self._runner.slots[page.place])
                self._coming.append(page)

    def _arrive(self, page: TierPage, *, works: bool) -> None:
        known = self._disk.get(page.meta.chain)
        if works and known is not None:
            self._runner.slots[page.place] = list(known[1])
            self.host.fill(page)
        else:
            self.host.abandon(page)

    def flush(self, scope: FlushScope) -> None:
        """What of the disk fits a scope is gone. The host's memory is flushed by who flushes the device."""
        self._disk = {chain: kept for chain, kept in self._disk.items() if not _fits(scope, kept[0])}

    def drain(self) -> None:
        """Whatever was flushed while it was read is nowhere."""
        while self._coming:
            self._arrive(self._coming.pop(), works=True)
        self.tiers.check()
        assert not self.tiers.waiting or self.tiers.take(), "saves wait for a plan"
        assert not self.host.pages, "a flushed page is found"


def _fits(scope: FlushScope, meta: PageMeta) -> bool:
    return (
        fits_root(scope, tenant=meta.tenant, namespace=meta.namespace, adapter=meta.adapter)
        and scope.group in (None, meta.group)
        and scope.tag in (None, meta.tag)
        and scope.entry_id is None
    )

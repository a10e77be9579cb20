"""Which pages are on disk, and which of them go."""

from __future__ import annotations

from typing import Any

from cache.lease import FlushScope
from cache.tiers.disk import DiskTier
from cache.tiers.header import FileHeader, FoundPage, PageKind
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta
from tests.cache.tier_pages import path_of
from tests.fakes import ManualClock

KIND = PageKind(model_digest="m", dtype="float32", page_size=2, page_bytes=16)


def store(tier: DiskTier, meta: PageMeta, **standing: Any) -> TierPage:
    page, _ = tier.reserve(meta, **standing)
    assert page is not None
    tier.settle(page)
    tier.check()
    return page


def found(meta: PageMeta, idle: float, hits: int = 0) -> FoundPage:
    return FoundPage(FileHeader(kind=KIND, meta=meta, checksum=0, hits=hits), idle)


def test_a_page_is_found_once_it_is_written() -> None:
    tier = DiskTier(2, clock=ManualClock())
    (meta,) = path_of([1, 2])
    page, gone = tier.reserve(meta)
    assert page is not None
    assert gone is None
    assert tier.find(meta.root, meta.chain) is None
    assert tier.holds(meta.root, meta.chain)
    tier.settle(page)
    assert tier.find(meta.root, meta.chain) is page
    assert tier.drop(page)
    assert not tier.drop(page)
    tier.check()


def test_room_is_made_by_what_matters_least() -> None:
    tier = DiskTier(2, clock=ManualClock())
    kept = store(tier, path_of([1, 1])[0], hits=2)
    old = store(tier, path_of([2, 2])[0])
    page, gone = tier.reserve(path_of([3, 3])[0], hits=1)
    assert gone is old
    assert page is not None
    assert tier.reserve(path_of([4, 4])[0]) == (None, None), "one that was hit stays, one is being written"
    assert kept.wanted


def test_the_start_takes_the_newest_that_fit_and_refuses_the_rest() -> None:
    tier = DiskTier(2, clock=ManualClock(1000.0))
    newest, older, oldest = (path_of([n, n])[0] for n in (1, 2, 3))
    (expired,) = path_of([4, 4], max_age=5.0)
    refused = tier.restore(
        [found(oldest, 90.0), found(older, 60.0), found(expired, 6.0), found(newest, 1.0, 3)]
    )
    tier.check()
    assert refused == [expired, oldest]
    assert tier.find(newest.root, newest.chain) is not None
    _, gone = tier.reserve(path_of([5, 5])[0])
    assert gone is not None
    assert gone.meta == older


def test_flushes_and_ends_of_life() -> None:
    clock = ManualClock()
    tier = DiskTier(8, clock=clock)
    mine = [store(tier, meta) for meta in path_of([1, 2, 3, 4], root=b"a" * 32, tenant="a", group=b"g")]
    theirs = store(tier, path_of([1, 2], root=b"b" * 32, tenant="b", max_age=10.0)[0])
    fits = [page for page in tier.index.search(FlushScope(group=b"g")) if page is not None]
    assert set(fits) == set(mine)
    assert all(tier.drop(page) for page in fits)
    tier.check()
    clock.now = 11.0
    assert tier.find(theirs.meta.root, theirs.meta.chain) is None
    assert tier.sweep() == [theirs]
    again = store(tier, mine[0].meta)
    assert [root.key for root in tier.flush_roots(FlushScope(tenant="a"))] == [b"a" * 32]
    assert not again.wanted
    tier.check()
    assert tier.pages == 0

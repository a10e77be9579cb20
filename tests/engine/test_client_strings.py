"""Salts, keys, tags and names are clients' own: as many as they like, and nothing of the engine's grows by them."""

from __future__ import annotations

import pytest

from cache import entries, tombstones
from cache.lease import CachePolicy, EntrySpec, Lease
from cache.prefix_cache import Cursor, PrefixCache
from cache.tiers.disk import DiskTier
from cache.tiers.host import HostTier
from cache.tombstones import Tombstones
from engine.load_costs import LoadCosts
from engine.lower_tiers import LowerTiers
from tests.fakes import ManualClock
from tests.reach import reach

SIZE = 4
FEW, MANY = 1_000, 12_000


def serve(cache: PrefixCache, tiers: LowerTiers, number: int, *, salted: bool) -> None:
    """A request with a salt (if that), a key, a tag and an entry that nobody had before; its prompt is one of a few."""
    own = str(number)
    prompt = [number % 7] * (5 + number % 9)
    spec = EntrySpec(entry_id=own, tokens=len(prompt), lease=Lease(ttl=1e9, tag=own))
    cursor = Cursor(
        b"root" + (own.encode() if salted else b""),
        tenant="t",
        namespace=own.encode(),
        policy=CachePolicy(group=own.encode(), entries=(spec,)),
    )
    match = cache.match(cursor, prompt)
    fresh = cache.allocate(-(-len(prompt) // SIZE) - len(match.pages), "t")
    assert fresh is not None
    if match.tail is not None:
        cache.release([match.tail])
    pages = match.pages + fresh
    cache.publish(cursor, prompt, pages, len(prompt))
    cache.publish_tail(cursor, prompt, pages, len(prompt))
    cache.put_entry(cursor, spec, prompt)
    cache.release(pages)
    tiers.take()
    tiers.settle(saved=True)
    assert tiers.disk is not None
    for page in tiers.take_lasting():
        target, _ = tiers.disk.reserve(page.meta)
        if target is not None:
            tiers.disk.settle(target)


@pytest.mark.parametrize("salted", [True, False])
def test_what_clients_make_up_does_not_add_up(salted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memories that are full sooner than a server's."""
    monkeypatch.setattr(entries, "REMEMBERED", 32)
    monkeypatch.setattr(tombstones, "CAPACITY", 64)
    clock = ManualClock(1000.0)
    cache = PrefixCache(64, SIZE, clock=clock)
    cache._pages.tombstones = Tombstones(64)
    costs = LoadCosts(host_page=0.0, disk_page=0.0, page_size=SIZE)
    tiers = LowerTiers(HostTier(32, clock=clock), page_size=SIZE, costs=costs, disk=DiskTier(32, clock=clock))
    cache.on_evict = tiers.evicted
    sizes: list[int] = []
    for number in range(MANY):
        serve(cache, tiers, number, salted=salted)
        clock.now += 0.01
        if number % FEW == FEW - 1:
            sizes.append(reach(cache, tiers))
    cache.check(())
    warm, later = (
        sizes[: len(sizes) // 2],
        sizes[len(sizes) // 2 :],
    )  # heaps are cleared of what is stale now and then
    assert max(later) < 1.3 * max(warm), sizes

"""Which page of a tier goes first, and whose."""

from __future__ import annotations

import math

import pytest

from cache.lease import FlushScope, TenantLimits
from cache.tiers.index import Rank, TierIndex, TierPage
from cache.tiers.page import PageMeta
from tests.cache.tier_pages import path_of
from tests.fakes import ManualClock


def index_of(capacity: int = 8, **limits: TenantLimits) -> TierIndex:
    return TierIndex(capacity, limits=lambda name: limits.get(name, TenantLimits()), clock=ManualClock(100.0))


def put(index: TierIndex, meta: PageMeta, *, hits: int = 0, until: float = -math.inf) -> TierPage:
    page = index.add(meta, hits=hits, until=until)
    page.filled = True
    index.unpin(page)
    index.check()
    return page


def drain(index: TierIndex, payer: str = "", rank: Rank = Rank.LEASED) -> list[TierPage]:
    gone: list[TierPage] = []
    while (page := index.victim(payer, rank)) is not None:
        index.remove(page)
        index.check()
        gone.append(page)
    return gone


def test_a_path_goes_from_its_end() -> None:
    index = index_of()
    path = path_of([1, 2, 3, 4, 5, 6])
    for meta in reversed(path):  # as a device evicts it
        put(index, meta)
    assert [page.meta for page in drain(index)] == path[::-1]


def test_ranks_and_then_the_last_use_decide() -> None:
    index = index_of()
    names = {}
    for name, tokens, hits, until in (
        ("leased", [1, 1], 0, 900.0),
        ("again", [2, 2], 1, -math.inf),
        ("lapsed", [3, 3], 0, 90.0),
        ("old", [4, 4], 0, -math.inf),
    ):
        names[put(index, path_of(tokens)[0], hits=hits, until=until)] = name
        index.now.now += 1  # type: ignore[attr-defined]
    assert [names[page] for page in drain(index)] == ["lapsed", "old", "again", "leased"]


def test_a_lease_that_ends_lowers_a_page() -> None:
    index = index_of()
    leased = put(index, path_of([1, 1])[0], until=105.0)
    index.now.now = 103.0  # type: ignore[attr-defined]
    later = put(index, path_of([2, 2])[0])
    assert index.victim("", Rank.LEASED) is later
    index.now.now = 106.0  # type: ignore[attr-defined]
    assert index.victim("", Rank.LEASED) is leased


def test_a_page_displaces_none_of_a_higher_rank() -> None:
    index = index_of()
    put(index, path_of([1, 1])[0], hits=3)
    assert index.victim("", Rank.ONCE) is None
    assert index.victim("", Rank.AGAIN) is not None


def test_use_protects_and_pins_forbid() -> None:
    index = index_of()
    first, second = (put(index, path_of([n, n])[0]) for n in (1, 2))
    index.use([first])
    assert index.victim("", Rank.LEASED) is second
    index.pin(second)
    assert index.victim("", Rank.LEASED) is first
    index.unpin(second)
    assert index.victim("", Rank.LEASED) is second


def test_who_is_over_its_quota_pays_first_and_nobody_falls_below_a_floor() -> None:
    index = index_of(8, greedy=TenantLimits(quota=0.25), quiet=TenantLimits(floor=0.25))
    quiet = [put(index, path_of([n, n], root=b"q", tenant="quiet")[0]) for n in (1, 2)]
    index.now.now += 1  # type: ignore[attr-defined]
    greedy = [put(index, path_of([n, n], root=b"g", tenant="greedy")[0], hits=9) for n in (1, 2, 3)]
    others = [put(index, path_of([n, n], root=b"o", tenant="other")[0]) for n in (1, 2)]
    assert index.victim("other", Rank.ONCE) is greedy[0], "the one above its quota, whatever its rank"
    index.remove(greedy[0])
    assert drain(index, "other") == [*others, *greedy[1:]]
    assert drain(index, "quiet") == quiet, "its own it may push out"


def test_who_is_above_its_quota_is_told_anew_when_limits_change() -> None:
    quotas = {"a": 1.0, "b": 1.0}
    index = TierIndex(8, limits=lambda tenant: TenantLimits(quota=quotas[tenant]), clock=ManualClock())
    pages = {
        name: [put(index, path_of([n, n], root=name.encode(), tenant=name)[0]) for n in range(4)]
        for name in "ab"
    }
    assert index.victim("b", Rank.ONCE) is pages["a"][0], "used first"
    quotas["b"] = 0.25
    index.limits_changed()
    index.check()
    assert index.victim("a", Rank.ONCE) is pages["b"][0]


@pytest.mark.parametrize("payer", ["greedy", "other"])
def test_pages_that_are_still_written_cannot_pay_for_their_tenants_quota(payer: str) -> None:
    """A burst of them may be above it before the first one is there."""
    index = index_of(2, greedy=TenantLimits(quota=0.25))
    for n in (1, 2):
        index.add(path_of([n, n], root=b"g", tenant="greedy")[0])
    assert index.victim(payer, Rank.LEASED) is None
    index.check()


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (FlushScope(), {1, 2, 3, 4}),
        (FlushScope(tenant="a"), {1, 2}),
        (FlushScope(namespaces=(b"n2",)), {3}),
        (FlushScope(adapter=b"lora"), {4}),
        (FlushScope(group=b"g"), {2}),
        (FlushScope(tag="t", tenant="b"), {3}),
        (FlushScope(idle_for=5.0), {1}),
    ],
    ids=["all", "tenant", "namespace", "adapter", "group", "tag", "idle"],
)
def test_a_scope_selects(scope: FlushScope, expected: set[int]) -> None:
    index = index_of()
    put(index, path_of([1, 1], root=b"a", tenant="a", namespace=b"n1")[0])
    index.now.now += 5.0  # type: ignore[attr-defined]
    put(index, path_of([2, 2], root=b"a", tenant="a", namespace=b"n1", group=b"g")[0])
    put(index, path_of([3, 3], root=b"b", tenant="b", namespace=b"n2", tag="t")[0])
    put(index, path_of([4, 4], root=b"l", tenant="b", namespace=b"n1", adapter=b"lora")[0])
    assert {page.meta.tokens[0] for page in index.search(scope) if page is not None} == expected


def test_a_flushed_root_is_gone_at_once_and_can_come_again() -> None:
    index = index_of()
    old = [put(index, meta) for meta in path_of([1, 2, 3, 4])]
    index.drop_root(old[0].root)
    index.check()
    assert index.count == 0
    assert not old[0].wanted
    new = put(index, old[0].meta)
    assert index.get(new.meta.root, new.meta.chain) is new
    assert drain(index) == [new], "what was flushed is not in the order any more"


def test_pages_come_to_their_end_unless_they_are_used() -> None:
    index = index_of()
    used, idle = (put(index, path_of([n, n], max_age=10.0)[0]) for n in (1, 2))
    index.now.now = 105.0  # type: ignore[attr-defined]
    index.use([used])
    index.now.now = 111.0  # type: ignore[attr-defined]
    assert index.too_old() == [idle]
    assert index.expired(idle)
    assert not index.expired(used)
    index.now.now = 116.0  # type: ignore[attr-defined]
    assert index.too_old() == [used]

"""What is planned to go down and to come up, and what becomes of it when its step is over."""

from __future__ import annotations

import math

import pytest

from cache.tiers.disk import DiskTier
from cache.tiers.host import HostTier
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta
from engine.batch import PageLoad, PageSave
from engine.load_costs import LoadCosts
from engine.lower_tiers import LowerTiers
from tests.cache.tier_pages import ROOT, path_of
from tests.fakes import ManualClock

TOKENS = [1, 2, 3, 4, 5, 6, 7]
PATH = path_of(TOKENS)


def costs(**more: float) -> LoadCosts:
    return LoadCosts(**{"host_page": 1.0, "disk_page": 2.0, "page_size": 2, **more})  # type: ignore[arg-type]


def tiers_of(slots: int = 4, *, disk: int = 0, costs_: LoadCosts | None = None) -> LowerTiers:
    clock = ManualClock(10.0)
    return LowerTiers(
        HostTier(slots, clock=clock),
        page_size=2,
        costs=costs_ or costs(),
        disk=DiskTier(disk, clock=clock) if disk else None,
    )


def step(tiers: LowerTiers, *, saved: bool = True) -> tuple[tuple[PageSave, ...], tuple[PageLoad, ...]]:
    tiers.check()
    moves = tiers.take()
    tiers.check()
    tiers.settle(saved=saved)
    tiers.check()
    return moves


def keep(tiers: LowerTiers, *metas: PageMeta, hits: int = 0, until: float = -math.inf) -> None:
    for at, meta in enumerate(metas):
        tiers.keep(meta, 100 + at, hits=hits, until=until)


def found(tiers: LowerTiers, first: int = 0, tokens: list[int] = TOKENS) -> list[PageMeta]:
    parent = PATH[first - 1].chain if first else ROOT
    return [page.meta for page in tiers.find(ROOT, parent, tokens, first)]


def test_what_goes_is_saved_with_the_next_plan_and_found_after_it() -> None:
    tiers = tiers_of()
    keep(tiers, *PATH)
    assert tiers.waiting
    saves, loads = tiers.take()
    assert [save.page for save in saves] == [100, 101, 102]
    assert loads == ()
    assert found(tiers) == [], "nobody knows yet that it is there"
    tiers.settle(saved=True)
    assert found(tiers) == PATH
    assert found(tiers, 1) == PATH[1:]
    assert not tiers.waiting


def test_the_last_token_is_left_to_compute() -> None:
    tiers = tiers_of()
    keep(tiers, *PATH)
    step(tiers)
    assert found(tiers, tokens=TOKENS[:6]) == PATH[:2]
    assert found(tiers, tokens=[1, 2, 9, 9, 5]) == PATH[:1]


def test_a_step_that_is_lost_saved_nothing() -> None:
    tiers = tiers_of()
    keep(tiers, *PATH)
    step(tiers, saved=False)
    assert found(tiers) == []
    assert tiers.host.totals.failed == 3
    keep(tiers, *PATH)
    step(tiers)
    assert found(tiers) == PATH


def test_a_slot_that_is_loaded_is_not_given_away_before_its_step_is_over() -> None:
    tiers = tiers_of(1)
    keep(tiers, PATH[0])
    step(tiers)
    (page,) = tiers.find(ROOT, ROOT, TOKENS, 0)
    tiers.load([page], [7])
    assert tiers.host.reserve(path_of([9, 9])[0], hits=5) is None
    tiers.keep(path_of([9, 9])[0], 55, hits=5)
    assert tiers.take() == ((), (PageLoad(page.place, 7),))
    tiers.settle(saved=True)
    tiers.check()
    tiers.keep(path_of([9, 9])[0], 55, hits=5)
    assert tiers.take()[0] == (PageSave(55, page.place),)


def test_a_page_is_saved_once() -> None:
    tiers = tiers_of()
    keep(tiers, PATH[0])
    keep(tiers, PATH[0])
    saves, _ = step(tiers)
    assert len(saves) == 1
    keep(tiers, PATH[0], hits=3)
    assert step(tiers) == ((), ())
    assert tiers.host.index.get(ROOT, PATH[0].chain).hits == 3  # type: ignore[union-attr]


def test_what_may_not_leave_the_device_does_not() -> None:
    tiers = tiers_of(disk=4)
    (meta,) = path_of([1, 2], lowest="device")
    tiers.keep(meta, 1, hits=9)
    assert not tiers.waiting


@pytest.mark.parametrize(
    ("lowest", "hits", "until", "lasts"),
    [
        ("disk", 2, -math.inf, True),
        ("disk", 1, -math.inf, False),
        ("disk", 0, 10.0 + 1800.0, True),
        ("disk", 0, 10.0 + 1799.0, False),
        ("disk", 0, math.inf, True),
        ("host", 9, math.inf, False),
    ],
)
def test_what_is_worth_it_goes_on_to_disk(lowest: str, hits: int, until: float, lasts: bool) -> None:
    tiers = tiers_of(disk=4)
    (meta,) = path_of([1, 2], lowest=lowest)
    tiers.keep(meta, 1, hits=hits, until=until)
    assert list(tiers.take_lasting()) == [], "its bytes are not there yet"
    step(tiers)
    assert [page.meta for page in tiers.take_lasting()] == [meta] * lasts
    assert list(tiers.take_lasting()) == [], "once"


def test_what_is_loaded_again_and_again_becomes_worth_it() -> None:
    tiers = tiers_of(disk=4)
    keep(tiers, PATH[0])
    step(tiers)
    for expected in ([], [PATH[0]], []):
        tiers.load(tiers.find(ROOT, ROOT, TOKENS, 0)[:1], [3])
        step(tiers)
        assert [page.meta for page in tiers.take_lasting()] == expected


def test_nothing_is_loaded_that_is_cheaper_to_compute() -> None:
    for per_token, worth in ((0.4, False), (0.6, True)):
        tiers = tiers_of(
            costs_=LoadCosts(
                host_page=1.0, disk_page=1.0, page_size=2, recompute=lambda before, n, s=per_token: n * s
            )
        )
        keep(tiers, *PATH)
        step(tiers)
        assert bool(found(tiers)) == worth


def test_a_look_goes_on_from_the_host_to_the_disk() -> None:
    tiers = tiers_of(disk=4)
    assert tiers.disk is not None
    keep(tiers, PATH[0])
    step(tiers)
    for meta in PATH[1:]:
        page, _ = tiers.disk.reserve(meta)
        assert isinstance(page, TierPage)
        tiers.disk.settle(page)
    assert tiers.look_up(ROOT, ROOT, TOKENS, 0) == (1, 2)
    assert tiers.look_up(b"x" * 32, b"x" * 32, TOKENS, 0) == (0, 0)
    assert tiers.look_up(ROOT, PATH[0].chain, TOKENS, 1) == (0, 2)


def test_what_came_from_disk_is_counted_once() -> None:
    tiers = tiers_of(disk=4)
    keep(tiers, PATH[0])
    step(tiers)
    (page,) = tiers.find(ROOT, ROOT, TOKENS, 0)
    page.from_disk = True
    assert tiers.load([page], [1]) == 1
    step(tiers)
    assert tiers.load([page], [1]) == 0

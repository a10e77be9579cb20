"""Shares become pages, and nobody is promised what is not there."""

from __future__ import annotations

import pytest

from cache.accounts import Accounts, Limits, PinsExhausted
from cache.lease import TenantLimits


def accounts(*, pages: int = 100, longest: int = 10, **tenants: TenantLimits) -> Accounts:
    return Accounts(Limits(tenants, TenantLimits(quota=0.5, floor=0.1, pins=0.2)), pages, longest)


def test_shares_are_of_all_pages() -> None:
    account = accounts(a=TenantLimits(quota=0.7, floor=0.25, pins=0.333)).of("a")
    assert (account.quota, account.floor, account.pins) == (70, 25, 33)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"a": TenantLimits(floor=0.5), "b": TenantLimits(pins=0.41)}, "take up to 91 of 100 pages"),
        ({"a": TenantLimits(pins=0.91)}, "lower their shares"),
        ({"a": TenantLimits(quota=0.1, floor=0.2)}, "floor 0.2 of a is above its quota 0.1"),
        ({"a": TenantLimits(pins=1.5)}, "pins of a is a share from 0 to 1, not 1.5"),
        ({"a": TenantLimits(quota=-1.0)}, "quota of a is a share"),
    ],
)
def test_limits_that_leave_no_room_are_refused_in_one_line(
    limits: dict[str, TenantLimits], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        accounts(**limits)
    assert "\n" not in str(refused.value)


def test_what_just_fits_is_taken() -> None:
    accounts(a=TenantLimits(floor=0.5, pins=0.2), b=TenantLimits(pins=0.4))


def test_limits_of_others_are_checked_too() -> None:
    with pytest.raises(ValueError, match="floor of others"):
        Accounts(Limits({}, TenantLimits(floor=-0.1)), 10)


def test_unnamed_tenants_get_floors_while_there_is_room() -> None:
    book = accounts(a=TenantLimits(floor=0.7))
    assert [book.of(name).floor for name in ("x", "y", "z")] == [10, 10, 0]


def test_pins_are_capped_by_the_share_and_by_what_all_can_have() -> None:
    book = accounts(a=TenantLimits(floor=0.6, pins=0.6))
    x, y, a = (book.of(name) for name in ("x", "y", "a"))
    assert (book.left(x), book.left(y), book.left(a)) == (20, 20, 60)
    book.reserve(x, 15)
    with pytest.raises(PinsExhausted, match="6 pages cannot be pinned: 5 are left of the 20"):
        book.check_room(x, 6)
    assert book.left(y) == 15, "named tenants' shares, the floors and what others pinned come first"
    book.reserve(y, 15)
    assert book.left(book.of("z")) == 0
    assert book.left(a) == 60, "what a named tenant is promised nobody else can take"
    book.unreserve(x, 15)
    assert book.left(x) == 15


def test_who_is_over_its_quota_pays_by_how_much() -> None:
    book = accounts(a=TenantLimits(quota=0.1), b=TenantLimits(quota=0.1))
    a, b, x = (book.of(name) for name in "abx")
    for account, pages in ((a, 12), (b, 15), (x, 50)):
        book.charge(account, pages)
        account.idle = 1
    assert book.payers() == [b, a]
    b.idle = 0
    assert book.payers() == [a], "who has nothing to give cannot pay"
    book.charge(a, -2)
    assert book.payers() == []


def test_of_equals_the_same_pays_first_in_every_run() -> None:
    book = accounts()
    for name in "hcafgbed":
        book.charge(book.of(name), 60)
        book.of(name).idle = 1
    assert "".join(account.tenant for account in book.payers()) == "abcdefgh"


def test_a_floor_spares_idle_pages_up_to_it() -> None:
    book = accounts(a=TenantLimits(floor=0.2))
    a = book.of("a")
    for pages, idle, spared in ((10, 10, 10), (30, 30, 20), (30, 12, 2), (30, 5, 0), (0, 0, 0)):
        a.pages, a.idle = pages, idle
        assert book.spared_from(None) == a.spared == spared
    a.pages = a.idle = 20
    assert book.spared_from(a) == 0, "nobody is spared from itself"


def test_other_limits_count_at_once() -> None:
    whole = accounts(a=TenantLimits(quota=0.7, floor=0.25, pins=0.1))
    a, other = whole.of("a"), whole.of("x")
    whole.charge(a, 40)
    whole.change(
        Limits({"a": TenantLimits(quota=0.3), "b": TenantLimits(floor=0.5)}, TenantLimits(quota=0.2))
    )
    assert (a.quota, a.floor, a.pin_share) == (30, 0, int(TenantLimits().pins * 100))
    assert whole.over == {a}
    assert (other.quota, other.floor) == (20, 0)
    assert whole.floored == [whole.of("b")]
    assert whole.limits_of("y") == TenantLimits(quota=0.2)
    whole.change(Limits({}, TenantLimits(floor=0.8)))
    assert whole.over == set()
    assert sum(account.floor for account in whole) == 90, "the longest sequence has room"


def test_what_is_pinned_above_a_lowered_share_stays_and_no_more_is_added() -> None:
    whole = accounts(a=TenantLimits(pins=0.5))
    a = whole.of("a")
    whole.reserve(a, 30)
    whole.change(Limits({"a": TenantLimits(pins=0.2)}))
    assert a.pinned + a.reserved <= a.pins
    assert whole.left(a) == 0
    whole.unreserve(a, 15)
    assert whole.left(a) == 5


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits({"b": TenantLimits(floor=0.95)}), "take up to 95 of 100 pages"),
        (Limits({"b": TenantLimits(floor=0.7)}), "30 pages that other tenants have pinned"),
        (Limits({"b": TenantLimits(pins=2.0)}), "pins of b is a share"),
    ],
)
def test_limits_that_cannot_be_kept_change_nothing(limits: Limits, words: str) -> None:
    whole = accounts(a=TenantLimits(pins=0.5))
    whole.reserve(whole.of("a"), 30)
    before = [(each.tenant, each.quota, each.floor, each.pins, each.granted) for each in whole]
    with pytest.raises(ValueError, match=words):
        whole.change(limits)
    assert [(each.tenant, each.quota, each.floor, each.pins, each.granted) for each in whole] == before
    assert whole.find("b") is None

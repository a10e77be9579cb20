"""Leases, pins, quotas, floors, lifetimes: what is promised is kept, or broken only where it has to be, and told."""

from __future__ import annotations

import pytest

from cache import entries
from cache.accounts import PinsExhausted
from cache.cursor import Cursor
from cache.lease import EntrySpec, Lease, TenantLimits

from .desk import SIZE, Desk, text

# ---- what a request may have -----------------------------------------------------------------------------------------


def test_without_read_nothing_is_found_but_it_feeds() -> None:
    desk = Desk()
    assert desk.run(text(1, 2)) == 0
    assert desk.run(text(1, 2), read=False) == 0
    assert desk.run(text(2, 2), read=False) == 0
    assert desk.run(text(2, 2)) == 7


def test_without_write_it_finds_but_leaves_nothing() -> None:
    desk = Desk()
    desk.run(text(1, 1))
    assert desk.run(text(1, 2), write=False) == 4
    assert desk.found(text(1, 2)) == 4
    spec = EntrySpec(entry_id="e", tokens=4, lease=Lease(ttl=9))
    job = desk.start(text(1, 2), write=False, entries=(spec,))
    desk.publish(job)
    desk.end(job)
    assert desk.cache.entry("e") is None


@pytest.mark.parametrize("bound", [0, 1, 3, 4, 5, 8, 11, 12, 99])
def test_nothing_is_published_beyond_its_bound(bound: int) -> None:
    desk = Desk()
    job = desk.start(text(1, 2, more=3), write_tokens=bound)
    desk.publish(job)
    assert desk.found(text(1, 2, more=3)) == min(bound, 11) // SIZE * SIZE
    desk.end(job)
    assert desk.found(text(1, 2, more=3)) == min(bound, 11), "in the end a part of a page is published too"


# ---- leases ----------------------------------------------------------------------------------------------------------


def test_a_leased_page_outlives_those_used_later_and_more_often() -> None:
    desk = Desk(pages=4)
    desk.lease("e", text(1), ttl=60)
    for _ in range(4):
        desk.clock.now += 1
        desk.run(text(2))
    desk.squeeze(1)
    assert (desk.found(text(1)), desk.found(text(2))) == (4, 0)


def test_a_lease_protects_the_whole_path_above_it() -> None:
    desk = Desk(pages=8)
    desk.lease("e", text(1, 3), ttl=60)
    desk.run(text(2, 3))
    desk.squeeze(3)
    assert (desk.found(text(1, 3)), desk.found(text(2, 3))) == (12, 0)


@pytest.mark.parametrize(("renewal", "status"), [("use", "held"), ("write", "held"), (None, "lapsed")])
def test_its_minimum_counts_from_the_last_use_or_write(renewal: str | None, status: str) -> None:
    desk = Desk()
    desk.lease("e", text(1, 2), ttl=60)
    desk.clock.now += 50
    if renewal == "use":
        desk.run(text(1, 2) + text(3))
    elif renewal == "write":
        desk.run(text(1, 2), read=False)
    desk.clock.now += 50
    view = desk.cache.entry("e")
    assert view is not None
    assert view.status == status
    assert view.expires_in == (10 if renewal else -40)
    assert (view.hits, view.idle) == (renewal == "use", 50 if renewal else 100)


def test_whoever_parts_before_its_end_does_not_renew_it() -> None:
    desk = Desk()
    desk.lease("e", text(1, 1, more=2), ttl=60)
    desk.clock.now += 50
    desk.run([*text(1, 1), text(1, 2)[4], 7, 7])
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.expires_in, view.hits) == (10, 0)
    desk.run([*text(1, 1, more=2), 7, 7])
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.expires_in, view.hits) == (60, 1)


def test_a_prompt_that_is_the_entry_uses_it_though_its_last_token_is_computed() -> None:
    desk = Desk()
    for name, tokens in (("whole", text(1, 2)), ("tail", text(2, 1, more=3))):
        desk.lease(name, tokens, ttl=60)
        desk.clock.now += 50
        assert desk.run(tokens) == len(tokens) - 1
        view = desk.cache.entry(name)
        assert view is not None
        assert (view.expires_in, view.hits) == (60, 1)


def test_looking_renews_nothing() -> None:
    desk = Desk()
    desk.lease("e", text(1, 2), ttl=60)
    desk.clock.now += 50
    desk.found(text(1, 2))
    desk.gone(text(1, 2))
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.expires_in, view.hits, view.idle) == (10, 0, 50)


def test_a_sequence_that_asks_again_uses_once_and_never_what_it_wrote() -> None:
    desk = Desk()
    desk.lease("e", text(1, 2), ttl=60)
    job = desk.start(text(1, 3))
    for _ in range(3):
        again = desk.cache.match(job.cursor, job.tokens)
        desk.cache.release(again.pages)
    desk.publish(job)
    again = desk.cache.match(job.cursor, [*job.tokens, 1])
    assert len(again.pages) == 3
    desk.cache.release(again.pages)
    view = desk.cache.entry("e")
    assert view is not None
    assert view.hits == 1
    assert [node.hits for node in sorted(desk.cache.nodes(), key=lambda node: node.start)] == [1, 1, 0]


def test_a_broken_lease_is_counted_and_remembered_along_the_path() -> None:
    desk = Desk(pages=3)
    desk.lease("e", text(1, 2), ttl=60)
    desk.clock.now += 5
    assert desk.squeeze(2) == 2
    account = desk.cache.accounts.of("t")
    assert (account.broken_leases, account.broken_pauses) == (1, 0)
    assert account.evictions == {"pressure": 2}
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.status, view.cause, view.device, view.tokens) == ("broken", "pressure", 0, 8)
    desk.clock.now += 2
    assert desk.gone(text(1, 2)) == ("pressure", 2.0, True), "what the lease protected was broken with it"
    desk.lease("e", text(1, 2), ttl=60)
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.status, view.device) == ("held", 8)
    assert desk.gone(text(1, 2)) is None


def test_the_paths_of_broken_entries_take_no_more_room_than_so_many_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A path stays in memory for as long as an entry of it is remembered."""
    monkeypatch.setattr(entries, "REMEMBERED_TOKENS", 40)
    desk = Desk(pages=3)
    for number in range(6):
        desk.lease(f"e{number}", text(number, 3), ttl=60)
        desk.squeeze(3)
    assert [number for number in range(6) if desk.cache.entry(f"e{number}") is not None] == [3, 4, 5]
    monkeypatch.setattr(entries, "REMEMBERED_TOKENS", 1)
    desk.lease("e5", text(5, 3), ttl=60)
    desk.squeeze(3)
    assert [number for number in range(6) if desk.cache.entry(f"e{number}") is not None] == [5], (
        "the last, always"
    )


def test_a_part_of_a_broken_entry_may_still_be_there() -> None:
    desk = Desk(pages=3)
    desk.lease("e", text(1, 3), ttl=60)
    desk.squeeze(1)
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.status, view.device, len(view.chains)) == ("broken", 8, 3)


def test_a_lease_that_lapsed_breaks_nothing() -> None:
    desk = Desk(pages=1)
    desk.lease("e", text(1), ttl=60)
    desk.clock.now += 61
    desk.squeeze(1)
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.status, view.cause) == ("lapsed", "pressure")
    assert desk.cache.accounts.of("t").broken_leases == 0
    assert desk.gone(text(1)) == ("pressure", 0.0, False)


def test_several_entries_stand_on_one_page_and_end_apart() -> None:
    desk = Desk(pages=4)
    desk.lease("a", text(1), ttl=60)
    desk.lease("b", text(1), ttl=600)
    dropped = desk.cache.drop_entry("b")
    assert dropped is not None
    assert dropped.status == "held"
    desk.clock.now += 61
    desk.lease("c", text(2), ttl=5)
    desk.squeeze(1)
    assert (desk.found(text(1)), desk.found(text(2))) == (0, 4), "what b promised ended with it"
    assert desk.cache.drop_entry("b") is None


def test_an_entry_moves_to_where_it_is_put_again_and_keeps_its_hits() -> None:
    desk = Desk()
    desk.lease("e", text(1), ttl=60)
    desk.run(text(1) + text(9))
    desk.lease("e", text(2, 2), ttl=30)
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.tokens, view.hits, view.lease.ttl) == (8, 1, 30)
    assert desk.cache.entries.live == 1


def test_an_entry_of_somebody_else_cannot_be_taken() -> None:
    desk = Desk()
    desk.lease("e", text(1), ttl=60)
    desk.lease("e", text(2), ttl=1, tenant="mallory")
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.tenant, view.lease.ttl) == ("t", 60)


def test_a_tail_that_grows_keeps_its_lease() -> None:
    desk = Desk()
    desk.lease("e", text(1, 1, more=1), ttl=60)
    desk.run(text(1, 1, more=3))
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.status, view.tokens, view.device) == ("held", 5, 5)
    desk.clock.now += 50
    desk.run([*text(1, 1, more=2), 7, 7])  # parts from the page behind the entry's end
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.expires_in, view.hits) == (60, 2)
    assert desk.cache.evictions["replaced"] == 1


def test_an_entry_waits_until_its_last_token_stands_in_the_tree() -> None:
    desk = Desk()
    spec = EntrySpec(entry_id="e", tokens=6, lease=Lease(ttl=60))
    job = desk.start(text(1, 1, more=3), entries=(spec,))
    desk.publish(job)
    assert desk.cache.entry("e") is None
    desk.end(job)
    assert desk.cache.entry("e") is not None


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        ({"ttl": 0}, {"ttl": 60}),
        ({"ttl": 60, "priority": 10}, {"ttl": 60, "priority": 90}),
        ({"ttl": 600}, {"pin": "soft"}),
        ({"pin": "soft", "priority": 1}, {"pin": "soft", "priority": 2}),
    ],
)
def test_the_stronger_lease_stays(weaker: dict[str, object], stronger: dict[str, object]) -> None:
    desk = Desk(pages=2)
    desk.lease("strong", text(1), **stronger)
    desk.clock.now += 1
    desk.lease("weak", text(2), **weaker)
    desk.squeeze(1)
    assert (desk.found(text(1)), desk.found(text(2))) == (4, 0)


def test_patching_changes_a_lease_in_place() -> None:
    desk = Desk(pages=2)
    desk.lease("a", text(1), ttl=60)
    desk.lease("b", text(2), ttl=60)
    view = desk.cache.patch_entry("a", Lease(pin="soft"))
    assert view is not None
    assert (view.lease.pin, view.expires_in) == ("soft", None)
    desk.check()
    desk.squeeze(1)
    assert (desk.found(text(1)), desk.found(text(2))) == (4, 0)
    assert desk.cache.patch_entry("nobody", Lease()) is None


def test_the_crowd_on_one_page_stays_bounded() -> None:
    desk = Desk()
    desk.lease("long", text(1), ttl=9000)
    for number in range(200):
        desk.lease(f"e{number}", text(1), ttl=60)
    assert desk.cache.entries.live == 64
    assert desk.cache.entry("long") is not None
    assert desk.cache.entry("e199") is not None


# ---- pauses ----------------------------------------------------------------------------------------------------------


def test_a_conversation_that_waits_for_its_tools_is_kept_until_it_goes_on() -> None:
    desk = Desk(pages=4)
    job = desk.start(text(1, 1, more=2))
    desk.publish(job)
    tip = desk.end(job)
    assert tip is not None
    assert desk.cache.lease_tip(tip, Lease(ttl=120, pause=True))
    desk.clock.now += 100
    desk.run(text(2))
    desk.run(text(3))
    desk.squeeze(2)
    assert desk.found(text(1, 1, more=2)) == 6
    assert desk.run([*text(1, 1, more=2), 5, 5, 5]) == 6
    assert tip.holds is None, "it went on"
    assert desk.cache.entries.live == 0, "nobody asked for it"


def test_a_pause_that_is_broken_breaks_no_lease() -> None:
    desk = Desk(pages=1)
    job = desk.start(text(1))
    desk.publish(job)
    tip = desk.end(job)
    assert tip is not None
    desk.cache.lease_tip(tip, Lease(ttl=120, pause=True))
    desk.squeeze(1)
    account = desk.cache.accounts.of("t")
    assert (account.broken_leases, account.broken_pauses) == (0, 1)
    assert not desk.cache.lease_tip(tip, Lease(ttl=120, pause=True)), "it is gone"


# ---- pins ------------------------------------------------------------------------------------------------------------


def test_hard_pins_never_go_and_are_not_counted_as_room() -> None:
    desk = Desk(pages=8, others=TenantLimits(pins=0.5))
    desk.lease("p", text(1, 3), pin="hard")
    desk.run(text(2, 2))
    assert desk.cache.available == 5
    assert desk.cache.allocate(6) is None
    assert desk.found(text(2, 2)) == 8, "what cannot be had in full takes nothing"
    desk.squeeze(2)
    assert (desk.found(text(1, 3)), desk.found(text(2, 2))) == (12, 0)
    assert desk.cache.accounts.of("t").pinned == 3
    desk.cache.drop_entry("p")
    assert desk.cache.accounts.of("t").pinned == 0
    assert desk.squeeze(3) == 3


def test_pins_over_the_share_are_refused_naming_what_is_left() -> None:
    desk = Desk(pages=10, others=TenantLimits(pins=0.3))
    desk.lease("p", text(1, 2), pin="hard")
    with pytest.raises(PinsExhausted, match="2 pages cannot be pinned: 1 are left of the 3"):
        desk.lease("q", text(2, 2), pin="hard")
    desk.cache.release(desk.running.pop().pages)
    desk.lease("r", text(1, 2) + text(3), pin="hard")  # shares the pinned path: one page more
    assert desk.cache.accounts.of("t").pinned == 3
    desk.lease("s", text(1), pin="hard")
    desk.cache.drop_entry("r")
    desk.cache.drop_entry("p")
    assert desk.cache.accounts.of("t").pinned == 1
    desk.check()


def test_pins_are_reserved_before_they_are_computed() -> None:
    desk = Desk(pages=10, others=TenantLimits(pins=0.3))
    assert desk.cache.reserve_pins("t", 9) == 3
    with pytest.raises(PinsExhausted, match="0 are left"):
        desk.cache.reserve_pins("t", 1)
    desk.cache.release_pins("t", 3)
    desk.lease("p", text(1, 2, more=1), pin="hard")
    assert desk.cache.accounts.of("t").pinned == 3


def test_a_refused_patch_changes_nothing() -> None:
    desk = Desk(pages=10, others=TenantLimits(pins=0.1))
    desk.lease("e", text(1, 2), ttl=60)
    with pytest.raises(PinsExhausted):
        desk.cache.patch_entry("e", Lease(pin="hard"))
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.lease.pin, view.status) == ("none", "held")
    desk.check()


@pytest.mark.parametrize("tenants", [{}, {"a": TenantLimits(floor=0.3, pins=0.1)}])
def test_pins_and_floors_never_starve_the_longest_sequence(tenants: dict[str, TenantLimits]) -> None:
    desk = Desk(pages=20, tenants=tenants, others=TenantLimits(pins=0.5, floor=0.2), max_length=10 * SIZE)
    refused = 0
    for number, tenant in enumerate("abcde"):
        try:
            desk.lease(f"p{number}", text(number + 1, 3), tenant=tenant, pin="hard")
        except PinsExhausted:
            refused += 1
            desk.cache.release(desk.running.pop().pages)
        desk.run(text(number + 20, 2), tenant=tenant)
    assert refused, "all of it fits: nothing is shown"
    got = desk.cache.allocate(10, "newcomer")
    assert got is not None
    desk.cache.release(got)
    desk.check()


# ---- quotas and floors -----------------------------------------------------------------------------------------------


def test_whoever_is_above_its_quota_pays_first_and_right_away() -> None:
    desk = Desk(pages=16, tenants={"t": TenantLimits(quota=0.25)})
    desk.run(text(50, 2), tenant="other")
    desk.clock.now += 100
    for number in range(1, 4):
        desk.run(text(number, 2))
    account = desk.cache.accounts.of("t")
    assert account.pages <= 6
    assert desk.cache.accounts.of("t").evictions == {"quota": 2}
    desk.run(text(9, 4))
    assert (account.pages, account.evictions) == (4, {"quota": 6})
    assert desk.found(text(50, 2), tenant="other") == 8


def test_what_was_flushed_does_not_pay_for_a_quota() -> None:
    desk = Desk(pages=400, tenants={"t": TenantLimits(quota=0.2)})
    for number in range(1, 81):
        desk.run(text(number))
    desk.cache.flush()
    assert desk.cache.tree_pages, "all of it was reclaimed at once: nothing is shown"
    desk.run(text(100, 50))
    desk.run(text(200, 50))
    account = desk.cache.accounts.of("t")
    assert (account.pages, account.evictions["quota"]) == (80, 20)


def test_quotas_alone_break_no_promise() -> None:
    desk = Desk(pages=16, tenants={"t": TenantLimits(quota=0.25)})
    desk.run(text(50, 2), tenant="other")
    desk.clock.now += 5
    for number in range(1, 5):
        desk.lease(f"e{number}", text(number, 2), ttl=60)
    account = desk.cache.accounts.of("t")
    assert (account.pages, account.broken_leases) == (8, 0)
    desk.squeeze(1)
    assert (account.evictions, account.broken_leases) == ({"quota": 1}, 1), (
        "but room for others does, and it pays first"
    )
    assert desk.found(text(50, 2), tenant="other") == 8


def test_nobody_is_pushed_below_its_floor_by_others() -> None:
    desk = Desk(pages=8, tenants={"t": TenantLimits(floor=0.5)})
    desk.run(text(1, 6))
    assert desk.cache.available_to("other") == 4
    assert desk.cache.available_to("t") == 8
    assert desk.cache.allocate(5, "other") is None
    taken = desk.cache.allocate(4, "other")
    assert taken is not None
    assert desk.found(text(1, 6)) == 16
    desk.cache.check(taken)
    own = desk.cache.allocate(2, "t")
    assert own is not None, "from itself nobody is spared"
    assert desk.found(text(1, 6)) == 8


# ---- lifetimes -------------------------------------------------------------------------------------------------------


def test_what_has_expired_is_not_found_and_is_told_apart() -> None:
    desk = Desk()
    desk.run(text(1, 2), max_age=60.0)
    desk.clock.now += 59
    assert desk.found(text(1, 2)) == 8
    assert desk.run(text(1) + text(7), max_age=60.0) == 4, "a use renews it"
    desk.clock.now += 3
    assert desk.found(text(1, 2)) == 4
    desk.clock.now += 60
    assert desk.found(text(1, 2)) == 0
    assert desk.gone(text(1, 2)) == ("expired", 3.0, False)
    job = desk.start(text(1, 2))
    assert job.match.tokens(SIZE) == 0
    assert job.match.gone == ("expired", 3.0, False)
    assert desk.cache.tree_pages == 0, "what is looked for in vain goes at once"
    desk.end(job)
    desk.clock.now += 1e9
    assert desk.found(text(1, 2)) == 8, "whoever came last gave it no end"


def test_a_lease_does_not_outlive_the_age() -> None:
    desk = Desk(pages=2)
    spec = EntrySpec(entry_id="e", tokens=4, lease=Lease(ttl=600))
    desk.run(text(1), max_age=60.0, entries=(spec,))
    desk.clock.now += 61
    desk.run(text(2))
    desk.squeeze(1)
    assert (desk.found(text(1)), desk.found(text(2))) == (0, 4)
    view = desk.cache.entry("e")
    assert view is not None
    assert (view.cause, desk.cache.accounts.of("t").broken_leases) == ("expired", 0)
    assert desk.cache.evictions == {"expired": 1}


def test_a_page_that_runs_is_not_too_old() -> None:
    desk = Desk()
    job = desk.start(text(1, 2), max_age=60.0)
    desk.publish(job)
    desk.clock.now += 100
    assert desk.found(text(1, 2)) == 8
    desk.end(job)
    desk.clock.now += 59
    assert desk.found(text(1, 2)) == 8
    desk.clock.now += 1
    assert desk.found(text(1, 2)) == 0


def test_the_clock_may_stand_still_or_go_back() -> None:
    desk = Desk(pages=4)
    desk.lease("e", text(1), ttl=60)
    desk.run(text(2), max_age=5.0)
    desk.clock.now -= 500
    assert desk.found(text(2)) == 4
    desk.run(text(1) + text(3))
    desk.squeeze(3)
    assert desk.cache.evicted == 3


def test_a_page_may_go_as_far_as_one_of_those_who_wrote_all_of_it_allows() -> None:
    desk = Desk()
    desk.run(text(1), lowest="device", max_age=10.0)
    (node,) = desk.cache.nodes()
    assert (node.lowest, node.max_age) == ("device", 10.0)
    desk.run([*text(1)[:2], 9, 9], lowest="disk")
    assert (node.lowest, node.max_age) == ("device", 10.0), "a part of it is not all of it"
    desk.run(text(1), lowest="host", max_age=20.0)
    assert (node.lowest, node.max_age) == ("host", 20.0)
    desk.run(text(2)[:2], lowest="disk")
    desk.run(text(2), lowest="device", max_age=10.0)
    grown = next(node for node in desk.cache.nodes() if node.key[0] == 200)
    assert (grown.lowest, grown.max_age) == ("device", 10.0), "whose tail it was gave no leave for the rest"


# ---- what tiers are told ---------------------------------------------------------------------------------------------


def test_what_makes_room_is_announced_before_it_goes() -> None:
    desk = Desk(pages=2)
    desk.run(text(1), max_age=5.0)
    desk.run(text(2))
    chain = desk.cache.look_up(b"root/t/", [*text(2), 0]).chain
    desk.clock.now += 6
    desk.squeeze(2)
    assert desk.saved == [(chain, "pressure")], "what expired is worth nothing"


def test_evictions_are_known_by_chain_until_the_page_comes_back() -> None:
    desk = Desk(pages=4)
    desk.run(text(1, 2))
    desk.squeeze(2)
    desk.clock.now += 7
    assert desk.gone([*text(1, 2), 1]) == ("pressure", 7.0, False)
    assert desk.gone(text(2, 2)) is None, "what never was did not go"
    assert desk.gone(text(1, 2)[:3]) is None, "only whole pages are looked for"
    match = desk.cache.match(Cursor(b"root/t/", tenant="t"), [*text(1, 2), 1])
    assert match.gone == ("pressure", 7.0, False)
    desk.cache.release(match.pages)
    desk.run(text(1, 2))
    assert desk.gone([*text(1, 2), 1]) is None

"""What a request may have of the cache and what it leaves there: its policy, its entries, its pins."""

from __future__ import annotations

from typing import Any

import pytest

from cache.accounts import Limits
from cache.lease import CachePolicy, EntrySpec, FlushScope, Lease, TenantLimits
from tests.engine.bench import SIZE, Bench, prompt

MINUTE = Lease(ttl=60.0)
HARD = Lease(pin="hard")


def entries(*specs: tuple[str, int], lease: Lease = MINUTE, **policy: Any) -> CachePolicy:
    return CachePolicy(
        entries=tuple(EntrySpec(entry_id=name, tokens=n, lease=lease) for name, n in specs), **policy
    )


# ---- reading and writing ---------------------------------------------------------------------------------------------


def test_without_read_nothing_is_found_and_all_is_left() -> None:
    bench = Bench()
    bench.leave("a", prompt(18))
    bench.submit("b", [*prompt(18), 1, 2, 3, 4], max_tokens=0, cache=CachePolicy(read=False))
    bench.finish_all()
    assert bench.cached("b") == 0
    assert bench.ended["b"].written == 4, "the first 18 were known"
    assert bench.finds([*prompt(18), 1, 2, 3, 4]) == 22
    assert bench.scheduler.counters().cache.looked_up_tokens == 18


def test_without_write_all_is_found_and_nothing_is_left() -> None:
    bench = Bench()
    bench.leave("a", prompt(18))
    bench.submit("b", [*prompt(18), 1, 2, 3, 4], max_tokens=9, cache=CachePolicy(write=False))
    bench.finish_all()
    assert bench.cached("b") == 18
    assert bench.ended["b"].written == 0
    assert bench.finds([*prompt(18), 1, 2, 3, 4]) == 18


def test_several_choices_share_a_prompt_that_nobody_else_may_find() -> None:
    bench = Bench()
    bench.submit("a", prompt(18), n=3, cache=CachePolicy(read=False, write=False))
    bench.finish_all()
    assert bench.scheduler.counters().computed_tokens < 2 * 18
    assert bench.cache.tree_pages == 0


@pytest.mark.parametrize("limit", [0, 1, 4, 7, 8, 17, 18, 30])
@pytest.mark.parametrize("chunk", [5, 32])
def test_what_is_written_is_bounded_to_the_token(limit: int, chunk: int) -> None:
    bench = Bench(max_step_tokens=chunk, max_running=4)
    bench.submit("a", prompt(18), max_tokens=9, cache=CachePolicy(write_tokens=limit))
    bench.finish_all()
    assert bench.finds([*prompt(18), *bench.expected("a")]) == min(limit, 18 + 8)
    bench.submit("b", [*prompt(18), 1])
    bench.finish_all()
    assert bench.cached("b") == min(limit, 18)


def test_logprobs_of_the_prompt_bypass_reads_only() -> None:
    bench = Bench()
    bench.leave("a", prompt(12))
    bench.submit("b", prompt(18), max_tokens=0, prompt_logprobs=0, cache=entries(("e", 18)))
    bench.finish_all()
    assert bench.cached("b") == 0
    assert bench.ended["b"].written == 6
    assert bench.prompts["b"].entries == ("e",)
    assert bench.finds(prompt(18)) == 18


def test_what_is_too_old_is_not_found() -> None:
    bench = Bench()
    bench.leave("a", prompt(18), cache=CachePolicy(max_age=10.0))
    bench.clock.now += 11
    bench.submit("b", [*prompt(18), 1])
    bench.finish_all()
    assert bench.cached("b") == 0
    evicted = bench.started["b"].evicted
    assert evicted is not None
    assert evicted.cause == "expired"


# ---- entries ---------------------------------------------------------------------------------------------------------


def test_an_entry_stands_as_soon_as_its_tokens_do() -> None:
    bench = Bench(max_step_tokens=8)
    bench.submit("a", prompt(22), max_tokens=9, cache=entries(("short", 6), ("whole", 22), ("half", 15)))
    bench.step()
    assert bench.cache.entry("short") is not None
    assert bench.cache.entry("half") is None
    while "a" not in bench.prompts:
        bench.step()
    assert bench.prompts["a"].entries == ("short", "half")
    bench.finish_all()
    assert bench.ended["a"].entries == ("short", "half", "whole")
    whole = bench.cache.entry("whole")
    assert whole is not None
    assert (whole.tokens, whole.device, whole.status) == (22, 22, "held")


def test_an_entry_on_what_was_found_stands_with_the_prompt() -> None:
    bench = Bench()
    bench.leave("a", prompt(22))
    bench.submit("b", prompt(22), max_tokens=9, cache=entries(("e", 22)))
    bench.step()
    assert bench.cached("b") == 21
    assert bench.prompts["b"].entries == ("e",), "another left its last token there"


def test_no_entry_stands_on_what_was_not_computed() -> None:
    bench = Bench(max_step_tokens=8)
    bench.submit("a", prompt(22), cache=entries(("e", 12), ("f", 22)))
    bench.step()
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.abort("a")
    bench.commit(plan)
    assert bench.ended["a"].entries == ("e",), "what its last step brought counts"
    assert bench.cache.entry("f") is None
    bench.submit("b", prompt(22, 1), cache=entries(("g", 4)))
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.fail_step(plan, "lost")
    bench.hear()
    assert bench.ended["b"].entries == ()
    assert bench.cache.entry("g") is None


def test_an_entry_that_comes_again_is_renewed() -> None:
    bench = Bench()
    bench.leave("a", prompt(12), cache=entries(("e", 12)))
    bench.clock.now += 50
    bench.leave("b", prompt(12), cache=entries(("e", 12), lease=Lease(ttl=100.0, tag="new")))
    entry = bench.cache.entry("e")
    assert entry is not None
    assert entry.expires_in == pytest.approx(100)
    assert entry.lease.tag == "new"
    assert len(bench.cache.all_entries()) == 1


def test_a_lease_outlives_what_nobody_leased() -> None:
    bench = Bench(pages=16, max_model_len=64)
    bench.leave("leased", prompt(16, 1), cache=entries(("e", 16)))
    for i in range(2, 9):
        bench.leave(f"loose{i}", prompt(16, i))
    assert bench.finds(prompt(16, 1)) == 16
    assert bench.scheduler.counters().cache.evictions["pressure"] > 8


# ---- pins ------------------------------------------------------------------------------------------------------------


def pinned(bench: Bench, name: str, length: int, first: int = 0, **options: Any) -> None:
    bench.submit(name, prompt(length, first), cache=entries((f"entry-{name}", length), lease=HARD), **options)


def test_more_pins_than_a_tenant_may_have_fail_at_once_and_cost_nothing() -> None:
    bench = Bench(pages=40, max_model_len=64, limits=Limits(others=TenantLimits(pins=0.25)))
    pinned(bench, "fits", 24)
    pinned(bench, "second", 20, 1)
    assert bench.failed["second"].kind == "pins_exhausted"
    assert not bench.ended["second"].started
    assert not bench.scheduler.serves("second")
    pinned(bench, "third", 16, 2)
    assert "third" not in bench.failed, "what did not fit has reserved nothing"
    bench.finish_all()
    assert bench.scheduler.counters().cache.pinned_pages == 10


def test_what_was_reserved_for_a_pin_that_did_not_come_is_given_back() -> None:
    bench = Bench(pages=40, max_model_len=64, limits=Limits(others=TenantLimits(pins=0.25)))
    for name in ("waiting", "running", "in flight", "failed"):
        pinned(bench, name, 40)
        if name != "waiting":
            bench.step()
        plan = bench.plan() if name == "in flight" else None
        if name == "failed":
            bench.scheduler.fail_request(name, "engine_error", "told to")
        else:
            bench.scheduler.abort(name)
        if plan is not None:
            bench.commit(plan)
        bench.scheduler.check()
        bench.hear()
        bench.scheduler.flush()
    pinned(bench, "last", 40)
    assert "last" not in bench.failed
    bench.finish_all()
    assert bench.ended["last"].entries == ("entry-last",)


def test_renewing_a_pin_needs_no_room_of_its_own() -> None:
    bench = Bench(pages=40, max_model_len=64, limits=Limits(others=TenantLimits(pins=0.25)))
    for name in ("a", "b"):
        bench.leave(name, prompt(40), cache=entries(("e", 40), lease=HARD))
        assert bench.ended[name].entries == ("e",)


def test_a_pin_that_cannot_be_had_any_more_keeps_no_other_entry_from_being_made() -> None:
    bench = Bench(pages=40, max_model_len=64, limits=Limits(others=TenantLimits(pins=0.05)))
    bench.leave("a", prompt(8), cache=entries(("first", 8), lease=HARD))
    both = (*entries(("second", 8), lease=HARD).entries, *entries(("loose", 12)).entries)
    bench.submit("b", prompt(16), cache=CachePolicy(entries=both))
    assert "b" not in bench.failed, "its pages were pinned already"
    bench.cache.drop_entry("first")
    bench.submit("c", prompt(8, 1), cache=entries(("third", 8), lease=HARD))
    bench.finish_all()
    assert bench.ended["b"].entries == ("loose",)
    assert bench.ended["c"].entries == ("third",)


def test_a_request_of_maximum_length_runs_whatever_is_leased_pinned_and_promised() -> None:
    limits = Limits(
        {"quiet": TenantLimits(floor=0.25, pins=0.0), "pinner": TenantLimits(pins=0.25)},
        TenantLimits(pins=0.0),
    )
    bench = Bench(pages=32, max_model_len=64, limits=limits)
    namespaces = {"quiet": b"q", "pinner": b"p"}
    for tenant, lease in (("quiet", Lease(ttl=1e6)), ("pinner", HARD)):
        for i in range(2):
            bench.leave(
                f"{tenant}{i}",
                prompt(16, i),
                tenant=tenant,
                namespace=namespaces[tenant],
                cache=entries((f"{tenant}{i}", 16), lease=lease),
            )
    for i in range(4):
        bench.leave(
            f"leased{i}",
            prompt(24, i),
            tenant="other",
            namespace=b"o",
            cache=entries((f"l{i}", 24), lease=Lease(ttl=1e6)),
        )
    bench.submit("longest", prompt(40, 9), max_tokens=100, tenant="other", namespace=b"o")
    bench.finish_all()
    assert len(bench.tokens["longest", 0]) == 24
    for tenant, namespace in namespaces.items():
        for i in range(2):
            assert bench.finds(prompt(16, i), namespace=namespace) == 16, f"{tenant} was promised this"
    counters = bench.scheduler.counters()
    assert counters.cache.broken_leases > 0
    assert counters.preemptions == 0


# ---- flushing while it runs ------------------------------------------------------------------------------------------

SCOPES = {
    "all": FlushScope(),
    "its tenant": FlushScope(tenant="t"),
    "its namespace": FlushScope(namespaces=(b"n",)),
    "its group": FlushScope(group=b"g"),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_writer_does_not_bring_back_what_was_flushed(scope: FlushScope, steps: int) -> None:
    bench = Bench(max_step_tokens=8)
    options: dict[str, Any] = {"tenant": "t", "namespace": b"n", "n": 2}
    bench.submit("a", prompt(20), max_tokens=9, cache=entries(("e", 20), group=b"g"), **options)
    for _ in range(steps):
        bench.step()
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.flush(scope)
    bench.scheduler.check()
    bench.commit(plan)
    bench.finish_all()
    assert bench.finds([*prompt(20), *bench.expected("a")], namespace=b"n") == 0
    entry = bench.cache.entry("e")
    assert entry is None or entry.status == "flushed"
    bench.submit("b", prompt(20), max_tokens=0, cache=CachePolicy(group=b"g"), **options)
    bench.finish_all()
    assert bench.cached("b") == 0
    assert bench.finds(prompt(20), namespace=b"n") == 20, "a writer after the flush writes"


def test_nor_does_one_that_waits() -> None:
    bench = Bench(max_running=1)
    bench.submit("running", prompt(8, 1))
    bench.submit("waiting", prompt(8, 2))
    bench.step()
    bench.scheduler.flush()
    bench.finish_all()
    assert bench.finds(prompt(8, 2)) == 0


def test_who_follows_a_leader_that_was_flushed_goes_on_alone() -> None:
    bench = Bench(max_step_tokens=8)
    for name in ("leader", "follower", "third"):
        bench.submit(name, prompt(40), namespace=b"n")
    bench.step()
    bench.step()
    assert bench.scheduler.counters().cache.followers == 2
    bench.scheduler.flush()
    bench.finish_all()
    assert bench.cached("leader") == bench.cached("follower") == bench.cached("third") == 0
    assert bench.finds(prompt(40), namespace=b"n") == 0, "all of them came before the flush"


def test_nobody_follows_who_leaves_nothing() -> None:
    bench = Bench(max_step_tokens=8, max_running=8)
    bench.submit("silent", prompt(40), cache=CachePolicy(write=False))
    bench.submit("brief", prompt(40, 1), cache=CachePolicy(write_tokens=8))
    while bench.finds(prompt(8, 1)) < 8:
        bench.step()
    bench.submit("a", prompt(40))
    bench.submit("b", prompt(40, 1))
    bench.finish_all()
    assert bench.scheduler.counters().cache.followers == 0


# ---- tips ------------------------------------------------------------------------------------------------------------


def test_a_conversation_that_waits_for_its_tools_stays() -> None:
    bench = Bench(pages=16, max_model_len=64)
    bench.submit("agent", prompt(14, 1), max_tokens=3)
    bench.finish_all()
    talk = [*prompt(14, 1), *bench.expected("agent")][:16]
    bench.scheduler.lease_tip("agent", Lease(ttl=120.0, pause=True))
    for i in range(2, 9):
        bench.leave(f"other{i}", prompt(16, i))
    assert bench.finds(talk) == 16


def test_a_tip_that_is_gone_or_was_never_there_is_nothing() -> None:
    bench = Bench()
    bench.scheduler.lease_tip("nobody", Lease(ttl=1.0, pause=True))
    bench.leave("a", prompt(12), cache=CachePolicy(write=False))
    bench.scheduler.lease_tip("a", Lease(ttl=1.0, pause=True))
    bench.leave("b", prompt(12))
    bench.scheduler.flush()
    bench.scheduler.lease_tip("b", Lease(ttl=1.0, pause=True))
    bench.scheduler.check()
    for i in range(300):
        bench.leave(f"c{i}", [1])
    assert len(bench.scheduler._publications._tips._nodes) <= 256
    assert SIZE == 4

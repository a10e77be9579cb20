"""The scheduler's promises one by one. `tests/simulation` breaks them all at once."""

from __future__ import annotations

import pytest
from msgspec import structs

from cache.lease import CachePolicy
from engine.batch import Plan, RowResult, StepResult
from engine.request import (
    RequestFailed,
    RequestStarted,
    TokenLogprob,
)
from tests.engine.bench import Bench, prompt

# ---- budget and batching ---------------------------------------------------------------------------------------------


def test_a_long_prompt_goes_in_chunks_beside_what_generates() -> None:
    bench = Bench(max_step_tokens=10)
    bench.submit("short", prompt(3), max_tokens=10)
    assert bench.step() == [("short", 0, 3)]
    bench.submit("long", prompt(25, 1))
    assert bench.step() == [("short", 3, 1), ("long", 0, 9)]
    assert bench.step() == [("short", 4, 1), ("long", 9, 9)]
    assert bench.step() == [("short", 5, 1), ("long", 18, 7)]
    bench.finish_all()


def test_a_long_prompt_lets_short_ones_pass() -> None:
    bench = Bench(max_step_tokens=32)
    bench.submit("long", prompt(120), tenant="a")
    assert bench.step() == [("long", 0, 32)]
    bench.submit("short", prompt(6, 1), max_tokens=2, tenant="b")
    assert bench.step() == [("short", 0, 6), ("long", 32, 26)]
    assert bench.step() == [("short", 6, 1), ("long", 58, 31)]
    bench.submit("medium", prompt(40, 2), max_tokens=1)
    assert bench.step() == [("medium", 0, 16), ("long", 89, 16)]
    assert bench.step() == [("long", 105, 15), ("medium", 16, 17)]
    bench.finish_all()


def test_of_many_long_prompts_a_few_go_abreast() -> None:
    bench = Bench(max_step_tokens=32, pages=512)
    for i in range(8):
        bench.submit(str(i), prompt(200, i), max_tokens=1)
    most = 0
    while bench.scheduler.has_work:
        rows = bench.step()
        assert sum(count for _, _, count in rows) == 32 or bench.scheduler.counters().waiting == 0
        most = max(most, sum(count > 4 for _, _, count in rows))  # who lacks up to 4 is as good as done
    assert most == 4
    bench.finish_all()


def test_no_more_run_than_may() -> None:
    bench = Bench(max_running=2)
    for i in range(5):
        bench.submit(str(i), prompt(4, i))
    assert [name for name, _, _ in bench.step()] == ["0", "1"]
    assert bench.scheduler.counters().waiting == 3
    bench.finish_all()


def test_the_budget_has_to_feed_all_that_run() -> None:
    with pytest.raises(ValueError, match="cannot advance"):
        Bench(max_running=9, max_step_tokens=8)


def test_nothing_to_do_is_no_plan() -> None:
    bench = Bench()
    assert bench.plan() is None
    assert not bench.scheduler.has_work


def test_one_plan_at_a_time() -> None:
    bench = Bench()
    bench.submit("a", prompt(3))
    plan = bench.plan()
    assert plan is not None
    with pytest.raises(RuntimeError):
        bench.scheduler.plan()
    with pytest.raises(ValueError, match="0 results for 1 rows"):
        bench.scheduler.commit(plan, StepResult(()))
    with pytest.raises(ValueError, match="not in flight"):
        bench.scheduler.commit(Plan(99, ()), StepResult(()))
    bench.commit(plan)
    with pytest.raises(ValueError, match="not in flight"):
        bench.scheduler.fail_step(plan, "twice")
    bench.finish_all()


# ---- forced tokens ---------------------------------------------------------------------------------------------------


def force(bench: Bench, plan: Plan, count: int) -> StepResult:
    """What the runner samples, each followed by the next `count` tokens of the reference as forced ones."""
    rows = []
    for row, result in zip(plan.rows, bench.runner.run(plan).rows, strict=True):
        sequence = row.sequence
        rest = bench.expected(sequence.request.request_id, sequence.index)[sequence.generated + 1 :]
        rows.append(result if result.token is None else structs.replace(result, forced=tuple(rest[:count])))
    return StepResult(tuple(rows))


def forced_step(bench: Bench, count: int) -> list[tuple[str, int, int]]:
    plan = bench.plan()
    assert plan is not None
    bench.commit(plan, force(bench, plan, count))
    return [(row.sequence.request.request_id, row.start, row.count) for row in plan.rows]


def test_forced_tokens_come_with_the_one_they_follow_and_are_computed_at_once() -> None:
    bench = Bench()
    bench.submit("a", prompt(6), max_tokens=10)
    assert forced_step(bench, 2) == [("a", 0, 6)]
    assert bench.deltas[-1].tokens == tuple(bench.expected("a")[:3])
    assert forced_step(bench, 2) == [("a", 6, 3)]
    assert forced_step(bench, 3) == [("a", 9, 3)]
    assert bench.finish["a", 0] == "length", "the tenth token ends it, and what is forced after it is dropped"
    bench.finish_all()
    counters = bench.scheduler.counters()
    assert (counters.generated_tokens, counters.forced_tokens) == (10, 7)


def test_a_forced_end_takes_no_step() -> None:
    bench = Bench()
    bench.submit("a", prompt(3), max_tokens=10, stop_token_ids=(40, 41))
    plan = bench.plan()
    assert plan is not None
    bench.commit(plan, StepResult((RowResult(65, forced=(66, 41, 67)),)))
    assert bench.tokens["a", 0] == [65, 66, 41]
    assert bench.finish["a", 0] == "stop"
    assert not bench.scheduler.has_work


def test_what_is_sampled_may_be_the_end_whatever_it_forces() -> None:
    bench = Bench()
    bench.submit("stop", prompt(3, 1), max_tokens=9, stop_token_ids=(40,))
    bench.submit("length", prompt(3, 2), max_tokens=1)
    plan = bench.plan()
    assert plan is not None
    bench.commit(plan, StepResult((RowResult(40, forced=(66,)), RowResult(65, forced=(66,)))))
    assert bench.tokens == {("stop", 0): [40], ("length", 0): [65]}
    assert bench.scheduler.counters().forced_tokens == 0


def test_forced_tokens_keep_nobody_waiting_and_wait_for_no_prompt() -> None:
    bench = Bench(max_step_tokens=32, max_running=4)
    bench.submit("forced", prompt(4, 1), max_tokens=40)
    bench.submit("plain", prompt(4, 2), max_tokens=40)
    bench.step()
    bench.submit("long", prompt(150, 3))
    for _ in range(4):
        plan = bench.plan()
        assert plan is not None
        rows = list(force(bench, plan, 4).rows)
        rows[1] = structs.replace(rows[1], forced=())
        bench.commit(plan, StepResult(tuple(rows)))
        counts = {row.sequence.request.request_id: row.count for row in plan.rows}
        assert counts["plain"] == 1
        assert plan.tokens == 32
    assert counts == {"forced": 5, "plain": 1, "long": 26}
    bench.finish_all()


def test_a_long_forced_run_shares_a_step_with_a_prompt() -> None:
    bench = Bench(max_step_tokens=32, max_running=4)
    bench.submit("forced", prompt(4, 1), max_tokens=100)
    forced_step(bench, 80)
    bench.submit("long", prompt(150, 3))
    assert bench.step() == [("long", 0, 16), ("forced", 4, 16)]
    assert bench.step() == [("forced", 20, 16), ("long", 16, 16)]
    bench.finish_all()


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_forced_tokens_under_pressure_change_no_answer(count: int, prefix_cache: bool) -> None:
    """Several pages a step, preemption of what was forced and not computed yet, and what is published is found."""
    bench = Bench(pages=12, max_running=3, max_step_tokens=9, prefix_cache=prefix_cache)
    for turn in range(2):
        for i in range(4):
            bench.submit(f"{turn}-{i}", prompt(5, i), max_tokens=20, n=1 + i % 2, seed=i)
    for _ in range(1000):
        if not bench.scheduler.has_work:
            break
        forced_step(bench, count)
    assert bench.scheduler.counters().preemptions > 0
    bench.finish_all()


def test_a_row_whose_sampling_is_postponed_is_computed_once_more() -> None:
    bench = Bench()
    bench.submit("late", prompt(9, 1), n=2)
    bench.submit("b", prompt(3, 2))
    for _ in range(2):
        plan = bench.plan()
        assert plan is not None
        rows = list(bench.runner.run(plan).rows)
        rows[0] = RowResult(postponed=True)
        bench.commit(plan, StepResult(tuple(rows)))
        last = plan.rows[0]
    assert (last.start, last.count) == (8, 1)
    assert len(bench.tokens["b", 0]) == 2
    assert not bench.tokens["late", 0]
    bench.finish_all()


def test_a_failed_row_says_whose_fault_it_is() -> None:
    bench = Bench()
    bench.submit("a", prompt(9, 1))
    plan = bench.plan()
    assert plan is not None
    bench.commit(plan, StepResult((RowResult(error="no token fits", fault="bad_grammar"),)))
    assert bench.failed["a"] == RequestFailed("a", "bad_grammar", "no token fits")


# ---- reuse -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_second_identical_request_computes_one_token(prefix_cache: bool) -> None:
    bench = Bench(prefix_cache=prefix_cache)
    bench.submit("cold", prompt(18))
    bench.finish_all()
    bench.submit("warm", prompt(18))
    assert bench.step() == [("warm", 17, 1) if prefix_cache else ("warm", 0, 18)]
    assert (bench.cached("cold"), bench.cached("warm")) == (0, 17 if prefix_cache else 0)
    bench.finish_all()


def test_the_next_turn_reuses_prompt_and_answer() -> None:
    bench = Bench()
    bench.submit("first", prompt(9), max_tokens=6)
    bench.finish_all()
    history = prompt(9) + bench.tokens["first", 0]
    bench.submit("second", [*history, 1, 2, 3])
    bench.step()
    assert bench.cached("second") == len(history) - 1, "all that was forwarded: the last token never was"
    bench.finish_all()


def test_a_prefix_that_parts_inside_a_page_is_copied() -> None:
    bench = Bench()
    bench.submit("first", prompt(16), max_tokens=1)
    bench.finish_all()
    bench.submit("second", [*prompt(10), 90, 91, 92])
    plan = bench.plan()
    assert plan is not None
    (copy,) = plan.copies
    assert copy.tokens == 2
    assert plan.rows[0].start == 10
    assert copy.dst == plan.rows[0].sequence.pages[2]
    assert bench.cache.pool.holders(copy.src) == 2, "held by the tree and until the copy is done"
    bench.commit(plan)
    assert bench.cache.pool.holders(copy.src) == 1
    bench.finish_all()


@pytest.mark.parametrize(
    "difference", [{"namespace": b"n"}, {"adapter": b"x"}, {"cache": CachePolicy(read=False, write=False)}]
)
def test_what_must_not_be_shared_is_not(difference: dict[str, object]) -> None:
    bench = Bench()
    bench.submit("first", prompt(12))
    bench.finish_all()
    bench.submit("second", prompt(12), **difference)
    bench.finish_all()
    assert bench.cached("second") == 0


def test_a_request_without_cache_leaves_nothing_behind() -> None:
    bench = Bench()
    bench.submit("a", prompt(12), cache=CachePolicy(read=False, write=False))
    bench.finish_all()
    assert bench.cache.tree_pages == 0


# ---- single flight ---------------------------------------------------------------------------------------------------


def test_of_identical_prompts_one_is_computed() -> None:
    bench = Bench(max_step_tokens=16)
    for i in range(6):
        bench.submit(str(i), [*prompt(40), i])
    computed = [bench.step() for _ in range(3)]
    assert computed == [[("0", 0, 16)], [("0", 16, 16)], [("0", 32, 9)]]
    assert bench.scheduler.counters().waiting == 5
    rows = bench.step()
    assert rows[0] == ("0", 41, 1)
    assert [row[1:] for row in rows[1:]] == [(40, 1)] * 5
    bench.finish_all()
    assert [bench.cached(str(i)) for i in range(6)] == [0, 40, 40, 40, 40, 40]


def test_followers_go_their_own_way_where_prompts_part() -> None:
    bench = Bench(max_step_tokens=8)
    bench.submit("leader", prompt(40))
    bench.submit("follower", prompt(16) + [70] * 8)
    assert bench.step() == [("leader", 0, 8)]
    assert bench.step() == [("leader", 8, 8)]
    assert bench.step() == [("follower", 16, 4), ("leader", 16, 4)]
    assert bench.cached("follower") == 16
    bench.finish_all()


def test_strangers_do_not_wait_for_each_other() -> None:
    bench = Bench(max_step_tokens=32)
    bench.submit("a", prompt(8, 1))
    bench.submit("b", prompt(8, 2))
    bench.submit("c", prompt(8, 1), namespace=b"other")
    assert bench.step() == [("a", 0, 8), ("b", 0, 8), ("c", 0, 8)]
    bench.finish_all()


@pytest.mark.parametrize("how", ["abort", "fail", "deadline"])
def test_the_next_leads_when_a_leader_goes(how: str) -> None:
    bench = Bench(max_step_tokens=8)
    bench.submit("a", prompt(40), deadline=5.0 if how == "deadline" else None)
    bench.submit("b", prompt(40))
    bench.submit("c", prompt(40))
    bench.step()
    bench.step()
    if how == "abort":
        bench.scheduler.abort("a")
    elif how == "fail":
        bench.scheduler.fail_request("a", "engine_error", "gone")
    else:
        bench.clock.now = 6.0
    assert bench.step() == [("b", 16, 8)]
    bench.finish_all()
    assert bench.cached("c") == 39


def test_choices_share_the_prompt() -> None:
    bench = Bench()
    bench.submit("a", prompt(14), n=4, temperature=1.0, max_tokens=6)
    assert bench.step() == [("a", 0, 14)]
    plan = bench.plan()
    assert plan is not None
    assert [(row.start, row.count) for row in plan.rows] == [(14, 1), (13, 1), (13, 1), (13, 1)]
    assert [copy.tokens for copy in plan.copies] == [1, 1, 1]
    tables = [row.sequence.pages for row in plan.rows]
    assert all(table[:3] == tables[0][:3] for table in tables)
    assert len({table[3] for table in tables}) == 4
    bench.commit(plan)
    bench.finish_all()
    assert bench.scheduler.counters().prompt_tokens == 14
    assert len({tuple(bench.tokens["a", i]) for i in range(4)}) == 4


@pytest.mark.parametrize(
    "options", [{"cache": CachePolicy(read=False, write=False)}, {"prefix_cache": False}]
)
def test_choices_share_the_prompt_without_a_cache_too(options: dict[str, bool]) -> None:
    bench = Bench(prefix_cache=options.pop("prefix_cache", True))
    bench.submit("a", prompt(14), n=3, **options)
    bench.step()
    assert [row[1:] for row in bench.step()] == [(14, 1), (13, 1), (13, 1)]
    bench.finish_all()


def test_a_choice_may_be_aborted_alone() -> None:
    bench = Bench()
    bench.submit("a", prompt(14), n=3, max_tokens=8)
    bench.scheduler.abort("a", 0)
    bench.step()
    bench.scheduler.abort("a", 2)
    bench.finish_all()
    assert [bench.finish["a", i] for i in range(3)] == ["abort", "length", "abort"]
    assert bench.scheduler.counters().aborted == 2


# ---- room ------------------------------------------------------------------------------------------------------------


def test_a_prompt_is_admitted_whole_or_not_at_all() -> None:
    bench = Bench(pages=8, max_step_tokens=16)
    bench.submit("a", prompt(16), max_tokens=9)
    bench.submit("b", prompt(20, 1))
    assert bench.step() == [("a", 0, 16)]
    assert bench.step() == [("a", 16, 1)]
    assert bench.scheduler.counters().waiting == 1
    bench.finish_all()


def test_a_watermark_is_left_for_those_that_run() -> None:
    for watermark, admitted in ((0, 2), (4, 2), (5, 1)):
        bench = Bench(pages=8, watermark_pages=watermark)
        bench.submit("a", prompt(8), max_tokens=3)
        bench.submit("b", prompt(8, 1), max_tokens=3)
        assert len(bench.step()) == admitted
        bench.finish_all()


def test_alone_it_may_have_everything() -> None:
    bench = Bench(pages=4, watermark_pages=3)
    bench.submit("a", prompt(15), max_tokens=1)
    bench.finish_all()


def test_the_newest_of_the_lowest_priority_is_preempted() -> None:
    bench = Bench(pages=6)
    bench.submit("urgent", prompt(7, 1), max_tokens=12, priority=-1)
    bench.submit("old", prompt(7, 2), max_tokens=12)
    bench.submit("new", prompt(7, 3), max_tokens=12)
    while not bench.scheduler.counters().preemptions:
        bench.step()
    running = {row[0] for row in bench.step()}
    assert running == {"urgent", "old"}
    bench.finish_all()


def test_a_preempted_sequence_is_not_overtaken() -> None:
    bench = Bench(pages=6)
    bench.submit("a", prompt(7, 1), max_tokens=14)
    bench.submit("b", prompt(7, 2), max_tokens=14)
    bench.submit("c", prompt(7, 3), max_tokens=14)
    while not bench.scheduler.counters().preemptions:
        bench.step()
    bench.submit("later", prompt(4, 4), max_tokens=1)
    order: list[str] = []
    while bench.scheduler.has_work:
        order += [row[0] for row in bench.step() if row[0] in ("b", "c", "later")]
    assert order.index("later") > max(order.index("b"), order.index("c"))
    bench.finish_all()


def test_a_preempted_sequence_reuses_what_the_cache_kept() -> None:
    bench = Bench(pages=7)
    for name in "abc":
        bench.submit(name, prompt(7, ord(name)), max_tokens=12)
    bench.finish_all()
    counters = bench.scheduler.counters()
    assert counters.preemptions > 0
    assert counters.prompt_tokens == 21, "a prompt is counted once, however often it is computed"
    assert counters.cached_tokens == 0


def test_a_page_to_copy_from_may_be_the_one_that_is_missing() -> None:
    bench = Bench(pages=3)
    bench.submit("a", prompt(11), max_tokens=1)
    bench.finish_all()
    bench.submit("b", [*prompt(10), 90], max_tokens=1)
    bench.finish_all()
    assert bench.cached("b") == 8


@pytest.mark.parametrize("denied", range(1, 12))
def test_denied_allocations_delay_and_lose_nothing(denied: int) -> None:
    bench = Bench(pages=16)
    bench.cache.pool.deny(denied)
    bench.submit("a", prompt(9), n=2, max_tokens=9)
    bench.submit("b", prompt(9, 1), max_tokens=9)
    for _ in range(3):
        bench.step()
    bench.cache.pool.deny(denied)
    bench.finish_all()


# ---- fairness --------------------------------------------------------------------------------------------------------


def test_a_flood_of_one_tenant_does_not_starve_another() -> None:
    bench = Bench(max_running=4, max_step_tokens=64, pages=256)
    for i in range(60):
        bench.submit(f"flood{i}", prompt(12, i), tenant="a", max_tokens=8)
    for i in range(12):
        bench.submit(f"other{i}", prompt(12, 100 + i), tenant="b", max_tokens=8)
    served = {"a": 0, "b": 0}
    while served["b"] < 12 * 19:
        for name, _, count in bench.step():
            served[bench.requests[name].tenant] += count
    assert served["a"] <= 1.2 * served["b"] + 80
    bench.finish_all()


def test_coming_back_gives_no_credit() -> None:
    bench = Bench(max_running=1, pages=256)
    bench.submit("a0", prompt(40, 1), tenant="a")
    bench.step()
    bench.submit("b0", prompt(40, 2), tenant="b")
    for i in range(1, 4):
        bench.submit(f"a{i}", prompt(40, 10 + i), tenant="a")
        bench.submit(f"b{i}", prompt(40, 20 + i), tenant="b")
    order = []
    while bench.scheduler.has_work:
        for name, _, _ in bench.step():
            if name not in order:
                order.append(name)
    assert order[:6] == ["a0", "b0", "a1", "b1", "a2", "b2"]


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_lengths() -> None:
    bench = Bench(max_model_len=20)
    bench.submit("nothing", prompt(5), max_tokens=0)
    bench.submit("one", prompt(5, 1), max_tokens=1)
    bench.submit("context", prompt(5, 2), max_tokens=100)
    bench.submit("brim", prompt(19, 3), max_tokens=5)
    bench.submit("full", prompt(20, 4), max_tokens=0)
    bench.finish_all()
    lengths = {name: len(bench.tokens[name, 0]) for name in bench.requests}
    assert lengths == {"nothing": 0, "one": 1, "context": 15, "brim": 1, "full": 0}
    assert set(bench.finish.values()) == {"length"}


def test_stop_tokens() -> None:
    bench = Bench()
    bench.submit("plain", prompt(5), max_tokens=12)
    bench.finish_all()
    stop = bench.tokens["plain", 0][3]
    bench.submit("stopped", prompt(5), max_tokens=12, stop_token_ids=(stop,))
    bench.submit("barred", prompt(5), max_tokens=12, stop_token_ids=(stop,), min_tokens=12)
    bench.finish_all()
    first = bench.tokens["plain", 0].index(stop) + 1
    assert bench.tokens["stopped", 0] == bench.tokens["plain", 0][:first]
    assert bench.finish == {("plain", 0): "length", ("stopped", 0): "stop", ("barred", 0): "length"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": prompt(256)}, "too long"),
        ({"prompt": prompt(257), "max_tokens": 0}, "too long"),
        ({"prompt": [1], "n": 0}, "at least 1"),
        ({"prompt": [1], "max_tokens": -1}, "cannot be negative"),
    ],
)
def test_what_can_never_run_fails_at_once(options: dict[str, object], message: str) -> None:
    bench = Bench()
    bench.submit("bad", **options)  # type: ignore[arg-type]
    assert bench.failed["bad"].kind == "bad_request"
    assert message in bench.failed["bad"].message
    assert not bench.scheduler.has_work
    bench.scheduler.check()


def test_what_does_not_fit_the_pool_fails_at_once() -> None:
    bench = Bench(pages=4, max_model_len=1000)
    bench.submit("bad", prompt(16))
    assert bench.failed["bad"].kind == "bad_request"
    bench.submit("good", prompt(15), max_tokens=1000)
    bench.finish_all()
    assert bench.finish["good", 0] == "length"


def test_an_id_in_use_is_refused_and_its_owner_goes_on() -> None:
    bench = Bench()
    bench.submit("a", prompt(5))
    bench.submit("a", prompt(5))
    assert bench.failed["a"].message == "a request with this id is being served"
    del bench.failed["a"]
    bench.finish_all()
    assert bench.finish["a", 0] == "length"


def test_deadlines() -> None:
    bench = Bench(max_running=1)
    bench.submit("running", prompt(5), max_tokens=50, deadline=10.0)
    bench.submit("queued", prompt(5, 1), deadline=5.0)
    bench.submit("patient", prompt(5, 2), deadline=100.0)
    bench.step()
    bench.clock.now = 5.0
    bench.step()
    assert bench.failed["queued"].kind == "deadline"
    assert "queued" not in bench.started
    bench.clock.now = 4.0  # a clock that jumps back revives nobody
    bench.step()
    bench.clock.now = 10.0
    bench.step()
    assert set(bench.failed) == {"queued", "running"}
    bench.finish_all()
    assert bench.finish == {("patient", 0): "length"}


def test_deadlines_of_what_has_ended_are_forgotten() -> None:
    bench = Bench()
    for i in range(500):
        bench.submit(str(i), [i], max_tokens=1, deadline=1000.0)
        bench.finish_all()
    assert len(bench.scheduler._groups._deadlines) <= 129


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("n", [1, 3])
def test_abort_in_every_phase(steps: int, n: int, in_flight: bool) -> None:
    """Queued, in the middle of the prompt, generating, and in the step that would have finished it."""
    bench = Bench(max_step_tokens=8)
    bench.submit("other", prompt(6, 1), max_tokens=20)
    bench.submit("gone", prompt(14), n=n, max_tokens=3)
    for _ in range(steps):
        bench.step()
    plan = bench.plan() if in_flight else None
    before = dict(bench.finish)
    bench.scheduler.abort("gone")
    bench.scheduler.abort("gone")
    bench.scheduler.abort("never was")
    bench.scheduler.check()
    bench.hear()
    assert all(bench.finish["gone", i] in ("abort", before.get(("gone", i))) for i in range(n))
    if plan is not None:
        bench.commit(plan)
    bench.finish_all()
    bench.submit("again", prompt(14), max_tokens=3)
    bench.finish_all()


def test_pages_of_a_step_in_flight_stay_until_it_is_over() -> None:
    bench = Bench(prefix_cache=False)
    bench.submit("a", prompt(8))
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.abort("a")
    assert bench.cache.pool.free == 62
    bench.commit(plan)
    assert bench.cache.pool.free == 64
    assert bench.scheduler._endings._retired == [plan.rows[0].sequence.uid]
    bench.submit("b", [1])
    later = bench.plan()
    assert later is not None
    assert later.retired == (plan.rows[0].sequence.uid,)


def test_what_an_aborted_sequence_computed_is_found() -> None:
    bench = Bench(max_step_tokens=8)
    bench.submit("a", prompt(30))
    bench.step()
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.abort("a")
    bench.commit(plan)
    bench.submit("b", prompt(30))
    bench.finish_all()
    assert bench.cached("b") == 16


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_failed_step_fails_its_requests_only() -> None:
    bench = Bench(max_running=2)
    for i in range(3):
        bench.submit(str(i), prompt(9, i), n=2 if i == 0 else 1)
    bench.step()
    plan = bench.plan()
    assert plan is not None
    concerned = {row.sequence.request.request_id for row in plan.rows}
    assert concerned == {"0", "1"}
    bench.runner.garble(plan)
    bench.scheduler.fail_step(plan, "the forward raised")
    bench.scheduler.check()
    bench.hear()
    assert set(bench.failed) == concerned
    assert bench.failed["0"] == RequestFailed("0", "engine_error", "the forward raised")
    bench.submit("again", prompt(9, 1))
    bench.finish_all()


def test_a_failed_row_fails_its_request_only() -> None:
    bench = Bench()
    bench.submit("a", prompt(9, 1), n=2)
    bench.submit("b", prompt(9, 2))
    bench.step()
    plan = bench.plan()
    assert plan is not None
    results = list(bench.runner.run(plan).rows)
    results[0] = RowResult(error="the logits are not finite")
    bench.commit(plan, StepResult(tuple(results)))
    assert set(bench.failed) == {"a"}
    bench.finish_all()
    assert bench.finish == {("b", 0): "length"}


def test_a_row_that_should_have_sampled_and_did_not_is_a_failure() -> None:
    bench = Bench()
    bench.submit("a", prompt(3))
    plan = bench.plan()
    assert plan is not None
    bench.commit(plan, StepResult((RowResult(),)))
    assert bench.failed["a"].kind == "engine_error"


def test_flush_forgets_what_nobody_needs() -> None:
    bench = Bench()
    bench.submit("a", prompt(12))
    bench.finish_all()
    bench.submit("b", prompt(12), max_tokens=8)
    bench.step()
    bench.scheduler.flush()
    bench.scheduler.check()
    bench.finish_all()
    bench.scheduler.flush()
    assert bench.cache.survey().tokens == 0
    bench.cache.reclaim()
    assert bench.cache.pool.free == bench.cache.pool.total
    assert bench.cache.tree_pages == 0
    assert bench.cache.survey().namespaces == 0


# ---- log-probabilities of the prompt ---------------------------------------------------------------------------------


def with_logprobs(bench: Bench, plan: Plan) -> StepResult:
    """A made-up log-probability for each prompt position a row gets to know: minus the position."""
    rows = []
    for row, result in zip(plan.rows, bench.runner.run(plan).rows, strict=True):
        tokens, length = row.sequence.tokens, row.sequence.prompt_len
        known = range(row.start + 1, min(row.start + row.count + 1, length))
        rows.append(RowResult(result.token, None, tuple(TokenLogprob(tokens[p], -p) for p in known)))
    return StepResult(tuple(rows))


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_prompt_logprobs_come_once_and_whole(max_tokens: int) -> None:
    bench = Bench(max_step_tokens=8)
    bench.submit("warm", prompt(20))
    bench.finish_all()
    bench.submit("a", prompt(20), n=2, prompt_logprobs=0, max_tokens=max_tokens)
    while bench.scheduler.has_work:
        plan = bench.plan()
        assert plan is not None
        bench.commit(plan, with_logprobs(bench, plan))
    assert bench.cached("a") == 0, "what is cached has no log-probabilities"
    told = [delta for delta in bench.deltas if delta.prompt_logprobs is not None]
    (delta,) = told
    assert delta is next(d for d in bench.deltas if (d.request_id, d.index) == ("a", 0))
    assert delta.prompt_logprobs == (
        None,
        *(TokenLogprob(token, -p) for p, token in enumerate(prompt(20)) if p),
    )
    assert bench.finish["a", 1] == "length"


def test_prompt_logprobs_survive_a_preemption() -> None:
    bench = Bench(pages=6, max_step_tokens=8)
    bench.submit("first", prompt(7, 1), max_tokens=14)
    bench.submit("a", prompt(12, 2), prompt_logprobs=0, max_tokens=4, priority=1)
    for _ in range(40):
        plan = bench.plan()
        if plan is None:
            break
        bench.commit(plan, with_logprobs(bench, plan))
    told = [delta.prompt_logprobs for delta in bench.deltas if delta.prompt_logprobs is not None]
    assert [len(logprobs) for logprobs in told] == [12]
    bench.finish_all()


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_the_census_agrees_with_the_counters_and_the_pool() -> None:
    bench = Bench()
    bench.submit("a", prompt(10), n=2)
    bench.submit("b", prompt(30, 1))
    bench.step()
    census = bench.scheduler.census()
    assert census.counters == bench.scheduler.counters()
    counters = census.counters
    assert counters.pages_free + counters.pages_tree + census.pages_held == counters.pages_total
    assert (census.tree_nodes, census.tree_tokens, census.namespaces) == (
        counters.pages_tree,
        4 * counters.pages_tree,
        1,
    )
    bench.finish_all()
    assert bench.scheduler.census().pages_held == 0


def test_starts_tell_what_was_cached_and_how_long_it_took() -> None:
    bench = Bench(max_running=1)
    bench.submit("a", prompt(10), max_tokens=2)
    bench.submit("b", prompt(10), max_tokens=2)
    bench.clock.now = 1.0
    bench.step()
    bench.clock.now = 3.5
    bench.finish_all()
    assert bench.started["a"] == RequestStarted("a", 0, 1.0)
    assert bench.started["b"] == RequestStarted("b", 9, 3.5)
    assert bench.scheduler.counters().cached_tokens == 9


def test_a_lost_page_is_counted_and_breaks_nothing() -> None:
    bench = Bench()
    lost = bench.cache.allocate(1)
    bench.submit("a", prompt(10))
    while bench.scheduler.has_work:
        plan = bench.scheduler.plan()
        assert plan is not None
        bench.scheduler.commit(plan, bench.runner.run(plan))
    assert bench.scheduler.counters().failed_checks == 1
    with pytest.raises(AssertionError, match="counts 1 holders and has 0"):
        bench.scheduler.check()
    assert lost is not None

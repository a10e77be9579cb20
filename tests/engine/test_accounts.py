"""What is told of a request besides its tokens: that its prompt is cached, and its account, once, however it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cache.lease import CachePolicy
from engine.batch import RowResult, StepResult
from tests.engine.bench import SIZE, Bench, prompt


def check_identities(bench: Bench) -> None:
    assert bench.ended.keys() == bench.requests.keys(), "a request without an account"
    for name, account in bench.ended.items():
        request = bench.requests[name]
        assert 0 <= account.cached <= max(len(request.prompt) - 1, 0)
        assert account.cached + account.written <= len(request.prompt)
        assert account.started == (name in bench.started)
        if name in bench.prompts:
            lost = bench.prompts[name].written - account.written
            assert lost == 0 or (name in bench.failed and 0 < lost < SIZE)
    totals = bench.scheduler.counters()
    assert sum(account.computed for account in bench.ended.values()) == totals.computed_tokens
    assert sum(account.generated for account in bench.ended.values()) == totals.generated_tokens
    assert sum(account.cached for account in bench.ended.values()) == totals.cached_tokens


def test_a_finished_request() -> None:
    bench = Bench(pages=64)
    bench.submit("cold", prompt(22), max_tokens=5)
    bench.finish_all()
    bench.submit("warm", [*prompt(22), 7, 8, 9], max_tokens=5)
    bench.finish_all()
    cold, warm = bench.ended["cold"], bench.ended["warm"]
    assert (cold.cached, cold.written, cold.computed, cold.generated) == (0, 22, 26, 5)
    assert (warm.cached, warm.written, warm.computed, warm.generated) == (22, 3, 7, 5)
    check_identities(bench)


def test_a_prompt_that_nothing_is_generated_for_is_cached_to_its_last_token() -> None:
    bench = Bench(max_step_tokens=8)
    bench.submit("a", prompt(22), max_tokens=0)
    bench.finish_all()
    assert bench.prompts["a"].written == 22
    bench.submit("b", [*prompt(22), 1])
    bench.finish_all()
    assert bench.cached("b") == 22
    check_identities(bench)


@pytest.mark.parametrize("length", range(1, 14))
@pytest.mark.parametrize("max_tokens", [0, 1, 2, 3, 4, 9])
def test_what_was_not_found_and_is_there_afterwards_was_written(length: int, max_tokens: int) -> None:
    bench = Bench(max_step_tokens=8)
    for name in ("cold", "warm"):
        before = bench.finds(prompt(length))
        bench.submit(name, prompt(length), max_tokens=max_tokens)
        bench.finish_all()
        assert bench.finds(prompt(length)) == length
        assert bench.ended[name].written == bench.prompts[name].written == length - before
    check_identities(bench)


def test_a_prompt_that_may_be_written_in_part_counts_in_part() -> None:
    bench = Bench()
    for name, count in (("a", 9), ("b", 11)):
        bench.submit(name, prompt(14), max_tokens=6, cache=CachePolicy(write_tokens=count))
        bench.finish_all()
    assert [bench.ended[name].written for name in "ab"] == [9, 2]
    check_identities(bench)


def test_what_a_failure_keeps_from_being_published_is_not_written() -> None:
    bench = Bench()
    for name, steps in (("early", 1), ("late", 4)):
        bench.submit(name, prompt(14, ord(name[0])), max_tokens=20)
        for _ in range(steps):
            bench.step()
        bench.scheduler.fail_request(name, "engine_error", "told to")
        bench.hear()
        bench.finish_all()
        assert bench.prompts[name].written == 14
        assert bench.ended[name].written == bench.finds(prompt(14, ord(name[0])))
    assert [bench.ended[name].written for name in ("early", "late")] == [12, 14]


def test_of_several_choices_the_prompt_counts_once() -> None:
    bench = Bench()
    bench.submit("a", prompt(22), n=3, max_tokens=5)
    bench.finish_all()
    assert len(bench.prompts) == 1
    account = bench.ended["a"]
    assert (account.cached, account.written, account.generated) == (0, 22, 15)
    check_identities(bench)


def test_what_is_preempted_counts_once_and_what_is_computed_again_apart() -> None:
    bench = Bench(pages=13, max_step_tokens=64)
    bench.submit("a", prompt(20, 1), max_tokens=24)
    bench.submit("b", prompt(20, 2), max_tokens=24)
    bench.finish_all()
    counters = bench.scheduler.counters()
    assert counters.preemptions
    assert counters.cached_tokens == 0, "what a sequence finds of its own is no hit"
    again = counters.cache.recomputed_tokens
    assert 0 < again == counters.computed_tokens - 2 * (20 + 23)
    check_identities(bench)


def abort_waiting(bench: Bench) -> None:
    bench.scheduler.abort("a")


def abort_running(bench: Bench) -> None:
    bench.step()
    bench.scheduler.abort("a")


def abort_in_flight(bench: Bench) -> None:
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.abort("a")
    bench.hear()
    assert "a" not in bench.ended, "its step is not over"
    bench.commit(plan)


def fail_in_flight(bench: Bench) -> None:
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.fail_request("a", "engine_error", "told to")
    bench.hear()
    bench.commit(plan)


def lose_the_step(bench: Bench) -> None:
    plan = bench.plan()
    assert plan is not None
    bench.scheduler.abort("a", 1)
    bench.scheduler.fail_step(plan, "lost")


def fail_a_row(bench: Bench) -> None:
    bench.step()
    bench.step()
    plan = bench.plan()
    assert plan is not None
    result = bench.runner.run(plan)
    assert len(plan.rows) > 1
    bench.commit(plan, StepResult((RowResult(error="not finite"), *result.rows[1:])))


def miss_the_deadline(bench: Bench) -> None:
    bench.step()
    bench.clock.now += 1000
    bench.plan()


ENDS: dict[str, Callable[[Bench], None]] = {
    "aborted while it waits": abort_waiting,
    "aborted while it runs": abort_running,
    "aborted in a step": abort_in_flight,
    "failed in a step": fail_in_flight,
    "its step is lost": lose_the_step,
    "a row of it fails": fail_a_row,
    "its deadline passes": miss_the_deadline,
    "it finishes": lambda bench: None,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_every_end_has_one_account(end: Callable[[Bench], None]) -> None:
    bench = Bench(max_step_tokens=8, max_running=4)
    bench.submit("a", prompt(14), n=3, max_tokens=6, deadline=100.0)
    end(bench)
    bench.hear()
    bench.finish_all()
    assert bench.ended.keys() == {"a"}
    if end is not lose_the_step:
        check_identities(bench)


def test_one_that_is_refused_has_an_account_too() -> None:
    bench = Bench(max_model_len=16)
    bench.submit("long", prompt(17))
    assert bench.failed["long"].kind == "bad_request"
    assert not bench.ended["long"].started


def test_what_reads_nothing_writes_and_the_other_way_round() -> None:
    bench = Bench()
    bench.submit("first", prompt(16), max_tokens=0)
    bench.finish_all()
    bench.submit("bypass", prompt(16), max_tokens=0, cache=CachePolicy(read=False, write=False))
    bench.finish_all()
    assert (bench.ended["bypass"].cached, bench.ended["bypass"].written) == (0, 0)
    assert "bypass" in bench.prompts
    assert SIZE == 4
    check_identities(bench)

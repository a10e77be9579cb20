"""Hypothesis looks for a shortest sequence of calls that breaks the scheduler. The simulation has the wider world."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from cache.prefix_cache import PrefixCache
from engine.batch import Plan, PlannedRow, RowResult, StepResult
from engine.hash_model import reference
from engine.request import GenerationRequest, SamplingParams
from engine.scheduler import Scheduler
from tests.fakes import ManualClock, WordRunner

PAGES, SIZE, LONGEST = 9, 2, 16


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.cache = PrefixCache(PAGES, SIZE, clock=self.clock)
        self.scheduler = Scheduler(
            cache=self.cache,
            max_running=3,
            max_step_tokens=5,
            max_model_len=LONGEST,
            watermark_pages=1,
            clock=self.clock,
            root_key=lambda namespace, adapter: namespace + b"/" + adapter,
        )
        self.runner = WordRunner(PAGES, SIZE)
        self.plan: Plan | None = None
        self.held: list[str] = []
        self.requests: dict[str, GenerationRequest] = {}
        self.open: dict[tuple[str, int], list[int]] = {}

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=12),
        n=st.integers(1, 3),
        max_tokens=st.integers(0, 8),
        held=st.booleans(),
        kind=st.fixed_dictionaries(
            {
                "adapter": st.sampled_from((b"", b"x")),
                "priority": st.integers(0, 1),
                "deadline": st.none() | st.just(2.0),
            }
        ),
    )
    def submit(self, prompt: list[int], n: int, max_tokens: int, held: bool, kind: dict[str, Any]) -> None:
        request = GenerationRequest(
            request_id=str(len(self.requests)),
            prompt=prompt,
            n=n,
            sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
            **kind,
        )
        self.requests[request.request_id] = request
        self.open.update({(request.request_id, index): [] for index in range(n)})
        if self.scheduler.submit(request, held=held) and held:
            self.held.append(request.request_id)

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        request_id = self.held.pop()
        alive = any(request_id == name for name, _ in self.open)
        assert self.scheduler.release(request_id) == alive

    @precondition(lambda self: self.open)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        request_id, index = data.draw(st.sampled_from(sorted(self.open)))
        self.scheduler.abort(request_id, None if whole else index)

    @precondition(lambda self: self.plan is None)
    @rule(denied=st.sampled_from((0, 0, 0, 1)))
    def make_plan(self, denied: int) -> None:
        self.cache.pool.deny(denied)
        self.plan = self.scheduler.plan()
        self.cache.pool.deny(0)

    @precondition(lambda self: self.plan is not None)
    @rule(
        broken=st.none() | st.integers(0, 2),
        postponed=st.none() | st.integers(0, 2),
        forced=st.integers(0, 4),
    )
    def commit(self, broken: int | None, postponed: int | None, forced: int) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        rows = [
            self.with_forced(row, result, forced)
            for row, result in zip(plan.rows, self.runner.run(plan).rows, strict=True)
        ]
        if postponed is not None and postponed < len(rows) and plan.rows[postponed].sample:
            rows[postponed] = RowResult(postponed=True)
        if broken is not None and broken < len(rows):
            rows[broken] = RowResult(error="not finite")
        self.scheduler.commit(plan, StepResult(tuple(rows)))

    @staticmethod
    def with_forced(row: PlannedRow, result: RowResult, count: int) -> RowResult:
        """What the reference says next, as tokens that have to follow."""
        if result.token is None:
            return result
        sequence, request = row.sequence, row.sequence.request
        whole = reference(request.prompt, request.sampling, sequence.index, request.adapter, LONGEST)
        return structs.replace(result, forced=tuple(whole[sequence.generated + 1 :][:count]))

    @precondition(lambda self: self.plan is not None)
    @rule()
    def lose_step(self) -> None:
        plan, self.plan = self.plan, None
        assert plan is not None
        self.runner.garble(plan)
        self.scheduler.fail_step(plan, "the forward raised")

    @rule()
    def flush(self) -> None:
        self.scheduler.flush()

    @rule()
    def wait(self) -> None:
        self.clock.now += 1.0

    @invariant()
    def sound(self) -> None:
        self.scheduler.check()
        self.hear()
        counters = self.scheduler.counters()
        assert counters.running + counters.waiting == len(self.open)
        assert counters.failed_checks == 0

    def hear(self) -> None:
        events = self.scheduler.take_events()
        for delta in events.deltas:
            key = (delta.request_id, delta.index)
            request = self.requests[delta.request_id]
            got = self.open[key]  # KeyError: it has ended already
            got += delta.tokens
            expected = reference(request.prompt, request.sampling, delta.index, request.adapter, LONGEST)
            assert got == expected[: len(got)]
            if delta.finish is not None:
                assert delta.finish == "abort" or got == expected
                del self.open[key]
        for failed in events.failed:
            ended = [key for key in self.open if key[0] == failed.request_id]
            assert ended, "a failure after the end"
            for key in ended:
                del self.open[key]

    def teardown(self) -> None:
        while self.held:
            self.scheduler.release(self.held.pop())
        for _ in range(1000):
            if self.plan is not None:
                self.commit(None, None, 0)
            if not self.scheduler.has_work:
                break
            self.make_plan(0)
            self.sound()
        self.sound()
        assert not self.open, "starved"
        self.scheduler.flush()
        self.cache.reclaim()
        assert self.cache.pool.free == PAGES


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

"""What a step costs, in calls of Python functions: that does not depend on how busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType

from cache.prefix_cache import PrefixCache
from engine.batch import RowResult, StepResult
from engine.request import GenerationRequest, SamplingParams
from engine.scheduler import Scheduler

SIZE = 16


def calls(action: Callable[[], object]) -> int:
    """How many functions, Python's and C's, are called in the course of `action`."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def scheduler(running: int, context: int, *, waiting: int = 0, slots: int | None = None) -> Scheduler:
    """One in whose next step `running` sequences with about `context` tokens each generate one more."""
    engine = Scheduler(
        cache=PrefixCache(running * (context // SIZE + 2), SIZE, clock=lambda: 0.0),
        max_running=slots or running,
        max_step_tokens=running * context,
        max_model_len=10**6,
        clock=lambda: 0.0,
        root_key=lambda namespace, adapter: namespace + adapter,
    )
    for i in range(running + waiting):
        submit(engine, [i, *range(context - 4)])
    step(engine)
    return engine


def submit(engine: Scheduler, prompt: list[int]) -> None:
    name = str(prompt[0])
    engine.submit(GenerationRequest(request_id=name, prompt=prompt, sampling=SamplingParams(max_tokens=30)))


def step(engine: Scheduler) -> None:
    plan = engine.plan()
    assert plan is not None
    engine.commit(plan, StepResult(tuple(RowResult(65) for _ in plan.rows)))
    engine.take_events()
    engine.counters()


def step_cost(engine: Scheduler) -> int:
    return calls(lambda: step(engine))


def test_a_decode_step_is_linear_in_running_sequences() -> None:
    costs = [step_cost(scheduler(running, 64)) for running in (16, 32, 64, 128)]
    for smaller, larger in pairwise(costs):
        assert larger <= 2.05 * smaller
    assert costs[-1] / 128 < 40, "calls for each running sequence"


def test_a_decode_step_does_not_depend_on_the_context() -> None:
    costs = [step_cost(scheduler(8, context)) for context in (64, 512, 4096)]
    assert max(costs) == min(costs)


def test_a_decode_step_does_not_depend_on_who_waits() -> None:
    few, many = scheduler(8, 64, waiting=4), scheduler(8, 64, waiting=400)
    assert step_cost(many) == step_cost(few)


def test_a_blocked_prompt_is_not_looked_at_again_in_every_step() -> None:
    """A long prompt that does not fit must not cost its length in each step that it waits."""
    costs = []
    for length in (320, 640):
        engine = scheduler(8, 64, slots=9)
        submit(engine, [99] * length)
        first = step_cost(engine)
        costs.append(step_cost(engine))
        assert engine.counters().waiting == 1
        assert costs[-1] < first
    assert costs[0] == costs[1]

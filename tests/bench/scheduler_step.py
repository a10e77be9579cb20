"""What a decode step costs outside the model: `python -m tests.bench.scheduler_step`.

Prints, for some numbers of running sequences, microseconds for each row: of the scheduler (plan, commit, events and
counters) and of the hash model's own run. The best of several rounds, in CPU time: other processes on the machine make
the rest.
"""

from __future__ import annotations

import time

from cache.prefix_cache import PrefixCache
from engine.batch import NO_MASKS, Plan, StepResult
from engine.config import EngineConfig, HashModelConfig
from engine.hash_model import HashRunner
from engine.request import GenerationRequest, SamplingParams
from engine.scheduler import Scheduler

PAGE_SIZE = 16
CONTEXT = 1000
STEPS, ROUNDS = 50, 12


def main() -> None:
    print("rows  plan  commit  events  scheduler us/row  hash model ms/step")
    for running in (16, 32, 64, 128, 256):
        plan, commit, events, model = best_round(*start(running))
        scale = 1e6 / running
        print(
            f"{running:4}  {plan * scale:4.2f}  {commit * scale:6.2f}  {events * scale:6.2f}"
            f"  {(plan + commit + events) * scale:16.2f}  {model * 1e3:18.3f}"
        )


def start(running: int) -> tuple[Scheduler, HashRunner]:
    pages = running * (CONTEXT + 2 * STEPS * ROUNDS) // PAGE_SIZE + running
    model = HashModelConfig()
    scheduler = Scheduler(
        cache=PrefixCache(pages, PAGE_SIZE, clock=time.monotonic),
        max_running=running,
        max_step_tokens=8192,
        max_model_len=model.max_model_len,
        clock=time.monotonic,
        root_key=lambda namespace, adapter: namespace + adapter,
    )
    sampling = SamplingParams(max_tokens=10**6, temperature=0.0)
    for i in range(running):
        prompt = [i, *((i * 7 + j * 3) % 256 for j in range(CONTEXT - 1))]
        scheduler.submit(GenerationRequest(request_id=str(i), prompt=prompt, sampling=sampling))
    runner = HashRunner(EngineConfig(hash_model=model, page_size=PAGE_SIZE, pages=pages))
    while len(plan := need(scheduler.plan()).rows) < running or any(row.count > 1 for row in plan):
        finish(scheduler, runner)
    finish(scheduler, runner)
    return scheduler, runner


def need(plan: Plan | None) -> Plan:
    assert plan is not None
    return plan


def finish(scheduler: Scheduler, runner: HashRunner) -> None:
    flight = scheduler._flight
    assert flight is not None
    scheduler.commit(flight.plan, runner.run(flight.plan, NO_MASKS))
    scheduler.take_events()


def best_round(scheduler: Scheduler, runner: HashRunner) -> list[float]:
    """Seconds for each step: plan, commit, events, model."""
    best = [1e9] * 4
    clock = time.thread_time
    for _ in range(ROUNDS):
        spent = [0.0] * 4
        for _ in range(STEPS):
            marks = [clock()]
            plan = need(scheduler.plan())
            marks.append(clock())
            result: StepResult = runner.run(plan, NO_MASKS)
            marks.append(clock())
            scheduler.commit(plan, result)
            marks.append(clock())
            scheduler.take_events()
            scheduler.counters()
            marks.append(clock())
            for i, part in enumerate((0, 3, 1, 2)):
                spent[part] += marks[i + 1] - marks[i]
        best = [min(old, new / STEPS) for old, new in zip(best, spent, strict=True)]
    return best


if __name__ == "__main__":
    main()

"""What the prefix cache costs when it never hits: `python -m tests.bench.prefix_cost [STEP_MS]`.

Sends prompts that share nothing through a scheduler without a model, once with the cache and once without, in a pool so
small that every page it publishes is evicted again, and prints the difference in CPU time for each prompt token and each
generated token. With STEP_MS, the time of a real step, it prints the share of such a step as well.
"""

from __future__ import annotations

import sys
import time

from cache.prefix_cache import PrefixCache
from engine.batch import RowResult, StepResult
from engine.request import GenerationRequest, SamplingParams
from engine.scheduler import Scheduler

PAGE_SIZE = 16
ROWS, PROMPT, ANSWER = 32, 1024, 256
ROUNDS = 7


def main() -> None:
    with_cache = best(enabled=True)
    without = best(enabled=False)
    prompt = (with_cache[0] - without[0]) / (ROWS * PROMPT) * 1e6
    answer = (with_cache[1] - without[1]) / (ROWS * ANSWER) * 1e6
    print(
        f"prompt token:    {prompt:.3f} us (scheduler without cache {without[0] / (ROWS * PROMPT) * 1e6:.3f} us)"
    )
    print(
        f"generated token: {answer:.3f} us (scheduler without cache {without[1] / (ROWS * ANSWER) * 1e6:.3f} us)"
    )
    if len(sys.argv) > 1:
        step = float(sys.argv[1]) * 1e3
        print(f"share of a decode step of {ROWS} rows: {answer * ROWS / step:.2%}")


def best(*, enabled: bool) -> tuple[float, float]:
    """Seconds of one round for all prompts, and for all generated tokens."""
    pages = ROWS * (PROMPT + ANSWER) // PAGE_SIZE + ROWS
    scheduler = Scheduler(
        cache=PrefixCache(pages, PAGE_SIZE, clock=time.monotonic, enabled=enabled),
        max_running=ROWS,
        max_step_tokens=512,
        max_model_len=PROMPT + ANSWER,
        clock=time.monotonic,
        root_key=lambda namespace, adapter: namespace + adapter,
    )
    rounds = [one_round(scheduler, number) for number in range(ROUNDS)]
    return min(first for first, _ in rounds[1:]), min(second for _, second in rounds[1:])


def one_round(scheduler: Scheduler, number: int) -> tuple[float, float]:
    sampling = SamplingParams(max_tokens=ANSWER)
    for row in range(ROWS):
        prompt = [number * ROWS + row, *((row * 7 + i * 3) % 50000 for i in range(PROMPT - 1))]
        scheduler.submit(GenerationRequest(request_id=f"{number}.{row}", prompt=prompt, sampling=sampling))
    spent = [0.0, 0.0]
    while scheduler.has_work:
        started = time.thread_time()
        plan = scheduler.plan()
        planned = time.thread_time()
        assert plan is not None
        result = StepResult(tuple(RowResult(65) if row.sample else RowResult() for row in plan.rows))
        resumed = time.thread_time()
        scheduler.commit(plan, result)
        scheduler.take_events()
        ended = time.thread_time()
        generates = all(row.count == 1 for row in plan.rows)
        spent[generates] += planned - started + ended - resumed
    return spent[0], spent[1]


if __name__ == "__main__":
    main()

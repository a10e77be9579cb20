"""Milliseconds of the engine's own steps on a model, without scheduler, cache or gateway: `python -m tests.bench.model_steps`.

    python -m tests.bench.model_steps MODEL_DIR [--torch] [--seconds 5]

Prints a table row for each shape of step: the least of what fits into so many seconds, since whatever else runs on the
machine only adds.
`--torch` leaves the C kernels out. The prompt of 1,500 tokens is computed in chunks of 512.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from engine.batch import NO_MASKS, Plan, PlannedRow
from engine.config import EngineConfig
from engine.openmp import shorten_spinning
from tests.plans import make_sequence

CHUNK = 512
PAGE_SIZE = 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()

    shorten_spinning()
    from engine.runner import TorchRunner

    config = EngineConfig(
        model_dir=arguments.model_dir,
        native_kernels=not arguments.torch,
        threads=arguments.threads,
        max_model_len=2048,
        kv_bytes=2**31,
    )
    began = time.perf_counter()
    runner = TorchRunner.load(config)
    print(f"load {time.perf_counter() - began:.2f} s, attention {runner.info.attention}, {runner.info.dtype}")
    print("| step | ms | tokens/s |\n|---|---|---|")
    for label, steps, tokens in (
        ("decode, 1 row at 160", [make_rows(1, 159, 1)], 1),
        ("decode, 8 rows at 160", [make_rows(8, 159, 1)], 8),
        ("decode, 32 rows at 160", [make_rows(32, 159, 1)], 32),
        ("8 rows at 160 with one forced token each", [make_rows(8, 159, 2)], 16),
        ("8 rows at 160 with three", [make_rows(8, 159, 4)], 32),
        ("8 rows at 160 with seven", [make_rows(8, 159, 8)], 64),
        ("decode, 1 row at 1,500", [make_rows(1, 1499, 1)], 1),
        ("8 suffixes of 30 after 610 cached", [make_rows(8, 610, 30)], 240),
        ("prompt of 1,500", chunked(1500), 1500),
    ):
        milliseconds = least(
            lambda steps=steps: [runner.run(Plan(0, rows), NO_MASKS) for rows in steps], arguments.seconds
        )
        print(f"| {label} | {milliseconds:.1f} | {tokens / milliseconds * 1000:.0f} |", flush=True)


def make_rows(count: int, cached: int, new: int) -> tuple[PlannedRow, ...]:
    """Sequences on pages of their own. What is cached is whatever the pages hold: the time does not depend on it."""
    pages = -(-(cached + new) // PAGE_SIZE)
    rng = random.Random(count)
    return tuple(
        PlannedRow(
            make_sequence(
                uid,
                [rng.randrange(10_000) for _ in range(cached + new)],
                range(uid * pages, (uid + 1) * pages),
            ),
            cached,
            new,
            sample=True,
        )
        for uid in range(count)
    )


def chunked(length: int) -> list[tuple[PlannedRow, ...]]:
    sequence = make_rows(1, 0, length)[0].sequence
    starts = range(0, length, CHUNK)
    return [
        (PlannedRow(sequence, at, min(CHUNK, length - at), sample=at + CHUNK >= length),) for at in starts
    ]


def least(run: Callable[[], object], seconds: float) -> float:
    """Milliseconds."""
    run()
    times: list[float] = []
    while sum(times) < seconds:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times) * 1000


if __name__ == "__main__":
    main()

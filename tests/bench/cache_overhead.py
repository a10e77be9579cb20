"""What the managed cache costs where it never helps: `python -m tests.bench.cache_overhead [MODEL] [ROUNDS]`.

Two servers on the demo model (or MODEL; `hash` is the stack without a model): one with the prefix cache off, one with
everything on: every request leases its prompt, under a key and a tag, its tenant has a quota, and a record for *explain* is
kept. Both get the same prompts, no two of which begin alike, in turns, so that what else the machine does falls on both. The
pool is small, so that pages are evicted all the time. Printed are the ratios of rates and of CPU time a token, the median
over the rounds, and what share of the prompt tokens was found after all.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from gateway.bench import LoadOptions, run_load

from .served import Served, serve

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
MANAGED: dict[str, Any] = {
    "prompt_cache_key": "bench",
    "prompt_cache_options": {"ttl": "5m"},
    "cache": {"tag": "bench", "priority": 40},
}
LOAD: dict[str, Any] = {"concurrency": 8, "requests": 16, "prompt_words": 400, "out_tokens": 48}
FLAGS = ("--pages", "512", "--max-model-len", "2048")


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else ""
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    with tempfile.TemporaryDirectory() as scratch:
        tenants = Path(scratch) / "tenants.yaml"
        tenants.write_text("default:\n  quota: 60%\n  floor: 0%\n  pins: 10%\n")
        with (
            serve(model, *FLAGS, "--no-prefix-cache") as off,
            serve(model, *FLAGS, "--tenants", str(tenants)) as on,
        ):
            _compare(off, on, rounds)


def _compare(off: Served, on: Served, rounds: int) -> None:
    rates, costs, found = [], [], 0.0
    for number in range(rounds + 1):
        order = [(off, GREEDY), (on, {**GREEDY, **MANAGED})]
        measured = {}
        for server, extra in order if number % 2 else reversed(order):
            measured[server.pid] = _load(server, extra, seed=number)
        if number == 0:
            continue  # the first of everything is slower
        rates.append(measured[on.pid][0] / measured[off.pid][0])
        costs.append(measured[on.pid][1] / measured[off.pid][1])
        found = max(found, measured[on.pid][2])
    print(f"rate with / without: {statistics.median(rates):.3f}  (rounds: {_listed(rates)})")
    print(f"CPU time a token with / without: {statistics.median(costs):.3f}  (rounds: {_listed(costs)})")
    print(f"prompt tokens found: {found:.1%} at most")


def _load(server: Served, extra: dict[str, Any], *, seed: int) -> tuple[float, float, float]:
    """Output tokens a second, CPU seconds of gateway and engine for each, share of the prompt found in the cache."""
    before = sum(server.cpu_seconds().values())
    report = asyncio.run(run_load(LoadOptions(server.url, seed=seed, extra=extra, **LOAD)))
    if report.failed:
        raise SystemExit(f"{report.failed} requests failed: {dict(report.errors)}")
    spent = sum(server.cpu_seconds().values()) - before
    return report.output_rate, spent / report.output_tokens, report.cached_tokens / report.prompt_tokens


def _listed(ratios: list[float]) -> str:
    return " ".join(f"{ratio:.3f}" for ratio in ratios)


if __name__ == "__main__":
    main()

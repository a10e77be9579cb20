"""`python -m tests.simulation [SEED] [--seeds N] [--operations N]`: run seeds from SEED on, and say how fast."""

from __future__ import annotations

import argparse
import time

from .world import Simulation


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from SEED on")
    parser.add_argument("--operations", type=int, default=400, help="random operations before each drain")
    options = parser.parse_args()
    started = time.process_time()
    operations = finished = 0
    digest = ""
    for seed in range(options.seed, options.seed + options.seeds):
        report = Simulation(seed).run(options.operations)
        operations += report.operations
        finished += report.finished
        digest = report.digest
    seconds = time.process_time() - started
    rate = operations / seconds
    print(
        f"{operations} checked operations, {finished} sequences finished, {rate:,.0f} operations/s of CPU time"
    )
    print(f"event log of seed {seed}: {digest}")


if __name__ == "__main__":
    main()

"""The simulation itself, and that it would notice: every planted bug is caught within 200 seeds."""

from __future__ import annotations

import pytest

from .mutants import MUTANTS
from .world import Simulation

SEEDS = 60
OPERATIONS = 300


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_every_invariant_holds(first: int) -> None:
    below = hits = 0
    for seed in range(first, first + 10):
        report = Simulation(seed).run(OPERATIONS)
        assert report.finished > 0, f"SEED={seed} finished nothing and so shows nothing"
        below += report.below
        hits += report.hits
    assert hits > 10, "hardly anything was found again, and so nothing is shown of who finds what"
    assert below > 0, "nothing was found below the device, and so nothing is shown of it"


def test_a_seed_is_a_run() -> None:
    assert Simulation(7).run(OPERATIONS).digest == Simulation(7).run(OPERATIONS).digest
    assert Simulation(7).run(OPERATIONS).digest != Simulation(8).run(OPERATIONS).digest


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_caught(name: str) -> None:
    caught = (_error(seed, name) for seed in range(200))
    assert next(filter(None, caught), None) is not None, f"no seed noticed: {name}"


def _error(seed: int, name: str) -> AssertionError | None:
    try:
        Simulation(seed, MUTANTS[name]()).run(OPERATIONS)
    except AssertionError as error:
        if isinstance(error.__cause__, TypeError | AttributeError | NameError):
            raise  # the planted bug itself no longer fits the code
        return error
    return None

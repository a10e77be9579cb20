"""Whether what is learned from noisy steps tells what a prompt costs and what a hit saves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import Plan
from engine.calibration import Calibration
from engine.config import EngineConfig, HashModelConfig
from engine.llm import LLM
from engine.request import SamplingParams
from tests.plans import make_sequence, row_of

CHUNK = 512


def step(*rows: tuple[int, int]) -> Plan:
    """One with a row for each (start, count)."""
    planned = []
    for uid, (start, count) in enumerate(rows):
        sequence = make_sequence(uid, [1] * (start + count))
        sequence.computed = start
        planned.append(row_of(sequence))
    return Plan(1, tuple(planned))


class Machine:
    """Takes the seconds of a known law, more or less."""

    def __init__(self, a: float, b: float, c: float, *, noise: float = 0.0, seed: int = 0) -> None:
        self.law = (a, b, c)
        self.noise = noise
        self.random = random.Random(seed)

    def takes(self, *rows: tuple[int, int]) -> float:
        a, b, c = self.law
        tokens = sum(count for _, count in rows)
        attended = sum(count * (start + count / 2) for start, count in rows)
        return (a * tokens + b * attended + c) * self.random.uniform(1, 1 + self.noise)

    def prompt(self, tokens: int, cached: int = 0) -> float:
        starts = range(cached, tokens, CHUNK)
        return sum(self.takes((start, min(CHUNK, tokens - start))) for start in starts)

    def serve(self, calibration: Calibration, prompts: int, answers: int) -> None:
        for _ in range(prompts):
            length = self.random.randrange(16, 4000)
            for start in range(0, length, CHUNK):
                rows = [(start, min(CHUNK, length - start)), (900, 1), (400, 1)]
                calibration.measured(step(*rows), self.takes(*rows))
        for _ in range(answers):
            rows = [(self.random.randrange(10, 3000), 1) for _ in range(self.random.randrange(1, 9))]
            calibration.measured(step(*rows), self.takes(*rows))


MACHINES = {
    "a graphics card": (2e-6, 4e-10, 3e-3),
    "a small model on a CPU": (4e-4, 2e-8, 1.2e-2),
    "no attention at all": (1e-3, 0.0, 5e-3),
    "nothing but tokens": (1e-3, 0.0, 0.0),
}


@pytest.mark.parametrize("law", MACHINES.values(), ids=MACHINES.keys())
def test_a_prompt_and_a_hit_are_estimated(law: tuple[float, float, float]) -> None:
    machine = Machine(*law, noise=0.1)
    calibration = Calibration(CHUNK)
    machine.serve(calibration, 30, 300)
    for tokens, cached in ((2000, 0), (2000, 1990), (500, 100), (4000, 3500)):
        exact = Machine(*law)
        took = exact.prompt(tokens, cached)
        assert calibration.seconds(tokens, cached) == pytest.approx(took, rel=0.25)
        saved = exact.prompt(tokens) - took
        assert calibration.saved(tokens, cached) == pytest.approx(saved, rel=0.25)


def test_long_generating_does_not_wash_away_what_prompts_cost() -> None:
    machine = Machine(4e-4, 2e-8, 1.2e-2, noise=0.05)
    calibration = Calibration(CHUNK)
    machine.serve(calibration, 20, 0)
    same = step((1000, 1))  # which tells nothing of what a token costs
    for _ in range(100_000):
        calibration.measured(same, machine.takes((1000, 1)))
    assert calibration.seconds(2000) == pytest.approx(Machine(*machine.law).prompt(2000), rel=0.2)


def test_a_step_that_the_machine_slept_through_does_not_count_as_it_is() -> None:
    machine = Machine(4e-4, 2e-8, 1.2e-2)
    calibration = Calibration(CHUNK)
    machine.serve(calibration, 20, 200)
    calibration.measured(step((0, 300)), 60.0)
    assert calibration.seconds(2000) == pytest.approx(machine.prompt(2000), rel=0.3)


def test_a_machine_that_changes_is_learned_anew() -> None:
    calibration = Calibration(CHUNK)
    Machine(4e-4, 2e-8, 1.2e-2).serve(calibration, 50, 500)
    slower = Machine(8e-4, 4e-8, 2.4e-2)
    slower.serve(calibration, 200, 10_000)
    assert calibration.seconds(2000) == pytest.approx(slower.prompt(2000), rel=0.1)


def test_nothing_is_known_before_a_step_was_measured() -> None:
    calibration = Calibration(CHUNK)
    assert calibration.seconds(2000) == 0.0
    assert calibration.saved(2000, 1000) == 0.0
    calibration.measured(step((0, 100)), 0.0)
    assert calibration.seconds(2000) == 0.0


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 600)), min_size=1, max_size=4),
            st.floats(1e-6, 100.0),
        ),
        max_size=30,
    ),
    st.integers(1, 8000),
    st.floats(0, 1),
    st.floats(0, 10),
)
def test_it_is_never_negative_and_more_hits_never_save_less(
    steps: list[tuple[list[tuple[int, int]], float]], tokens: int, part: float, loading: float
) -> None:
    calibration = Calibration(CHUNK)
    for rows, seconds in steps:
        calibration.measured(step(*rows), seconds)
    cached = int(part * (tokens - 1))
    saved = calibration.saved(tokens, cached)
    assert saved >= calibration.saved(tokens, cached, loading) >= 0
    assert calibration.seconds(tokens) >= calibration.seconds(tokens, cached) >= 0
    assert calibration.saved(tokens, tokens - 1) >= saved - 1e-9 * calibration.seconds(tokens)


def test_an_engine_tells_what_its_hits_save() -> None:
    config = EngineConfig(
        hash_model=HashModelConfig(token_delay=0.0005, step_delay=0.002), max_step_tokens=64, pages=256
    )
    with LLM(config) as llm:
        sampling = SamplingParams(max_tokens=4)
        llm.generate([[i % 250 for i in range(200)], [7] * 90], sampling)
        [warm] = llm.generate([[i % 250 for i in range(200)]], sampling)
    # 199 of 200 tokens are found: all of them at half a millisecond, and three steps less of two.
    assert warm.account.saved == pytest.approx(199 * 0.0005 + 3 * 0.002, rel=0.5)

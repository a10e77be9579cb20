"""What is learned of returns, and what follows from it for how long keeping is worth its room."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.return_times import STEPS, ReturnTimes, rates, step_of

LENGTHS = [STEPS[0], *(b - a for a, b in pairwise(STEPS)), STEPS[-1]]
Chance = st.floats(0.001, 0.999)
Chances = st.lists(Chance, min_size=len(LENGTHS), max_size=len(LENGTHS))
Steps = st.lists(st.integers(0, len(LENGTHS) - 1), max_size=60)


def by_trying(chances: list[float], start: int) -> float:
    """The best ratio of uses to seconds over all ends."""
    kept = used = best = 0.0
    waiting = 1.0
    for chance, seconds in zip(chances[start:], LENGTHS[start:], strict=True):
        kept += waiting * (1 - chance / 2) * seconds
        used += waiting * chance
        waiting *= 1 - chance
        best = max(best, used / kept)
    return best


@given(Chances)
def test_a_rate_is_the_best_over_all_times_to_give_up_at(chances: list[float]) -> None:
    assert rates(chances) == pytest.approx([by_trying(chances, step) for step in range(len(chances))])


@given(st.floats(0, 1e6), st.floats(0, 5000))
def test_a_step_ends_later_than_now(used: float, age: float) -> None:
    for now in (used + age, *(used + end for end in STEPS)):
        step = step_of(used, now)
        assert step == len(STEPS) or used + STEPS[step] > now
        assert step == bisect_left([used + end > now for end in STEPS], True)


def test_a_step_ends_later_than_now_where_the_sum_is_rounded() -> None:
    used = 1023.9999999999997
    now = used + 0.5
    assert now - used < 0.5, "else this shows nothing"
    assert used + STEPS[step_of(used, now)] > now


@given(Steps, Steps)
def test_chances_are_never_certain_and_rates_never_nothing(used: list[int], passed: list[int]) -> None:
    times = ReturnTimes(ReturnTimes())
    for step in used:
        times.used(step)
    for step in passed:
        times.passed(step)
    assert all(0 < chance < 1 for chance in times.chances())
    assert all(rate > 0 for rate in times.rates())


def test_who_knows_nothing_prefers_what_was_used_last() -> None:
    found = ReturnTimes().rates()
    assert found == sorted(found, reverse=True)


def test_what_little_is_known_of_is_taken_to_be_like_the_rest() -> None:
    everyone = ReturnTimes()
    known, unknown = ReturnTimes(everyone), ReturnTimes(everyone)
    for _ in range(200):
        known.used(4)
        known.passed(0)
    assert unknown.chances() == everyone.chances()
    assert known.chances()[4] > 0.9
    for _ in range(200):
        unknown.passed(4)
    assert unknown.chances()[4] < 0.1
    assert known.chances()[4] > 0.9


def test_nearly_all_have_come_back_when_they_are_due() -> None:
    times = ReturnTimes()
    for step, number in [(0, 500), (3, 460), (9, 40)]:
        for _ in range(number):
            for earlier in range(step):
                times.passed(earlier)
            times.used(step)
    assert times.due() == STEPS[3]


@given(Steps, Steps)
def test_what_is_learned_of_early_returns_makes_none_due_later(used: list[int], passed: list[int]) -> None:
    times = ReturnTimes()
    for step in used:
        times.used(step)
    for step in passed:
        times.passed(step)
    before = times.due()
    for _ in range(50):
        times.used(0)
    assert times.due() <= max(before, STEPS[0])


def test_before_anything_is_learned_a_pause_is_as_long_as_it_says() -> None:
    """The usual lease of one is two minutes."""
    assert ReturnTimes().due() > 120


def test_what_was_learned_long_ago_fades() -> None:
    times = ReturnTimes()
    for _ in range(3000):
        times.used(0)
    for _ in range(20_000):
        times.passed(0)
        times.used(3)
    assert times.chances()[0] < 0.05


def test_a_kind_that_comes_back_late_gains_while_it_waits() -> None:
    """The reason why fresh is not best: tests that run for a minute are due after most of it, not when they begin."""
    times = ReturnTimes()
    for _ in range(100):
        for step in range(7):
            times.passed(step)
        times.used(7)
    found = times.rates()
    assert list(accumulate(found[:8], max)) == found[:8]
    assert found[7] > 2 * found[0]
    assert found[8] < found[7]

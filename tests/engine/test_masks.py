"""How long a step waits for its masks, and what comes of a row whose mask is not there."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future

import pytest

from engine.batch import PlannedRow, RowResult
from engine.masks import POSTPONED, Mask, StepMasks
from grammar.errors import DeadEnd, MatcherError
from tests.fakes import ManualClock
from tests.plans import make_sequence

WORDS = memoryview(bytearray(8)).cast("i")


def row(uid: int) -> PlannedRow:
    return PlannedRow(make_sequence(uid, [1]), 0, 1, sample=True)


def filled(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def test_a_row_without_a_mask_is_free_and_a_filled_one_is_given_at_once() -> None:
    masks = StepMasks({1: Mask(WORDS, filled(), 0.0)}, ManualClock(), 10.0)
    assert masks.of(row(2)) is None
    assert masks.of(row(1)) is WORDS


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DeadEnd("nothing may follow"), RowResult(error="nothing may follow", fault="bad_grammar")),
        (MatcherError("out of fuel"), RowResult(error="out of fuel")),
        (KeyError("a bug"), RowResult(error="the engine failed while following the grammar")),
    ],
    ids=str,
)
def test_what_went_wrong_while_it_was_filled(
    error: Exception, expected: RowResult, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert StepMasks({1: Mask(WORDS, filled(error), 0.0)}, ManualClock(), 0.0).of(row(1)) == expected
    assert ("a bug" in caplog.text) == isinstance(error, KeyError), "only our own mistakes are logged"


def test_a_step_waits_as_long_as_it_has_computed_for_all_its_masks_together() -> None:
    clock = ManualClock()
    masks = StepMasks({uid: Mask(WORDS, Future(), 0.0) for uid in range(3)}, clock, 0.0)
    clock.now = 0.05  # the forward
    began = time.monotonic()
    assert masks.of(row(0)) is POSTPONED
    assert 0.04 < time.monotonic() - began < 1
    clock.now = 0.1
    began = time.monotonic()
    assert masks.of(row(1)) is POSTPONED
    assert masks.of(row(2)) is POSTPONED
    assert time.monotonic() - began < 0.04, "what there was to wait has been waited"


def test_a_mask_that_comes_in_time_is_waited_for() -> None:
    late: Future[None] = Future()
    masks = StepMasks({1: Mask(WORDS, late, time.monotonic())}, time.monotonic, 5.0)
    threading.Timer(0.02, late.set_result, (None,)).start()
    assert masks.of(row(1)) is WORDS


def test_a_row_is_not_postponed_for_ever() -> None:
    clock = ManualClock()
    pending: Future[None] = Future()
    mask = Mask(WORDS, pending, clock())
    for clock.now in (0.1, 1.9):
        masks = StepMasks({1: mask}, clock, 0.0)
        assert masks.of(row(1)) is POSTPONED
        assert not masks.failed
    clock.now = 2.1
    masks = StepMasks({1: mask}, clock, 0.0)
    for _ in range(2):  # as when a lost step is run again
        result = masks.of(row(1))
        assert isinstance(result, RowResult)
        assert result.fault == "grammar_too_complex"
    assert masks.failed == {1}
    pending.set_result(None)
    assert StepMasks({1: mask}, clock, 0.0).of(row(1)) is WORDS, "what is there in the end is used"

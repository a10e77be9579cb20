"""The masks of one step: filled on other threads while the step computes, awaited when its logits are there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from grammar.errors import DeadEnd, MatcherError

from .batch import PlannedRow, RowResult

_log = logging.getLogger(__name__)

SHORTEST_WAIT = 0.005
"""Seconds that a step waits for its masks at least, for models that compute faster than that."""

LONGEST_FILL = 2.0
"""Seconds after which a row is not postponed any more: its grammar costs more than it may."""

POSTPONED = RowResult(postponed=True)
TOO_SLOW = RowResult(
    error=f"the grammar takes longer than {LONGEST_FILL:g} s to say what may come next",
    fault="grammar_too_complex",
)


@dataclass(frozen=True, slots=True)
class Mask:
    """The words are valid once `filling`, which began at `since`, has ended without an error."""

    words: memoryview
    filling: Future[None]
    since: float


class StepMasks:
    """Implements `batch.Masks`, for the sequences in `masks` by uid.

    A step waits for its masks, all in all, no longer than it has computed, or `shortest_wait`. So a grammar that takes
    long about one makes the steps of the others twice as long at the worst; its own row is postponed, and takes the mask
    in a later step.
    """

    def __init__(self, masks: Mapping[int, Mask], clock: Callable[[], float], shortest_wait: float) -> None:
        self._masks = masks
        self._clock = clock
        self._shortest_wait = shortest_wait
        self._began = clock()
        self._until: float | None = None
        self.failed: set[int] = set()
        """Whose grammar could not be followed."""

    def of(self, row: PlannedRow) -> memoryview | RowResult | None:
        uid = row.sequence.uid
        mask = self._masks.get(uid)
        if mask is None:
            return None
        try:
            error = mask.filling.exception(None if mask.filling.done() else self._patience())
        except TimeoutError:
            if self._clock() - mask.since < LONGEST_FILL:
                return POSTPONED
            self.failed.add(uid)
            return TOO_SLOW
        if error is None:
            return mask.words
        self.failed.add(uid)
        return row_failure(error)

    def _patience(self) -> float:
        now = self._clock()
        if self._until is None:
            self._until = now + max(now - self._began, self._shortest_wait)
        return max(self._until - now, 0.0)


def row_failure(error: BaseException) -> RowResult:
    """What comes of a row whose grammar cannot be followed any further."""
    match error:
        case DeadEnd():  # the client's grammar leads nowhere from here
            return RowResult(error=str(error), fault="bad_grammar")
        case MatcherError():
            return RowResult(error=str(error))
        case _:
            _log.error("a grammar could not be followed", exc_info=error)
            return RowResult(error="the engine failed while following the grammar")

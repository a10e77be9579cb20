"""Paths that were evicted to the last page, remembered so that what is learned of returns does not depend on what was kept."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from .return_times import STEPS, step_of

REMEMBERED = 4096


@dataclass(slots=True, eq=False)
class Ghost:
    """A path that is gone: of which fate its end was, how often it had been gone on from, its last use, the step of age that
    it is known to have reached."""

    fate: int
    streak: int
    used: float
    step: int


class Ghosts:
    """Of the paths that went last, by the chain of the first page that each had to itself.

    `passed(fate, step)` is told of everyone that grows older unseen.
    """

    __slots__ = ("_by_chain", "_passed", "_timers", "_turn")

    def __init__(self, passed: Callable[[int, int], None]) -> None:
        self._passed = passed
        self._by_chain: dict[bytes, Ghost] = {}  # the oldest first
        self._timers: list[tuple[float, int, bytes, Ghost]] = []  # until when it stays in its step
        self._turn = 0

    def __len__(self) -> int:
        return len(self._by_chain)

    def add(self, chain: bytes, ghost: Ghost) -> None:
        self._by_chain.pop(chain, None)
        self._by_chain[chain] = ghost
        self._time(chain, ghost)
        if len(self._by_chain) > REMEMBERED:
            del self._by_chain[next(iter(self._by_chain))]

    def take(self, chain: bytes) -> Ghost | None:
        """A sequence would go on a path that begins like this: it is a ghost no more."""
        return self._by_chain.pop(chain, None) if self._by_chain else None

    def advance(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, chain, ghost = heapq.heappop(self._timers)
            if self._by_chain.get(chain) is not ghost:
                continue
            reached = step_of(ghost.used, now)
            for step in range(ghost.step, reached):
                self._passed(ghost.fate, step)
            ghost.step = reached
            self._time(chain, ghost)

    def _time(self, chain: bytes, ghost: Ghost) -> None:
        if ghost.step < len(STEPS):
            self._turn += 1
            heapq.heappush(self._timers, (ghost.used + STEPS[ghost.step], self._turn, chain, ghost))

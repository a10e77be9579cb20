"""A log line for the first of many equal errors, and a count for the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable

INTERVAL = 10.0
"""Seconds in which one message is logged once."""


class ThrottledLog:
    """Wraps a logger. Equal format strings count as equal; whoever uses it has a fixed set of those."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self._next: dict[str, float] = {}
        self._held_back: dict[str, int] = {}

    def exception(self, message: str, *args: object) -> None:
        """Log with the traceback of the exception being handled."""
        if self._is_due(message):
            self._logger.exception(message, *args)
            self._count(message)

    def warning(self, message: str, *args: object) -> None:
        if self._is_due(message):
            self._logger.warning(message, *args)
            self._count(message)

    def _is_due(self, message: str) -> bool:
        now = self._clock()
        if now < self._next.get(message, now):
            self._held_back[message] = self._held_back.get(message, 0) + 1
            return False
        self._next[message] = now + INTERVAL
        return True

    def _count(self, message: str) -> None:
        more = self._held_back.pop(message, 0)
        if more:
            self._logger.error("%d more like this were not logged since the last one", more)

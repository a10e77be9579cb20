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
        now = self._clock()
        if now < self._next.get(message, now):
            self._held_back[message] = self._held_back.get(message, 0) + 1
            return
        self._next[message] = now + INTERVAL
        more = self._held_back.pop(message, 0)
        self._logger.exception(message, *args)
        if more:
            self._logger.error("%d more like this were not logged since the last one", more)

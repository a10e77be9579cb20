"""Log lines: one for each request, never a prompt, a key or a body; and never more tracebacks than a person can read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

requests = logging.getLogger("headwater.request")
faults = logging.getLogger("headwater.fault")


class TracebackLimit(logging.Filter):
    """Lets `burst` tracebacks a minute through; of the others only the message stays. Put on a handler or logger."""

    def __init__(self, burst: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._burst = burst
        self._clock = clock
        self._window = clock()
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info:
            return True
        now = self._clock()
        if now - self._window >= 60:
            self._window, self._count = now, 0
        self._count += 1
        if self._count > self._burst:
            record.exc_info = None
            record.exc_text = None
        return True


faults.addFilter(TracebackLimit())

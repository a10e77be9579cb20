"""Serving, draining, stopped: what the server still takes on, and when nothing is left to do."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import ServerStopping


class Phase(enum.Enum):
    SERVING = "serving"
    LEAVING = "leaving"
    """Readiness says no, so that balancers look elsewhere; work that still arrives is done."""
    DRAINING = "draining"
    """New work is refused, what runs may finish."""


class Lifecycle:
    def __init__(self) -> None:
        self.phase = Phase.SERVING
        self._working = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def working(self) -> int:
        return self._working

    @contextmanager
    def work(self) -> Iterator[None]:
        """One request's work. Raises ServerStopping once the server drains."""
        if self.phase is Phase.DRAINING:
            raise ServerStopping("The server is shutting down.")
        self._working += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                self._idle.set()

    async def idle(self) -> None:
        """Until no request is being worked on."""
        await self._idle.wait()

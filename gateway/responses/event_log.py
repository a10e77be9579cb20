"""The events of a response that is made in the background, for clients that come, go and come back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from ..errors import InvalidRequest

MOST_BYTES = 4 << 20
"""Of one response. The oldest events go first: then nobody can begin with them any more."""


class EventLog:
    """Events by their `sequence_number`, which is their place. Any number of readers; one who is too slow is cut off."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.nbytes = 0
        self.ended = False
        self._most_bytes = most_bytes
        self._frames: deque[bytes] = deque()
        self._first = 0
        self._news = asyncio.Event()

    def add(self, frames: bytes) -> None:
        """Whole events."""
        for frame in frames.split(b"\n\n")[:-1]:
            self._frames.append(frame + b"\n\n")
            self.nbytes += len(frame) + 2
        while self.nbytes > self._most_bytes:
            self.nbytes -= len(self._frames.popleft())
            self._first += 1
        self._tell()

    def end(self) -> None:
        self.ended = True
        self._tell()

    def check(self, after: int) -> None:
        """Raises InvalidRequest if the event behind that one is gone."""
        if after + 1 < self._first:
            raise InvalidRequest(
                f"Events are kept from {self._first} on: those after {after} are not all here.",
                param="starting_after",
            )

    async def read(self, after: int) -> AsyncIterator[bytes]:
        """The events behind that one, those that are yet to come too."""
        place = after + 1
        while place >= self._first:
            news, there = self._news, self._first + len(self._frames)
            if place < there:
                frames = b"".join(self._frames[i - self._first] for i in range(place, there))
                place = there
                yield frames
            elif self.ended:
                return
            else:
                await news.wait()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

"""A server-sent event stream that notices when its reader stops reading.

Frames are handed over ready-made (`data: …\\n\\n`): one call is one write to the socket.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import cast

from aiohttp import web
from aiohttp.http import StreamWriter

from .errors import ApiError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


def in_band(error: ApiError) -> bytes:
    """OpenAI's event for a stream that ends early; no `[DONE]` follows."""
    return b"data: " + error.body() + b"\n\n"


class ReaderStalled(ConnectionError):
    """The client kept its connection open and read nothing for too long."""


class EventStream:
    """One streamed answer. Use as a context: leaving it ends the keep-alive comments.

    `silence` is the time after which a comment is sent, `patience` how long a reader may let the buffers stay full.
    """

    def __init__(self, request: web.Request, *, silence: float, patience: float) -> None:
        self._request = request
        self._silence = silence
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._comments: asyncio.Task[None] | None = None
        # aiohttp types the writer by its abstract class, which lacks `drain=`; the server always gives this one.
        self._writer = cast("StreamWriter", request.writer)
        self.response = web.StreamResponse()

    async def open(self) -> None:
        """Send the headers: from here on failures can only be events."""
        response = self.response
        response.content_type = "text/event-stream"
        response.charset = "utf-8"
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Accel-Buffering"] = "no"  # nginx would hold events back
        await response.prepare(self._request)
        self._comments = asyncio.create_task(self._keep_alive())

    @property
    def opened(self) -> bool:
        return self._comments is not None

    async def send(self, frames: bytes) -> None:
        """Write whole frames. Raises ConnectionError when the client is gone, ReaderStalled when it does not read."""
        self._last = self._loop.time()
        await self._writer.write(frames, drain=False)
        if self._request.protocol.writing_paused:
            await self._wait_for_reader()

    async def _wait_for_reader(self) -> None:
        """The kernel's own limit (see `server`) goes by silence; this one also cuts off a reader that only trickles."""
        try:
            async with asyncio.timeout(self._patience):
                await self._writer.drain()
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ReaderStalled(f"nothing read for {self._patience:g} seconds") from None

    async def _keep_alive(self) -> None:
        while True:
            due = self._last + self._silence - self._loop.time()
            if due > 0:
                await asyncio.sleep(due)
                continue
            try:
                await self.send(KEEP_ALIVE)
            except ConnectionError:
                return  # the handler learns of it by its own write or its cancellation

    async def __aenter__(self) -> EventStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._comments is not None:
            self._comments.cancel()
            await asyncio.gather(self._comments, return_exceptions=True)

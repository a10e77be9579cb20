"""The tenants' file as a running server sees it: what it says counts within two seconds, without a restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from engine.client import EngineClient
from engine.errors import EngineUnavailable, StartError

from .file_stamp import stamp
from .log import faults
from .tenants import Tenants

INTERVAL = 1.0
"""Seconds between two looks at the file; with the reading a change counts within two."""


class TenantFile:
    """Has `tenants` follow their file, and with them the engine.

    A file that is broken, promises more than there is, or is gone leaves everything as it was, and the log says so once.
    Limits and policies change together: not before the engine keeps the limits. One that is started again is given them too.
    """

    def __init__(self, path: Path) -> None:
        """Reads the file. Blocks. Raises StartError."""
        self._path = path
        self._seen = stamp(path)
        self.tenants = Tenants.read(path)

    def followed_by(self, engine: EngineClient) -> Callable[[web.Application], AsyncIterator[None]]:
        """To be run around the server."""

        async def context(_: web.Application) -> AsyncIterator[None]:
            watcher = asyncio.create_task(self._watch(engine), name="tenants watch")
            try:
                yield
            finally:
                watcher.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watcher

        return context

    async def _watch(self, engine: EngineClient) -> None:
        complaint = ""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self._look(engine)
                complaint = ""
            except EngineUnavailable:
                continue  # it is asked again
            except StartError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    faults.error("%s: the limits of tenants stay as they were", error)

    async def _look(self, engine: EngineClient) -> None:
        """Raises StartError for a file that cannot be followed, and EngineUnavailable."""
        found = await asyncio.to_thread(stamp, self._path)
        if found == self._seen:
            return
        tenants = await asyncio.to_thread(Tenants.read, self._path)
        error = await engine.set_limits(tenants.limits, tenants.others)
        if error is not None:
            raise StartError(f"{self._path}: {error}")
        self.tenants.take(tenants)
        self._seen = found

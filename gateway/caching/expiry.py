"""Ends cache objects when their time is over, and writes down which were used."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cache.store import StoreError, StoreUnavailable

from ..log import faults
from .caches import Caches
from .latecomers import Latecomers

INTERVAL = 1.0
"""Seconds between two looks. Nothing depends on it: an object whose time is over is refused before anybody has looked."""

WRITING = 10.0
"""Seconds between two times that uses are written down: what a server that is killed may forget."""


async def keep_watch(caches: Caches, latecomers: Latecomers, interval: float = INTERVAL) -> None:
    """Until cancelled. A store that fails is told to the operator, and asked again later."""
    written = time.monotonic()
    while True:
        await asyncio.sleep(interval)
        try:
            if time.monotonic() - written >= WRITING:
                await caches.objects.write_uses()
                written = time.monotonic()
            ended = [each.id for each in await caches.objects.sweep()]
            late = [each for each in latecomers.take() if caches.objects.ended_lately(each)]
            await caches.forget(*ended, *late)
        except StoreUnavailable:
            pass  # which was told when it began
        except StoreError as error:
            faults.error("cache objects cannot be written: %s", error)


@asynccontextmanager
async def watched(caches: Caches, latecomers: Latecomers) -> AsyncIterator[None]:
    """While inside; what was used until then is written down at the end."""
    task = asyncio.create_task(keep_watch(caches, latecomers), name="cache expiry")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(StoreUnavailable):
            await caches.objects.write_uses()

"""Follows what other servers on the same Redis did, so that this one's engine and copies keep up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from cache.bulletin import Bulletin
from cache.lease import FlushScope
from engine.client import EngineClient
from engine.errors import EngineUnavailable

from .caching.generations import GENERATION_TOPIC, SharedGenerations
from .caching.objects import CacheObjects
from .log import faults
from .sessions.sessions import CHANGED_TOPIC, Sessions


class Following:
    """A tenant's flush ends its namespace as soon as it is heard of. What was cached there cannot be found from then on; the
    engine clears it away, as far as it can be asked."""

    def __init__(
        self,
        bulletin: Bulletin,
        generations: SharedGenerations,
        sessions: Sessions,
        objects: CacheObjects,
        engine: EngineClient,
    ) -> None:
        self._bulletin = bulletin
        self._objects = objects
        self._engine = engine
        self._flushed: set[str] = set()
        self._news = asyncio.Event()
        bulletin.follow(GENERATION_TOPIC, generations.hear)
        bulletin.follow(CHANGED_TOPIC, sessions.hear)
        bulletin.when_missed(generations.reload)
        bulletin.when_missed(sessions.forget_all)
        generations.changed = self._note

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self._bulletin.run(), name="bulletin"),
            asyncio.create_task(self._clear_away(), name="flushes of others"),
        ]
        for task in tasks:
            task.add_done_callback(_tell)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _note(self, tenant: str) -> None:
        self._flushed.add(tenant)
        self._news.set()

    async def _clear_away(self) -> None:
        while True:
            if not self._flushed:
                self._news.clear()
                await self._news.wait()
            tenant = self._flushed.pop()
            self._objects.flushed(tenant)
            with contextlib.suppress(EngineUnavailable):
                await self._engine.flush_cache(FlushScope(tenant=tenant))


def _tell(task: asyncio.Task[None]) -> None:
    """Without it this server goes on and no longer keeps up: a bug of ours."""
    if not task.cancelled() and (error := task.exception()) is not None:
        faults.error("%s has ended", task.get_name(), exc_info=error)

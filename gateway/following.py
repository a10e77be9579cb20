"""Follows what other servers on the same Redis did, so that this one's engine and copies keep up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from cache.bulletin import Bulletin
from cache.lease import FlushScope
from cache.store import StoreError
from engine.client import EngineClient
from engine.errors import EngineUnavailable

from .caching.generations import GENERATION_TOPIC, SharedGenerations
from .caching.objects import CacheObjects, is_id
from .errors import ApiError
from .log import faults
from .sessions.sessions import CHANGED_TOPIC, Sessions

CACHE_TOPIC = "cache"
"""Of notes to the other servers: `ID TENANT` of a cache object that was changed, ended or removed."""


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
        self._changed: set[tuple[str, str]] = set()
        self._news = asyncio.Event()
        bulletin.follow(GENERATION_TOPIC, generations.hear)
        bulletin.follow(CHANGED_TOPIC, sessions.hear)
        bulletin.follow(CACHE_TOPIC, self._hear_of_cache)
        bulletin.when_missed(generations.reload)
        bulletin.when_missed(sessions.forget_all)
        generations.changed = self._note
        objects.changed = self._tell_of_cache

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self._bulletin.run(), name="bulletin"),
            asyncio.create_task(self._keep_up(), name="keeping up"),
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

    def _tell_of_cache(self, tenant: str, object_id: str) -> None:
        self._bulletin.tell(CACHE_TOPIC, f"{object_id} {tenant}".encode())

    def _hear_of_cache(self, note: bytes) -> None:
        object_id, _, tenant = note.decode(errors="replace").partition(" ")
        if is_id(object_id):
            self._changed.add((tenant, object_id))
            self._news.set()

    async def _keep_up(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._flushed:
                await self._clear_away(self._flushed.pop())
            while self._changed:
                await self._follow(*self._changed.pop())

    async def _clear_away(self, tenant: str) -> None:
        self._objects.flushed(tenant)
        with contextlib.suppress(EngineUnavailable):
            await self._engine.flush_cache(FlushScope(tenant=tenant))

    async def _follow(self, tenant: str, object_id: str) -> None:
        """What this engine has of a cache is leased as the cache now says, or not any more. Without the store, or an engine, its
        next use does that, or its end."""
        with contextlib.suppress(EngineUnavailable, StoreError):
            try:
                found = await self._objects.live(tenant, object_id)
            except ApiError:
                await self._engine.entry(object_id, drop=True)
            else:
                await self._engine.entry(object_id, lease=found.lease(self._objects.clock()))


def _tell(task: asyncio.Task[None]) -> None:
    """Without it this server goes on and no longer keeps up: a bug of ours."""
    if not task.cancelled() and (error := task.exception()) is not None:
        faults.error("%s has ended", task.get_name(), exc_info=error)

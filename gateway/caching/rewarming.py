"""Brings pinned caches back into an engine that was started again, in the background and behind everybody else's requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from aiohttp import web

from cache.store import StoreError
from engine.client import EngineClient
from engine.errors import EngineDied, EngineError, EngineUnavailable, QueueFull

from ..auth import Tenant
from ..caller import Caller
from ..errors import ApiError, ServerStopping
from ..log import faults
from .objects import CacheObject, CacheObjects
from .prefill import Prefill
from .recorder import instance
from .records import Instance

INTERVAL = 0.25
"""Seconds between two looks at whether the engine is another, and between two tries while it takes no request."""

PATIENCE = 600.0
"""Seconds for one cache to be computed, or brought up from disk, when everybody else comes first."""

LAST = 1000
"""The priority that gives way to all others."""

ROUTE = "rewarming"
"""Where ledger lines say that these requests came from: nobody asked."""

_Key = tuple[str, str]


class Rewarming:
    """One cache after the other: those with the highest priority first, and of these those used last."""

    def __init__(self, objects: CacheObjects, prefill: Prefill, engine: EngineClient) -> None:
        self._objects = objects
        self._prefill = prefill
        self._engine = engine
        self._life: Instance | None = None
        self._waiting: list[_Key] = []  # the next one last

    def awaits(self, found: CacheObject) -> bool:
        """Whether a cache is still to be brought back."""
        if self._life != instance(self._engine):  # nobody has looked yet
            return found.pin != "none"
        return (found.tenant, found.id) in self._waiting

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch(), name="rewarming")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        complaint = ""
        while True:
            try:
                await self._look()
                complaint = ""
            except StoreError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    faults.error("pinned caches cannot be looked up: %s", error)
            await asyncio.sleep(INTERVAL)

    async def _look(self) -> None:
        """Warm what there is, as long as the engine takes it. Raises StoreError."""
        while self._engine.health.status == "ready":
            life = instance(self._engine)
            if life != self._life:
                self._waiting = await self._pinned()
                self._life = life
            if not self._waiting or not await self._warm(self._waiting[-1]):
                return
            self._waiting.pop()

    async def _pinned(self) -> list[_Key]:
        now = self._objects.clock()
        pinned = [
            each
            for owner in await self._objects.owners()
            for each in await self._objects.all(owner)
            if each.pin != "none" and each.ending(now) is None
        ]
        pinned.sort(key=lambda each: (each.priority, each.last_used_at))
        return [(each.tenant, each.id) for each in pinned]

    async def _warm(self, key: _Key) -> bool:
        """False: it is worth another try. What cannot be warmed stays as it is, and its owner sees how."""
        tenant, object_id = key
        try:
            found = await self._objects.live(tenant, object_id)
            held = await self._objects.content(found)
            now = asyncio.get_running_loop().time()
            caller = Caller(Tenant(tenant), f"{ROUTE}-{object_id}", now + PATIENCE, int(time.time()), ROUTE)
            with self._prefill.desk.place(caller, 1) as place:
                clock = self._objects.clock()
                await self._prefill.run(caller, place, found, held.prompt, clock, priority=LAST)
        except ApiError:
            return True  # it has ended meanwhile
        except (QueueFull, EngineUnavailable, EngineDied, ServerStopping):
            return False
        except EngineError as error:
            faults.error("the pinned cache %s is not warmed again: %s", object_id, error)
        return True

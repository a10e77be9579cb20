"""The generations of tenants' namespaces: numbers, of which a flush makes the next. None is ever in use again.

`LocalGenerations` count from 0 in a store that lives as long as the cache does. `SharedGenerations` are the same for all
servers on one Redis, which may be away, come back empty, or have lost the latest: so they begin with the time and end with
chance, and a server that does not know a tenant's yet *proposes* one, which nothing was ever cached under.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal, Protocol

from aiohttp import web

from cache.bulletin import Bulletin
from cache.store import ABSENT, Clock, Conflict, Record, Store, StoreError, StoreUnavailable

from ..log import faults

KIND = "generation"
SERVER = ""
"""Generations are the server's own records, not a tenant's: all are read at start, at once."""
GENERATION_TOPIC = "generation"
"""Of notes to the other servers: `GENERATION TENANT`."""
RETRY = 0.25
"""Seconds between two attempts to settle what could not be settled."""
_CHANCE_BITS = 20


class Generations(Protocol):
    """`of` and `has_ended` return at once; the latter knows after `settled`."""

    def of(self, tenant: str) -> int:
        """The one in use now."""
        ...

    def has_ended(self, tenant: str, generation: int) -> bool:
        """Whether what was made in that one was flushed."""
        ...

    async def settled(self, tenant: str) -> None:
        """Find out. Raises StoreError if that cannot be known now."""
        ...

    async def tenants(self) -> set[str]:
        """All that have one, as far as that is known."""
        ...

    async def end(self, tenant: str) -> bool:
        """Begin the next one; it is in use even before this returns. Whether it is written down: else it will be.

        Raises StoreError if it never will: then a restart could bring back what has ended.
        """
        ...


class LocalGenerations:
    def __init__(self, store: Store, known: Mapping[str, int] | None = None) -> None:
        self._store = store
        self._known = dict(known or {})

    @classmethod
    async def load(cls, store: Store) -> LocalGenerations:
        """As they were when the store was last closed or its process killed. Raises StoreError."""
        return cls(store, {record.name: int(record.value) for record in await store.list(KIND, SERVER)})

    def of(self, tenant: str) -> int:
        return self._known.get(tenant, 0)

    def has_ended(self, tenant: str, generation: int) -> bool:
        return generation != self.of(tenant)

    async def settled(self, tenant: str) -> None:
        return

    async def tenants(self) -> set[str]:
        return set(self._known)

    async def end(self, tenant: str) -> bool:
        generation = self._known[tenant] = self.of(tenant) + 1
        await self._store.put(KIND, SERVER, tenant, str(generation).encode())
        return True


class SharedGenerations:
    """The store has the truth, and a `bulletin` carries the news. `changed` is told of every tenant whose generation another
    server has ended."""

    def __init__(self, store: Store, bulletin: Bulletin | None = None, *, clock: Clock = time.time) -> None:
        self.changed: Callable[[str], None] = lambda tenant: None
        self._store = store
        self._bulletin = bulletin
        self._clock = clock
        self._known: dict[str, int] = {}
        self._unsettled: dict[str, Literal["proposed", "ended", "lost"]] = {}
        """Tenants whose generation the store does not have. Nobody knows whether it has another; or whatever it has is over; or
        it had it, and is to have it again."""
        self._untold: set[str] = set()
        """Tenants whose generation the other servers have yet to hear of."""
        self._loaded = False
        self._news = asyncio.Event()
        self._news.set()

    def of(self, tenant: str) -> int:
        if tenant not in self._known:
            self._known[tenant] = self._new()
            self._unsettled[tenant] = "proposed"
            self._news.set()
        return self._known[tenant]

    def has_ended(self, tenant: str, generation: int) -> bool:
        """One that is newer than what is known here is another server's, of which this one has yet to hear."""
        return generation < self.of(tenant)

    async def settled(self, tenant: str) -> None:
        self.of(tenant)
        if self._unsettled.get(tenant) == "proposed":
            await self._settle(tenant)

    async def tenants(self) -> set[str]:
        with contextlib.suppress(StoreUnavailable):
            await self.load()
        return set(self._known)

    async def end(self, tenant: str) -> bool:
        self._known[tenant] = self._new(self._known.get(tenant, 0))
        self._unsettled[tenant] = "ended"
        try:
            await self._settle(tenant)
            await self._announce()
        except StoreUnavailable:
            self._news.set()
            return False
        return True

    def hear(self, note: bytes) -> None:
        """Of a generation that another server has begun. One that is older than what is known here is no news."""
        number, _, tenant = note.decode(errors="replace").partition(" ")
        if not number.isdigit():
            self.reload()
        elif int(number) >= self._known.get(tenant, 0) or self._unsettled.get(tenant) == "proposed":
            self._take(tenant, int(number))

    def reload(self) -> None:
        """Ask the store for all of them again: something may have been missed, or been lost there."""
        self._loaded = False
        self._news.set()

    async def load(self) -> None:
        """Take over what the store has. Raises StoreUnavailable. What cannot be read is asked for by itself."""
        records: dict[str, Record] = {}
        try:
            records = {record.name: record for record in await self._store.list(KIND, SERVER)}
        except StoreUnavailable:
            raise
        except StoreError as error:
            faults.error("%s", error)
        self._loaded = True
        for tenant in self._known.keys() | records.keys():
            self._take(tenant, _read(records[tenant]) if tenant in records else None)

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        """Settles what has to be, as soon as the store is there."""
        task = asyncio.create_task(self._settle_all(), name="generations")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- inside --------------------------------------------------------------------------------------------------------

    def _new(self, above: int = 0) -> int:
        """63 bits: milliseconds, then chance."""
        made = (int(self._clock() * 1000) << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)
        return max(made, above + 1)

    def _take(self, tenant: str, theirs: int | None) -> None:
        """What the store has, unless this server knows better."""
        state, ours = self._unsettled.get(tenant), self._known.get(tenant)
        if state == "ended" or (theirs is None and ours is None):
            return
        if theirs is None:
            self._unsettled.setdefault(tenant, "lost")
            return
        if ours is None or state == "proposed" or theirs >= ours:
            self._known[tenant] = theirs
            self._unsettled.pop(tenant, None)
            if ours is not None and ours != theirs and state != "proposed":
                self.changed(tenant)
        else:
            self._unsettled[tenant] = "lost"

    async def _settle_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                if not self._loaded:
                    await self.load()
                for tenant in list(self._unsettled):
                    await self._settle(tenant)
                await self._announce()
            except StoreUnavailable:
                await asyncio.sleep(RETRY)
                self._news.set()
            except StoreError as error:
                faults.error("the generations of tenants cannot be written: %s", error)

    async def _settle(self, tenant: str) -> None:
        """Until the store has what is in use here, or the other way round."""
        while tenant in self._unsettled:
            theirs, version = await self._ask(tenant)
            self._take(tenant, theirs)
            state = self._unsettled.get(tenant)
            if state is None:
                return
            if state == "ended" and theirs is not None:
                self._known[tenant] = max(self._known[tenant], theirs + 1)
            ours = self._known[tenant]
            with contextlib.suppress(Conflict):
                await self._store.put(KIND, SERVER, tenant, str(ours).encode(), expected=version)
                if self._known[tenant] == ours:
                    self._unsettled.pop(tenant, None)
                    self._untold.add(tenant)
                    self._news.set()

    async def _announce(self) -> None:
        for tenant in list(self._untold):
            if self._bulletin is not None:
                await self._bulletin.post(GENERATION_TOPIC, f"{self._known[tenant]} {tenant}".encode())
            self._untold.discard(tenant)

    async def _ask(self, tenant: str) -> tuple[int | None, str | None]:
        """What the store has, and the version to expect when that is replaced: any if it cannot be read."""
        try:
            record = await self._store.get(KIND, SERVER, tenant)
        except StoreUnavailable:
            raise
        except StoreError as error:
            faults.error("%s: replaced", error)
            return None, None
        return (None, ABSENT) if record is None else (_read(record), record.version)


def _read(record: Record) -> int | None:
    """None for what is no generation."""
    return int(record.value) if record.value.isdigit() else None

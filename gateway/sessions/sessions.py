"""The front of the store for what clients leave with us.

While the store is unavailable, what this server has read or written lately is answered from copies, and what is written
goes into a journal, which the store gets in order when it is back. What is in neither is unknown, not absent: 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

import msgspec
from aiohttp import web

from cache.bulletin import Bulletin
from cache.store import (
    ABSENT,
    Clock,
    Conflict,
    Record,
    Store,
    StoreError,
    StoreUnavailable,
    behind,
    conflict,
    is_over,
    new_version,
)
from engine.throttled_log import ThrottledLog

from ..errors import Overloaded
from ..kept import Kept
from ..log import faults
from .journal import OVERHEAD, Change, Journal, Key

RETRY = 0.25
"""Seconds between two attempts to write the first change of the journal."""
LAST_ATTEMPT = 2.0
"""Seconds for the journal when the server stops."""
COPY_FOR = 3600.0
"""Seconds that a copy may be answered from, if it lasts that long: after that, nobody knows what became of it."""
COPIES_SHARE = 0.75
"""Of the memory, for copies; the journal has the rest."""
CHANGED_TOPIC = "session"
"""Of notes to the other servers: kind, tenant and name of a record that was changed or deleted, in msgpack."""
DEGRADED_HEADERS = {"x-cache-degraded": "session-store"}
"""Of an answer that could not be kept although it was asked for."""


@dataclass(frozen=True, slots=True)
class Saved:
    """`journal`: kept, and the store will have it. `nowhere`: not kept, to be said with `store: false` and
    `DEGRADED_HEADERS`."""

    record: Record
    where: Literal["store", "journal", "nowhere"]

    @property
    def kept(self) -> bool:
        return self.where != "nowhere"


@dataclass(slots=True)
class SessionCounts:
    """`lost` were not kept, `conflicts` were kept and then gave way to somebody else's."""

    lost: int = 0
    conflicts: int = 0


class Sessions:
    """`ttl` is in seconds, for what does not say how long it is to be kept. `most_bytes` bounds copies and journal together:
    0 for a store that is as available as this process. By the `bulletin` other servers learn what they have old copies of."""

    def __init__(
        self,
        store: Store,
        bulletin: Bulletin | None = None,
        *,
        ttl: float,
        most_bytes: int = 0,
        clock: Clock = time.time,
    ) -> None:
        copies = int(most_bytes * COPIES_SHARE)
        self.counts = SessionCounts()
        self.journal = Journal(most_bytes - copies)
        self._store = store
        self._bulletin = bulletin
        self._ttl = ttl
        self._clock = clock
        self._copies: Kept[Key, tuple[Record, float]] = Kept(
            most=max(1, copies // OVERHEAD), most_bytes=copies
        )
        self._log = ThrottledLog(faults, time.monotonic)
        self._news = asyncio.Event()
        """There is something in the journal."""

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        """None: there is none, or not any more. Raises ApiError 503 if that cannot be known."""
        key = (kind, tenant, name)
        change = self.journal.get(key)
        if change is not None:
            return self._pending(change)
        try:
            found = await self._store.get(kind, tenant, name)
        except StoreError as error:
            copy = self._copy(key)
            if copy is not None:
                return copy
            raise self._refusal(error) from error
        if found is None:
            self._copies.drop(key)
        else:
            self._keep_copy(key, found)
        return found

    async def put(
        self,
        kind: str,
        tenant: str,
        name: str,
        value: bytes,
        *,
        ttl: float | None = None,
        expected: str | None = None,
    ) -> Saved:
        """Write a record, to be forgotten after `ttl` seconds. Raises Conflict if it is not of the version `expected`.

        With that, what goes into the journal is compared with what is known here, and again when the store gets it: if
        somebody else was faster meanwhile, his record stays and this one is dropped and counted.
        """
        key, ttl = (kind, tenant, name), self._ttl if ttl is None else ttl
        record = Record(name, value, new_version())
        expires = self._clock() + ttl
        if self.journal.get(key) is None:
            try:
                await self._store.put(
                    kind, tenant, name, value, ttl=ttl, expected=expected, version=record.version
                )
            except Conflict:
                self._copies.drop(key)
                raise
            except StoreUnavailable:
                pass
            except StoreError as error:
                return self._lost(record, str(error))
            else:
                self._keep_copy(key, record, ttl)
                self._tell(key)
                return Saved(record, "store")
        self._check(key, expected)
        if not self._write_later(Change(key, value, record.version, expires, expected)):
            return self._lost(record, "the journal is full")
        self._keep_copy(key, record, ttl)
        return Saved(record, "journal")

    async def delete(self, kind: str, tenant: str, name: str) -> bool:
        """Whether there was one. Raises ApiError 503 if that cannot be known, or not be remembered."""
        key = (kind, tenant, name)
        known = self._known(key)
        if self.journal.get(key) is None:
            try:
                deleted = await self._store.delete(kind, tenant, name)
            except StoreError as error:
                if known is None or not isinstance(error, StoreUnavailable):
                    raise self._refusal(error) from error
            else:
                self._copies.drop(key)
                self._tell(key)
                return deleted
        elif known is None:
            return False  # deleted, and the store will have it
        if not self._write_later(Change(key, None, new_version())):
            raise self._refusal(StoreUnavailable("the journal is full"))
        self._copies.drop(key)
        return True

    async def list(
        self,
        kind: str,
        tenant: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Record]:
        """As a store lists them. Raises ApiError 503 while it cannot."""
        changes = {change.key[-1]: change for change in self.journal.of(kind, tenant)}
        most = None if limit is None else limit + len(changes)
        try:
            found = await self._store.list(kind, tenant, after=after, limit=most, reverse=reverse)
        except StoreError as error:
            raise self._refusal(error) from error
        records = {record.name: record for record in found if record.name not in changes}
        for name, change in changes.items():
            if (record := self._pending(change)) is not None:
                records[name] = record
        return [records[name] for name in behind(records, after, reverse=reverse)[:limit]]

    def hear(self, note: bytes) -> None:
        """Another server has changed a record: what is known of it here is old."""
        try:
            self._copies.drop(msgspec.msgpack.decode(note, type=Key))
        except msgspec.MsgspecError:
            self.forget_all()

    def forget_all(self) -> None:
        """Others may have changed anything."""
        self._copies.clear()

    @property
    def late(self) -> bool:
        """Whether the store lacks something that was kept."""
        return len(self.journal) > 0

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        """Writes what is in the journal as soon as that can be done."""
        writer = asyncio.create_task(self._catch_up(), name="session journal")
        try:
            yield
        finally:
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_ATTEMPT):
                    await self._write_all()
            if self.late:
                faults.error(
                    "%d changes of sessions are lost: the store was not back in time", len(self.journal)
                )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _known(self, key: Key) -> Record | None:
        """What is known of a record without the store."""
        change = self.journal.get(key)
        return self._copy(key) if change is None else self._pending(change)

    def _pending(self, change: Change) -> Record | None:
        if change.value is None or is_over(change.expires, self._clock()):
            return None
        return Record(change.key[-1], change.value, change.version)

    def _copy(self, key: Key) -> Record | None:
        held = self._copies.get(key)
        return None if held is None or is_over(held[1], self._clock()) else held[0]

    def _keep_copy(self, key: Key, record: Record, ttl: float = COPY_FOR) -> None:
        expires = self._clock() + min(ttl, COPY_FOR)
        self._copies.put(key, (record, expires), len(record.value) + OVERHEAD)

    def _check(self, key: Key, expected: str | None) -> None:
        """As far as it is known. Raises Conflict."""
        known = self._known(key)
        if expected is None or (known is None and self.journal.get(key) is None):
            return
        if expected != (ABSENT if known is None else known.version):
            raise conflict(exists=known is not None)

    def _tell(self, key: Key) -> None:
        if self._bulletin is not None:
            self._bulletin.tell(CHANGED_TOPIC, msgspec.msgpack.encode(key))

    def _lost(self, record: Record, why: str) -> Saved:
        self.counts.lost += 1
        self._log.warning("a session is not kept: %s", why)
        return Saved(record, "nowhere")

    def _write_later(self, change: Change) -> bool:
        added = self.journal.add(change)
        if added:
            self._news.set()
        return added

    async def _catch_up(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._write_all()

    async def _write_all(self) -> None:
        while (change := self.journal.first()) is not None:
            try:
                await self._write(change)
            except StoreUnavailable:
                await asyncio.sleep(RETRY)
                continue
            except Conflict:
                self.counts.conflicts += 1
                self._copies.drop(change.key)
            except StoreError as error:
                self.counts.lost += 1
                self._log.warning("a session is not kept: %s", error)
            self.journal.done(change)

    async def _write(self, change: Change) -> None:
        """Once more if need be: a change whose fate is not known may have been carried out."""
        now = self._clock()
        if change.value is None:
            await self._store.delete(*change.key)
            return
        if is_over(change.expires, now):
            return
        ttl = None if change.expires is None else change.expires - now
        try:
            await self._store.put(
                *change.key, change.value, ttl=ttl, expected=change.expected, version=change.version
            )
        except Conflict:
            found = await self._store.get(*change.key)
            if found is None or found.version != change.version:
                raise

    def _refusal(self, error: StoreError) -> Overloaded:
        """What the client is told. A store that is unavailable has said so itself."""
        retry_after = 1.0
        if isinstance(error, StoreUnavailable):
            retry_after = error.retry_after
        else:
            self._log.warning("a session cannot be had: %s", error)
        return Overloaded(
            "What is kept of earlier requests cannot be reached now.",
            code="session_store_unavailable",
            retry_after=retry_after,
        )

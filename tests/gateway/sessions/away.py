"""A store that can be away, in the ways that Redis is."""

from __future__ import annotations

import time

from cache.memory_store import MemoryStore
from cache.store import Clock, Record, StoreError, StoreUnavailable


class AwayStore(MemoryStore):
    """While `away` nothing is answered; while `deaf` changes are made and nobody hears of it; `broken` is an error for good."""

    def __init__(self, *, clock: Clock = time.time) -> None:
        super().__init__(clock=clock)
        self.away = self.deaf = self.broken = False
        self.writes: list[str] = []

    def _strike(self) -> None:
        if self.broken:
            raise StoreError("broken")
        if self.away:
            raise StoreUnavailable("away", retry_after=3.0)

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        self._strike()
        if self.deaf:
            raise StoreUnavailable("no reply")
        return await super().get(kind, tenant, name)

    async def put(
        self,
        kind: str,
        tenant: str,
        name: str,
        value: bytes,
        *,
        ttl: float | None = None,
        expected: str | None = None,
        version: str | None = None,
    ) -> Record:
        self._strike()
        deaf, self.deaf = self.deaf, False  # it reads what is there before it writes
        try:
            record = await super().put(kind, tenant, name, value, ttl=ttl, expected=expected, version=version)
        finally:
            self.deaf = deaf
        self.writes.append(name)
        if deaf:
            raise StoreUnavailable("no reply")
        return record

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        self._strike()
        return await super().delete(kind, tenant, name, expected=expected)

    async def list(
        self,
        kind: str,
        tenant: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Record]:
        self._strike()
        return await super().list(kind, tenant, after=after, limit=limit, reverse=reverse)

"""A store for as long as the process runs."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from .store import SWEEP_INTERVAL, Clock, Record, StoreError, behind, check_version, is_over, new_version

OVERHEAD = 400
"""Bytes that a record takes beside its name and value, about."""

_Key = tuple[str, str, str]
"""Kind, tenant and name."""


@dataclass(frozen=True, slots=True)
class _Held:
    record: Record
    expires: float | None


class MemoryStore:
    """Bounded by `most_bytes`, if given: when there is more, what was written longest ago goes.

    `lasting` kinds of records never go and are not counted: whoever writes those bounds their number.
    """

    def __init__(
        self, *, most_bytes: int | None = None, lasting: Collection[str] = (), clock: Clock = time.time
    ) -> None:
        self._most_bytes = most_bytes
        self._lasting = frozenset(lasting)
        self._clock = clock
        self._records: dict[tuple[str, str], dict[str, _Held]] = {}
        self._passing: dict[_Key, int] = {}
        """Bytes of what may go, the oldest first."""
        self._swept = clock()
        self.bytes = 0
        """Of what may go."""

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        held = self._records.get((kind, tenant), {}).get(name)
        return None if held is None or is_over(held.expires, self._clock()) else held.record

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
        """Raises StoreError for a record that is larger than all that may be held."""
        check_version(await self.get(kind, tenant, name), expected)
        size = len(value) + len(name) + OVERHEAD
        bounded = self._most_bytes is not None and kind not in self._lasting
        if self._most_bytes is not None and bounded and size > self._most_bytes:
            raise StoreError(
                f"a record of {size} bytes is larger than the {self._most_bytes} for all of them"
            )
        now = self._clock()
        self._sweep(now)
        self._drop((kind, tenant, name))
        record = Record(name, value, version or new_version())
        self._records.setdefault((kind, tenant), {})[name] = _Held(record, None if ttl is None else now + ttl)
        if bounded:
            self._passing[kind, tenant, name] = size
            self.bytes += size
            self._make_room()
        return record

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        found = await self.get(kind, tenant, name)
        check_version(found, expected)
        self._drop((kind, tenant, name))
        return found is not None

    async def list(
        self,
        kind: str,
        tenant: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Record]:
        now = self._clock()
        records = self._records.get((kind, tenant), {})
        live = (
            records[name].record
            for name in behind(records, after, reverse=reverse)
            if not is_over(records[name].expires, now)
        )
        return list(islice(live, limit))

    async def close(self) -> None:
        self._records.clear()
        self._passing.clear()
        self.bytes = 0

    def _drop(self, key: _Key) -> None:
        kind, tenant, name = key
        records = self._records.get((kind, tenant))
        if records is None or records.pop(name, None) is None:
            return
        if not records:
            del self._records[kind, tenant]
        self.bytes -= self._passing.pop(key, 0)

    def _make_room(self) -> None:
        while self._most_bytes is not None and self.bytes > self._most_bytes:
            self._drop(next(iter(self._passing)))

    def _sweep(self, now: float) -> None:
        if now - self._swept < SWEEP_INTERVAL:
            return
        self._swept = now
        for (kind, tenant), records in list(self._records.items()):
            for name, held in list(records.items()):
                if is_over(held.expires, now):
                    self._drop((kind, tenant, name))

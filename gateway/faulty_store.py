"""A store that fails when told to, for tests only: a server that was not started in test mode has none of this.

    store_fails=N    the next N things that are asked of the store fail, as if it were away
    off              none of that any more

The engine's own are in `engine.failpoints`.
"""

from __future__ import annotations

from collections.abc import Iterable

from cache.store import Record, Store, StoreUnavailable
from engine.errors import BadRequest
from engine.failpoints import OFF

NAME = "store_fails"


def split(specs: Iterable[str]) -> tuple[list[str], list[str]]:
    """Those of the store, and the rest."""
    ours: list[str] = []
    others: list[str] = []
    for spec in specs:
        (ours if spec.partition("=")[0] == NAME else others).append(spec)
    return ours, others


class FaultyStore:
    """In front of another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failing = 0

    def set(self, spec: str) -> bool:
        """Whether it was the store's; `off` is everybody's. Raises BadRequest for one that is none."""
        name, _, number = spec.partition("=")
        if name == NAME:
            if not (number.isascii() and number.isdigit() and 1 <= int(number[:12]) < 10**9):
                raise BadRequest(f"failpoint {spec!r} is not NAME=NUMBER with a number from 1")
            self._failing = int(number)
        elif spec == OFF:
            self._failing = 0
        return name == NAME

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        self._strike()
        return await self._store.get(kind, tenant, name)

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
        return await self._store.put(kind, tenant, name, value, ttl=ttl, expected=expected, version=version)

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        self._strike()
        return await self._store.delete(kind, tenant, name, expected=expected)

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
        return await self._store.list(kind, tenant, after=after, limit=limit, reverse=reverse)

    async def close(self) -> None:
        await self._store.close()

    def _strike(self) -> None:
        if self._failing:
            self._failing -= 1
            raise StoreUnavailable("failpoint")

"""What outlives a request: namespace generations, cache objects, sessions. Small values under kind, tenant and name.

`Store` has three implementations: `memory_store` ends with the process, `file_store` survives it, however it ends, and
`redis_store` is shared by all servers that are given the same Redis. Nothing here is asked for every record it has on the
way of a request: that is by one name, or one page of a tenant's list.

StoreError            the store cannot be read or written, or is damaged
├── Conflict          the record is not the version it was expected to be
└── StoreUnavailable  nobody is to blame but the store: it may work again later
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

Clock = Callable[[], float]

ABSENT = ""
"""The version to expect of a record that does not exist."""

SWEEP_INTERVAL = 600.0
"""Seconds between two looks for records whose time is over: until then they take room, and are not found."""


class StoreError(Exception):
    """`str(error)` is one line for an operator."""


class Conflict(StoreError):
    """Somebody else was faster: read again."""


class StoreUnavailable(StoreError):
    """Whether a change was carried out is not known. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Record:
    """`version` changes with every `put` and never comes back, also not when a record is deleted and made anew."""

    name: str
    value: bytes
    version: str


class Store(Protocol):
    """Every method may raise StoreError. A change that was begun is carried out even if its caller is cancelled."""

    async def get(self, kind: str, tenant: str, name: str) -> Record | None: ...

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
        """Write a record, to be forgotten after `ttl` seconds of wall time; None keeps it.

        `expected` is the version it has to have, ABSENT that there has to be none; None overwrites. `version` is the one it
        gets, from `new_version`: so that who does not know whether he was heard can find out. Raises Conflict.
        """
        ...

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        """Whether there was one. Raises Conflict if it was not of the version `expected`."""
        ...

    async def list(
        self,
        kind: str,
        tenant: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Record]:
        """A tenant's records of a kind, ordered by name, or the other way round with `reverse`.

        `after` begins behind that name, whether or not there is such a record; `limit` is the most that come back.
        """
        ...

    async def close(self) -> None:
        """After everything that was begun. Nothing may be asked any more."""
        ...


# -- for those who implement it ----------------------------------------------------------------------------------------


def check_version(found: Record | None, expected: str | None) -> None:
    """Raises Conflict."""
    if expected is not None and expected != (ABSENT if found is None else found.version):
        raise conflict(exists=found is not None)


def conflict(*, exists: bool) -> Conflict:
    return Conflict("the record has changed" if exists else "there is no such record")


def new_version() -> str:
    """16 characters."""
    return secrets.token_hex(8)


def is_over(expires: float | None, now: float) -> bool:
    return expires is not None and now >= expires


def behind(names: Iterable[str], after: str | None, *, reverse: bool) -> list[str]:
    """The names that `list` may return, in its order."""
    if after is not None:
        names = [name for name in names if (name < after if reverse else name > after)]
    return sorted(names, reverse=reverse)

"""What is remembered of pages that went: why, when, and whether a promise was broken."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .lease import EvictionCause

DIGEST = 16
"""So many bytes of a page's chain are its name here."""

CAPACITY = 65_536
"""Some 17 MB when full."""


class Tombstone(NamedTuple):
    cause: EvictionCause
    at: float
    broken: bool


class Gone(NamedTuple):
    """A page was there once and went `age` seconds ago. `broken`: while it was leased."""

    cause: EvictionCause
    age: float
    broken: bool


class Tombstones:
    """Of the `capacity` whole pages that went last. One that comes back is forgotten."""

    __slots__ = ("_capacity", "_stones")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._stones: OrderedDict[bytes, Tombstone] = OrderedDict()  # the oldest first

    def __len__(self) -> int:
        return len(self._stones)

    def add(self, chain: bytes, cause: EvictionCause, at: float, *, broken: bool = False) -> None:
        """A page went. What happened later than `at` to an equal page stays as it is."""
        name = chain[:DIGEST]
        known = self._stones.pop(name, None)
        if known is not None and known.at > at:
            self._stones[name] = known
            return
        self._stones[name] = Tombstone(cause, at, broken)
        if len(self._stones) > self._capacity:
            self._stones.popitem(last=False)

    def forget(self, chain: bytes) -> None:
        self._stones.pop(chain[:DIGEST], None)

    def find(self, chain: bytes, now: float) -> Gone | None:
        stone = self._stones.get(chain[:DIGEST])
        return None if stone is None else Gone(stone.cause, max(0.0, now - stone.at), stone.broken)

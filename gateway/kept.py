"""What was worked out of clients' requests, kept for the next that asks the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Up to `most` values, which are worth `most_bytes` of a client's text; the least recently used go first."""

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep it, in place of what the key had, unless it is larger than everything together may be."""
        if size > self._most_bytes:
            return
        if key in self._entries:
            self.nbytes -= self._entries.pop(key)[1]
        self._entries[key] = (value, size)
        self.nbytes += size
        while len(self._entries) > self._most or self.nbytes > self._most_bytes:
            _, (_, dropped) = self._entries.popitem(last=False)
            self.nbytes -= dropped

    def drop(self, key: K) -> None:
        """If it is there."""
        if key in self._entries:
            self.nbytes -= self._entries.pop(key)[1]

    def clear(self) -> None:
        self._entries.clear()
        self.nbytes = 0

"""Compiled grammars kept for the next request that has the same, up to so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from .backends.base import Compiled

OVERHEAD = 4096
"""Bytes that an entry costs besides what its backend says: keys, objects, an allocator's rounding."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`seconds` is what it took to compile."""

    compiled: Compiled
    seconds: float

    @property
    def nbytes(self) -> int:
        return self.compiled.nbytes + OVERHEAD


class Kept:
    """Least recently used first out. An entry that is dropped lives on for those who follow it. For one thread."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: bytes, entry: Entry) -> None:
        """Keep it, unless it is larger than everything together may be."""
        if entry.nbytes > self._capacity:
            return
        self._drop(self._entries.pop(key, None))
        self._entries[key] = entry
        self.nbytes += entry.nbytes
        while self.nbytes > self._capacity:
            self._drop(self._entries.popitem(last=False)[1])

    def _drop(self, entry: Entry | None) -> None:
        if entry is not None:
            self.nbytes -= entry.nbytes

"""Changes that the store does not have yet, in the order it is to get them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

OVERHEAD = 400
"""Bytes that a change takes beside its value, about."""

Key = tuple[str, str, str]
"""Kind, tenant and name."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a record is to become: `value` None is deleted. `expires` is by the wall clock; `version` is the one it gets, and
    `expected` the one it has to have before, None for any."""

    key: Key
    value: bytes | None
    version: str
    expires: float | None = None
    expected: str | None = None

    @property
    def nbytes(self) -> int:
        return OVERHEAD + (0 if self.value is None else len(self.value))


class Journal:
    """One change for each name, the latest, in the order of the latest. Bounded by `most_bytes`.

    A change that expects anything expects what the one expected that it takes the place of.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._changes: dict[Key, Change] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._changes)

    def get(self, key: Key) -> Change | None:
        return self._changes.get(key)

    def add(self, change: Change) -> bool:
        """Whether there was room for it. If not, what there was of the name stays."""
        before = self._changes.get(change.key)
        nbytes = self.nbytes + change.nbytes - (0 if before is None else before.nbytes)
        if nbytes > self._most_bytes:
            return False
        if before is not None:
            del self._changes[change.key]
            if change.expected is not None:
                change = replace(change, expected=before.expected)
        self._changes[change.key] = change
        self.nbytes = nbytes
        return True

    def first(self) -> Change | None:
        return next(iter(self._changes.values()), None)

    def done(self, change: Change) -> None:
        """The store has it, or will never have it. One that has taken its place meanwhile stays."""
        now = self._changes.get(change.key)
        if now is change:
            del self._changes[change.key]
            self.nbytes -= change.nbytes
        elif now is not None and now.expected is not None:
            self._changes[change.key] = replace(now, expected=change.version)

    def of(self, kind: str, tenant: str) -> Iterator[Change]:
        return (change for key, change in self._changes.items() if key[:2] == (kind, tenant))

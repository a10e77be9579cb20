"""Which requests are overdue. O(log n) for each; the clock is the caller's."""

from __future__ import annotations

import heapq

from .group import Group


class Deadlines:
    __slots__ = ("_entries", "_live")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Group]] = []  # heap of (when, order of arrival, request)
        self._live = 64

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, group: Group, when: float) -> None:
        """Remember when a request is due. Those that have ended meanwhile are forgotten now and then."""
        if len(self._entries) > 2 * self._live:
            self._entries = [entry for entry in self._entries if entry[2].members]
            self._live = max(64, len(self._entries))
            heapq.heapify(self._entries)
        heapq.heappush(self._entries, (when, group.members[0].uid, group))

    @property
    def next(self) -> float | None:
        """No request is overdue before; the one that it was may have ended."""
        return self._entries[0][0] if self._entries else None

    def pop_overdue(self, now: float) -> list[Group]:
        """Requests that have not ended and should have by `now`. Each is told once."""
        overdue = []
        while self._entries and self._entries[0][0] <= now:
            group = heapq.heappop(self._entries)[2]
            if group.members:
                overdue.append(group)
        return overdue

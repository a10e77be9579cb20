"""Who is admitted next. Order only: no pages, no budget.

Priority first, then the tenant that was served least, then, among the first few of its line, whoever has the longest
cached prefix. Three promises bound the wait: a sequence that was preempted is never overtaken in its line, only a
`window` at the head of a line is looked at, and whoever has waited longest of all and seen `patience` later arrivals go
first is next, whatever its priority.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter

from .group import Member

_arrival_order = attrgetter("uid")


class WaitingQueue:
    __slots__ = ("_count", "_lines", "patience", "window")

    def __init__(self, *, window: int = 8, patience: int = 32) -> None:
        self.window = window
        self.patience = patience
        self._lines: dict[
            tuple[int, str], list[Member]
        ] = {}  # by priority and tenant, each in order of arrival
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Member]:
        for line in self._lines.values():
            yield from line

    def add(self, member: Member) -> None:
        """Put it in its place by arrival, wherever it comes from."""
        line = self._lines.setdefault(_line_of(member), [])
        line.insert(bisect_left(line, member.uid, key=_arrival_order), member)
        self._count += 1

    def remove(self, member: Member) -> None:
        key = _line_of(member)
        line = self._lines[key]
        at = bisect_left(line, member.uid, key=_arrival_order)
        assert line[at] is member, "a waiting sequence is not in its line"
        del line[at]
        if not line:
            del self._lines[key]
        self._count -= 1

    def next(self, cached: Callable[[Member], int]) -> Member | None:
        """Who is to be admitted, left where it is. `cached` tells how much of its tokens a cache holds."""
        if not self._count:
            return None
        oldest = self._oldest()
        if oldest.overtaken >= self.patience:
            return oldest
        line = min(self._lines.values(), key=_urgency)
        return self._longest_cached(line, cached)

    def admit(self, member: Member) -> None:
        """Take out who is admitted. The oldest of the others remembers to have been overtaken."""
        self.remove(member)
        member.overtaken = 0
        if self._count:
            oldest = self._oldest()
            if oldest.uid < member.uid:
                oldest.overtaken += 1

    def _oldest(self) -> Member:
        return min((line[0] for line in self._lines.values()), key=_arrival_order)

    def _longest_cached(self, line: list[Member], cached: Callable[[Member], int]) -> Member:
        best = line[0]
        if len(line) == 1 or best.preempted:
            return best
        most = cached(best)
        for member in line[1 : self.window]:
            tokens = cached(member)
            if tokens > most:
                best, most = member, tokens
            if member.preempted:
                break
        return best


def _line_of(member: Member) -> tuple[int, str]:
    return member.request.priority, member.group.tenant.name


def _urgency(line: list[Member]) -> tuple[int, int, int]:
    head = line[0]
    return head.request.priority, head.group.tenant.served, head.uid

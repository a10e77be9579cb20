"""Pages for sequences that grow, at the cost of the cache, then of each other."""

from __future__ import annotations

from .endings import Endings
from .group import Member
from .page_tables import PageTables
from .roster import Roster
from .sequence import Status
from .totals import Totals


class Preemption:
    __slots__ = ("_endings", "_page_size", "_roster", "_tables", "_totals")

    def __init__(
        self, roster: Roster, tables: PageTables, endings: Endings, totals: Totals, page_size: int
    ) -> None:
        self._roster = roster
        self._tables = tables
        self._endings = endings
        self._totals = totals
        self._page_size = page_size

    def grow(self) -> bool:
        """Give every running sequence the pages its tokens need, and say whether all of them have. If not, who has the lowest
        priority gave its own, and of those the newest."""
        before = self._totals.preemptions
        size, running = self._page_size, self._roster.running
        for member in list(running.values()):
            if len(member.tokens) > len(member.pages) * size:
                while member.status is Status.RUNNING and not self._tables.grow(member):
                    self._preempt(max(running.values(), key=_expendable))
        return self._totals.preemptions == before

    def _preempt(self, member: Member) -> None:
        """Take a running sequence's pages. It computes again what the cache forgets."""
        self._totals.preemptions += 1
        reached = max(member.reached, member.computed)
        self._endings.release(member, keep=False)
        member.reached = reached
        if member.prompt_logprobs is not None:
            member.prompt_logprobs = [None]
        self._roster.preempt(member)


def _expendable(member: Member) -> tuple[int, int]:
    return member.request.priority, member.uid

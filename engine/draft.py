"""A step that is being filled: who computes how much of it."""

from __future__ import annotations

from collections.abc import Iterable

from .batch import PageCopy, PlannedRow
from .group import Member

ABREAST = 4
"""So many prompts longer than a step are computed side by side. The next of them waits."""


class Draft:
    """`budget` positions are left of a step; `rows[i]` is of `members[i]`. Who lacks more than `little` is `behind`: it
    shares with its like what the others leave over."""

    __slots__ = ("_little", "behind", "budget", "copies", "members", "rows")

    def __init__(self, budget: int, little: int) -> None:
        self.budget = budget
        self.behind: list[Member] = []
        self.members: list[Member] = []
        self.rows: list[PlannedRow] = []
        self.copies: list[PageCopy] = []
        self._little = little

    def go_on(self, running: Iterable[Member]) -> None:
        """All that those lack who lack little: one position while they generate, a few more after forced tokens.

        What is left is a position at least for each of those that are further behind.
        """
        for member in running:
            length = len(member.tokens)
            missing = length - member.computed
            if missing > self._little:
                self.behind.append(member)
                continue
            self.budget -= missing
            member.in_flight = True
            member.group.tenant.served += missing
            self.members.append(member)
            self.rows.append(PlannedRow(member, member.computed, missing, length < member.limit))

    def add(self, member: Member, most: int) -> int:
        """What a sequence lacks, up to so many positions. How many it became."""
        length = len(member.tokens)
        count = min(length - member.computed, most)
        ends = member.computed + count == length
        self.budget -= count
        member.in_flight = True
        member.group.tenant.served += count
        self.members.append(member)
        self.rows.append(PlannedRow(member, member.computed, count, ends and length < member.limit))
        return count

    def for_newcomers(self) -> int:
        """What those further behind leave to who waits: all they do not need, and while they are few, an equal share.

        So a long prompt does not keep everybody else waiting until it is done, and many at once still come one by one.
        """
        needed = sum(map(_missing, self.behind))
        if len(self.behind) < ABREAST:
            needed = min(needed, self.budget - self.budget // (len(self.behind) + 1))
        return max(0, self.budget - needed)

    def catch_up(self) -> None:
        """Divide the budget evenly, who needs least first: what those leave over goes to the others."""
        self.behind.sort(key=_missing)
        for place, member in enumerate(self.behind):
            self.add(member, -(-self.budget // (len(self.behind) - place)))


def _missing(member: Member) -> int:
    return len(member.tokens) - member.computed

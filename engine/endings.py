"""How sequences and requests end: for a finish, an abort and a failure alike."""

from __future__ import annotations

from .events import Outbox
from .group import Group, Member
from .groups import Groups
from .page_tables import PageTables
from .publications import Publications
from .request import FailureKind, RequestFailed
from .roster import Roster
from .sequence import Status
from .totals import Totals


class Endings:
    """A sequence that ends while a step computes it gives its pages back when that step is over, or `lands`."""

    def __init__(
        self,
        *,
        groups: Groups,
        roster: Roster,
        tables: PageTables,
        publications: Publications,
        outbox: Outbox,
        totals: Totals,
    ) -> None:
        self._groups = groups
        self._roster = roster
        self._tables = tables
        self._publications = publications
        self._outbox = outbox
        self._totals = totals
        self._retired: list[int] = []

    def end(self, member: Member) -> None:
        """The one way out."""
        self._roster.leave(member)
        group = member.group
        group.account.generated += member.generated
        if member.in_flight:
            group.account.landing += 1
        elif member.pages:
            self.release(member, keep=not group.failed)
        self._groups.leave(member)
        self._close_if_over(group)

    def fail(self, group: Group, kind: FailureKind, message: str) -> None:
        """All that is left of a request ends."""
        group.failed = True
        self._outbox.failed.append(RequestFailed(group.request.request_id, kind, message))
        for member in list(group.members):
            self.end(member)

    def release(self, member: Member, *, keep: bool) -> None:
        """The pages go, and with them what the runner keeps for the sequence."""
        computed = member.computed
        member.group.account.computed += computed - member.found
        self._totals.recomputed_tokens += max(min(computed, member.reached) - member.found, 0)
        if keep:
            self._publications.keep(member)
        self._tables.clear(member)
        self._retired.append(member.uid)

    def take_retired(self) -> tuple[int, ...]:
        """Who has ended or lost its pages since the last time, by uid."""
        retired = tuple(self._retired)
        self._retired.clear()
        return retired

    # ---- after the step ----------------------------------------------------------------------------------------------

    def fail_row(self, member: Member, count: int, message: str, fault: FailureKind) -> None:
        """The step was to compute `count` positions of a sequence, and could not."""
        member.group.account.computed += count
        if member.status is not Status.FINISHED:
            self.fail(member.group, fault, message)
        else:
            self.lose_late(member)

    def release_late(self, member: Member, count: int) -> None:
        """The step computed `count` positions of a sequence that has ended meanwhile."""
        if member.pages:
            member.computed += count
            self._land(member, keep=not member.group.failed)
        else:  # another choice of its request failed in this very step
            member.group.account.computed += count

    def lose_late(self, member: Member) -> None:
        """The step brought nothing for a sequence that has ended meanwhile."""
        if member.pages:
            self._land(member, keep=False)

    def _land(self, member: Member, *, keep: bool) -> None:
        self.release(member, keep=keep)
        member.group.account.landing -= 1
        self._close_if_over(member.group)

    def _close_if_over(self, group: Group) -> None:
        """Of a request that has ended nothing more is to come once no step computes for it: its account is due."""
        if not group.members and not group.account.landing:
            self._outbox.over.append(group)
            if group.entries is not None:
                group.entries.drop()

"""Where each sequence is that has not ended: it runs, is queued, follows a leader, or is held with its request."""

from __future__ import annotations

from collections.abc import Iterable

from .group import Group, Member
from .sequence import Status
from .single_flight import Lead, SingleFlight
from .waiting import WaitingQueue


class Roster:
    """`running` is by uid, in order of admission; `held` counts the sequences of held requests.

    Nothing here holds pages. It remembers when somebody last found no room for a sequence, by a count of the cache's that
    grows with every page that is given back, so that nobody asks again in vain.
    """

    __slots__ = ("_full_at", "held", "running", "single_flight", "waiting")

    def __init__(self, page_size: int) -> None:
        self.running: dict[int, Member] = {}
        self.waiting = WaitingQueue()
        self.single_flight = SingleFlight(page_size)
        self.held = 0
        self._full_at = -1

    @property
    def queued(self) -> int:
        """Sequences that wait for room, or for a leader."""
        return len(self.waiting) + self.single_flight.following

    # ---- coming ------------------------------------------------------------------------------------------------------

    def hold(self, group: Group) -> None:
        group.held = True
        self.held += len(group.members)

    def release(self, group: Group) -> None:
        """A held request is queued."""
        group.held = False
        self.held -= len(group.members)
        self.queue(group)

    def queue(self, group: Group) -> None:
        first, *others = group.members
        self.waiting.add(first)
        for member in others:
            self.single_flight.follow(member, first, first.prompt_len)
        self.look_again()

    # ---- running -----------------------------------------------------------------------------------------------------

    def follow(self, member: Member, lead: Lead) -> None:
        """A queued sequence waits for another that computes what it lacks."""
        self.waiting.remove(member)
        self.single_flight.follow(member, lead.leader, lead.agreed)

    def admit(self, member: Member) -> None:
        """A queued sequence runs, and computes what others may wait for."""
        self.waiting.admit(member)
        member.status = Status.RUNNING
        self.running[member.uid] = member

    def advance(self, member: Member) -> None:
        """A chunk of a running sequence was computed and published: whoever waited for that is queued."""
        self._requeue(self.single_flight.advance(member))

    def preempt(self, member: Member) -> None:
        """A running sequence waits, in its old place."""
        del self.running[member.uid]
        member.status = Status.WAITING
        member.preempted = True
        self._requeue(self.single_flight.stop(member))
        self.waiting.add(member)

    # ---- going -------------------------------------------------------------------------------------------------------

    def leave(self, member: Member) -> None:
        """A sequence ends, wherever it is."""
        if member.status is Status.RUNNING:
            del self.running[member.uid]
        elif member.leader is not None:
            self.single_flight.unfollow(member)
        elif member.group.held:
            self.held -= 1
        else:
            self.waiting.remove(member)
        member.status = Status.FINISHED
        self._requeue(self.single_flight.stop(member))

    def _requeue(self, members: list[Member]) -> None:
        """Those that waited for a leader wait for room now, each in its old place."""
        for member in members:
            self.waiting.add(member)
            self.look_again()

    # ---- room --------------------------------------------------------------------------------------------------------

    def no_room(self, freed: int) -> None:
        """Somebody found none, when the cache had freed so many pages."""
        self._full_at = freed

    def is_full(self, freed: int) -> bool:
        """No room was found, and nothing was given back since. If nothing runs, nothing ever will be: one has to try."""
        return bool(self.running) and self._full_at == freed

    def look_again(self) -> None:
        """There may be room now where there was none."""
        self._full_at = -1

    # ---- truth -------------------------------------------------------------------------------------------------------

    def check(self, members: Iterable[Member]) -> None:
        """Assert that each of `members`, all there are, is in one place, and in the right one."""
        members = list(members)
        waiting = [member for member in members if member.status is Status.WAITING]
        queued = [member.uid for member in self.waiting]
        following = [member.uid for member in waiting if member.leader is not None]
        held = [member.uid for member in waiting if member.group.held]
        assert len(queued) == len(self.waiting)
        assert len(held) == self.held
        everywhere = queued + following + held
        assert sorted(everywhere) == sorted(member.uid for member in waiting), "lost, or waiting twice"
        for member in waiting:
            assert not member.pages, "a waiting sequence holds pages"
        running = {member.uid: member for member in members if member.status is Status.RUNNING}
        assert running == self.running, "running is not what runs"
        self.single_flight.check(members)

"""Of sequences that lack the same prefix one computes it, and the others wait for it instead of doing it again.

A leader is marked by the page it computes next. Whoever is to be admitted and needs just that page becomes its follower,
up to where the two agree, and is let go in the step after the leader got there, or when the leader ends. Where they part
it leads itself. The choices of one request follow the first of them through the whole prompt.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from .group import Member
from .sequence import Status


@dataclass(frozen=True, slots=True)
class Lead:
    """The first `agreed` tokens are those of `leader`, who is computing them."""

    leader: Member
    agreed: int


class SingleFlight:
    """`following` counts those that wait for a leader."""

    __slots__ = ("_leaders", "_page_size", "following")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._leaders: dict[Hashable, Member] = {}
        self.following = 0

    def find(self, member: Member, found: int) -> Lead | None:
        """Whoever computes what a sequence lacks right now, `found` tokens of it being there already.

        A sequence that reads nothing from the cache, and one that was preempted and may not be overtaken, have none.
        """
        if member.preempted:
            return None
        for sibling in member.group.members:
            if sibling.status is Status.RUNNING and sibling.computed < sibling.prompt_len - 1:
                return Lead(sibling, sibling.prompt_len)
        if member.reads_nothing or not member.request.cache.read:
            return None
        mark = self._mark(member, found, len(member.tokens) - 1)
        leader = None if mark is None else self._leaders.get(mark)
        if leader is None or leader.cursor.limit <= leader.computed:  # flushed since it was marked
            return None
        return Lead(leader, self._agreed(member, leader))

    def follow(self, member: Member, leader: Member, awaited: int) -> None:
        member.leader = leader
        member.awaited = awaited
        leader.followers.append(member)
        self.following += 1

    def unfollow(self, member: Member) -> None:
        assert member.leader is not None
        member.leader.followers.remove(member)
        member.leader = None
        self.following -= 1

    def lead(self, member: Member, found: int) -> None:
        """Mark the page after the first `found` tokens of a running sequence, those that others find too: it computes or
        loads it now and will publish it. Unless another leads there."""
        if member.computed < len(member.tokens):
            mark = self._mark(member, found, min(len(member.tokens), member.cursor.limit))
            if mark is not None and self._leaders.setdefault(mark, member) is member:
                member.leading = mark

    def advance(self, member: Member) -> list[Member]:
        """A chunk was computed and published: who of the followers has got what it waited for, or will not get it."""
        self._unmark(member)
        self.lead(member, member.computed)
        computed = member.computed
        silent = member.cursor.limit <= computed
        return self._let_go(
            [
                follower
                for follower in member.followers
                if follower.awaited <= computed or (silent and follower.group is not member.group)
            ]
        )

    def stop(self, member: Member) -> list[Member]:
        """A sequence runs no more: all its followers."""
        self._unmark(member)
        return self._let_go(member.followers.copy())

    def check(self, members: Iterable[Member]) -> None:
        """Assert that `members`, all there are, agree with what is known here."""
        following = [member for member in members if member.leader is not None]
        assert len(following) == self.following
        for member in following:
            leader = member.leader
            assert leader is not None
            assert member in leader.followers, "a leader does not know its follower"
            assert leader.status is not Status.FINISHED, "an ended sequence is followed"
            assert leader.computed < member.awaited or leader.in_flight, "followed in vain"
        for mark, member in self._leaders.items():
            assert member.leading == mark, "a stale mark"
            assert member.status is Status.RUNNING, "a leader that does not run"

    def _let_go(self, followers: list[Member]) -> list[Member]:
        for follower in followers:
            self.unfollow(follower)
        return followers

    def _unmark(self, member: Member) -> None:
        if member.leading is not None:
            del self._leaders[member.leading]
            member.leading = None

    def _mark(self, member: Member, found: int, length: int) -> Hashable | None:
        """Names the page after the first `found` tokens: by the tree's node above it, and its own tokens.

        None if nobody could share it: it is not wholly in the first `length` tokens, or what is above it is not what
        stands in the tree.
        """
        cursor = member.cursor
        size = self._page_size
        start = cursor.depth * size
        if cursor.root_key is None or start + size > length or found // size != cursor.depth:
            return None
        return (cursor.node or cursor.root_key, tuple(member.tokens[start : start + size]))

    def _agreed(self, member: Member, leader: Member) -> int:
        """Up to which page the two have the same tokens, the last token of `member` left out, and what the leader does not
        publish."""
        size = self._page_size
        agreed = (member.cursor.depth + 1) * size
        longest = min(len(member.tokens) - 1, leader.cursor.limit)
        while agreed + size <= longest and (
            member.tokens[agreed : agreed + size] == leader.tokens[agreed : agreed + size]
        ):
            agreed += size
        return agreed

"""Who of those that wait may run: it gets pages, and its request is told to have started."""

from __future__ import annotations

from collections.abc import Callable

from cache.prefix_cache import PrefixCache
from cache.tombstones import Gone

from .account import evicted
from .draft import Draft
from .events import Outbox
from .group import Member
from .lower_tiers import LowerTiers
from .page_tables import PageTables
from .publications import Publications
from .request import RequestStarted
from .roster import Roster
from .totals import Totals

Saved = Callable[[int, int, float], float]
"""Seconds that it saves to find so many tokens (the second) of a prompt of so many (the first), brought up in so many
seconds (the third)."""


class Admission:
    """`max_running` sequences run at most. At least `watermark_pages` stay available when one is admitted while others run,
    so that those can grow."""

    def __init__(
        self,
        *,
        cache: PrefixCache,
        tables: PageTables,
        tiers: LowerTiers,
        roster: Roster,
        publications: Publications,
        outbox: Outbox,
        totals: Totals,
        clock: Callable[[], float],
        saved: Saved,
        max_running: int,
        watermark_pages: int,
    ) -> None:
        self._cache = cache
        self._tables = tables
        self._tiers = tiers
        self._roster = roster
        self._publications = publications
        self._outbox = outbox
        self._totals = totals
        self._clock = clock
        self._saved = saved
        self._max_running = max_running
        self._watermark_pages = watermark_pages

    def fill(self, draft: Draft, most: int) -> None:
        """Let in who has room, up to so many positions of them."""
        roster = self._roster
        while most and len(roster.running) < self._max_running:
            if roster.is_full(self._cache.freed):
                break
            member = roster.waiting.next(self._cached)
            if member is None:
                break
            prefix = self._tables.find(member)
            lead = roster.single_flight.find(member, prefix.match.tokens(self._cache.page_size))
            if lead is not None:
                self._tables.unpin(prefix.match)
                roster.follow(member, lead)
                self._totals.followers += lead.leader.group is not member.group
                continue
            if not self._tables.fill(member, prefix, self._watermark_pages if roster.running else 0):
                roster.no_room(self._cache.freed)
                break
            copy = self._tables.copy_of(member)
            if copy is not None:
                draft.copies.append(copy)
            self._start(member, prefix.match.gone)
            most -= draft.add(member, most)

    def _cached(self, member: Member) -> int:
        """How much a cache holds of a waiting sequence; asked again only after something was published."""
        if member.hint_age != self._cache.published:
            member.hint_age = self._cache.published
            reads = member.request.cache.read and not member.reads_nothing
            member.hint = self._cache.peek(member.cursor.root_key, member.tokens) if reads else 0
        return member.hint

    def _start(self, member: Member, gone: Gone | None) -> None:
        self._roster.admit(member)
        member.found = member.computed
        self._publications.expect_page(member)
        if not member.group.account.started:
            self._tell_start(member, gone)
            self._tiers.used(member.cursor.node)
        # What is loaded others find after this step: one that needs it too follows, rather than load it again.
        others_find = member.cursor.depth * self._cache.page_size if member.from_below else member.computed
        self._roster.single_flight.lead(member, others_find)

    def _tell_start(self, member: Member, gone: Gone | None) -> None:
        """Once for a request, by the first of its choices that is admitted: only this hit counts."""
        group, cached = member.group, member.computed
        on_disk = member.from_disk
        in_host = member.from_below - on_disk
        loading = group.waited + self._tiers.loading(member.from_below)
        saved = self._saved(member.prompt_len, cached, loading)
        group.account.start(cached, saved)
        self._totals.started(member.prompt_len, cached, in_host, on_disk, saved=saved, loading=loading)
        if group.root_key is not None and group.request.cache.read and not member.reads_nothing:
            self._totals.looked_up_tokens += member.prompt_len
        queued = self._clock() - group.arrival
        self._outbox.started.append(
            RequestStarted(
                group.request.request_id,
                cached,
                queued,
                host_tokens=in_host,
                disk_tokens=on_disk,
                saved=saved,
                loading=loading,
                evicted=None if member.from_below else evicted(gone),
            )
        )

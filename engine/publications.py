"""What a sequence leaves in the cache as it is computed: pages, entries, and where its conversation may go on."""

from __future__ import annotations

from cache.lease import Lease
from cache.prefix_cache import PrefixCache

from .entries import PendingEntries
from .events import Outbox
from .group import NEVER, Member
from .lower_tiers import LowerTiers
from .page_tables import PageTables
from .tips import Tips


class Publications:
    """Publishes for sequences, makes the entries that are due then, and counts both in the accounts of their requests."""

    def __init__(self, cache: PrefixCache, tables: PageTables, tiers: LowerTiers, outbox: Outbox) -> None:
        self._cache = cache
        self._tables = tables
        self._tiers = tiers
        self._outbox = outbox
        self._tips = Tips(cache)

    def publish(self, member: Member) -> None:
        """What was computed of a sequence becomes findable, page by page."""
        entries = member.group.entries
        known = self._cache.written_tokens
        self._cache.publish(member.cursor, member.tokens, member.pages, member.computed)
        self.expect_page(member)
        end = member.cursor.depth * self._cache.page_size
        self._count_written(member, known, end)
        if entries and entries.shortest <= end:
            self._put_entries(member, entries, end)

    def expect_page(self, member: Member) -> None:
        """When the next page of a sequence is whole, if it may be published then."""
        due = (member.cursor.depth + 1) * self._cache.page_size
        member.due = due if due <= member.cursor.limit else NEVER

    def complete_prompt(self, member: Member) -> None:
        """Once for a request, by the first of its choices that gets there."""
        group = member.group
        if not group.account.complete:
            if group.entries:
                self._put_entries(member, group.entries, member.prompt_len)
            ahead = 0
            if member.pages:  # or else it has ended with its first token, and left what it may
                ahead = self._cache.unpublished(member.cursor, member.tokens, member.prompt_len)
            self._outbox.cached.append(group.account.complete_prompt(group.request.request_id, ahead))

    def keep(self, member: Member) -> None:
        """What a sequence that has ended leaves to others, up to its last token."""
        known = self._cache.written_tokens
        tip = self._tables.keep(member)
        self._count_written(member, known, min(member.computed, member.cursor.limit))
        entries = member.group.entries
        if entries:
            self._put_entries(member, entries, member.prompt_len)
        if tip is not None and member.index == 0:
            self._tips.add(member.request.request_id, tip)

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        """Lease all that the first choice of a request left that ended a moment ago. Too late is nothing."""
        self._tips.lease(request_id, lease)

    def _count_written(self, member: Member, known: int, end: int) -> None:
        """What was just published of a sequence ends at `end`, and what of it nobody knew does as well."""
        member.group.account.wrote(end - (self._cache.written_tokens - known), end)

    def _put_entries(self, member: Member, entries: PendingEntries, upto: int) -> None:
        made = entries.put(member.cursor, member.tokens, upto)
        member.group.account.entries += made
        for entry_id in made:
            self._tiers.make_last(self._cache.path_of(entry_id)[-1])

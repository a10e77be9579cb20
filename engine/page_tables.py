"""What the page table of a sequence is made of: pages found, pages shared with a sibling, pages of its own.

The scheduler says when; this says which, and takes all of them or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from cache.node import Node
from cache.prefix_cache import PrefixCache
from cache.reading import Match
from cache.tiers.index import TierPage

from .batch import PageCopy
from .group import Member
from .lower_tiers import LowerTiers


@dataclass(frozen=True, slots=True)
class Prefix:
    """What there is of a sequence: `match` on the device, and the pages `below` it that go on where its whole ones end."""

    match: Match
    below: list[TierPage] = field(default_factory=list)


class PageTables:
    __slots__ = ("_cache", "_page_size", "_tiers")

    def __init__(self, cache: PrefixCache, tiers: LowerTiers) -> None:
        self._cache = cache
        self._page_size = cache.page_size
        self._tiers = tiers

    def find(self, member: Member) -> Prefix:
        """Find the longest prefix there is, and pin what of it is on the device: in the tree, or in the pages of a sibling,
        whose prompt is the same."""
        if member.reads_nothing:
            return Prefix(self._cache.begin(member.cursor))
        match = self._cache.match(member.cursor, member.tokens)
        share = min(member.prompt_len, len(member.tokens) - 1)
        if share > match.tokens(self._page_size):
            for sibling in member.group.members:
                # One that has still to copy its own tail has nothing there yet to copy from.
                if sibling.computed >= share and sibling.copy_source is None:
                    self.unpin(match)
                    return Prefix(self._fork(member, sibling, share))
        return Prefix(match, self._continuation(member, match))

    def _continuation(self, member: Member, match: Match) -> list[TierPage]:
        root_key = member.cursor.root_key
        if root_key is None or not member.request.cache.read:
            return []
        return self._tiers.find(root_key, match.chain, member.tokens, len(match.pages))

    def unpin(self, match: Match) -> None:
        self._cache.release(match.pages if match.tail is None else [*match.pages, match.tail])

    def fill(self, member: Member, prefix: Prefix, reserve: int) -> bool:
        """Give a sequence pages for all its tokens, those of the prefix first; or unpin it and say that there is no room.

        `reserve` pages have to stay available. A tail that was matched is to be copied: see `copy_of`. What is below the
        device is loaded by the next plan into pages of the sequence's own, and published once that is carried out.
        """
        below = prefix.below
        match = self._without_tail(prefix.match) if below else prefix.match
        need = -(-len(member.tokens) // self._page_size) - len(match.pages)
        tenant = member.request.tenant
        if match.tail is not None and self._cache.available_to(tenant) - need < reserve:
            match = self._without_tail(match)  # the page to copy from may be the one that is missing
        room = self._cache.available_to(tenant) - need >= reserve
        self._tiers.hold(below)  # pages that are evicted now want slots
        fresh = self._cache.allocate(need, tenant) if room else None
        if fresh is not None:
            member.from_disk = self._tiers.load(below, fresh[: len(below)]) * self._page_size
        self._tiers.let_go(below)
        if fresh is None:
            self.unpin(match)
            return False
        member.pages = match.pages + fresh
        member.from_below = len(below) * self._page_size
        member.computed = match.tokens(self._page_size) + member.from_below
        member.copy_source = match.tail
        return True

    def _without_tail(self, match: Match) -> Match:
        if match.tail is not None:
            self._cache.release([match.tail])
        return replace(match, tail=None, tail_tokens=0)

    def copy_of(self, member: Member) -> PageCopy | None:
        """What has to be copied before a sequence that was just filled can be computed."""
        if member.copy_source is None:
            return None
        ordinal, tokens = divmod(member.computed, self._page_size)
        return PageCopy(member.copy_source, member.pages[ordinal], tokens)

    def copied(self, member: Member) -> None:
        """The step that copies is over."""
        if member.copy_source is not None:
            self._cache.release([member.copy_source])
            member.copy_source = None

    def grow(self, member: Member) -> bool:
        """Give a sequence the pages its tokens need, or say that there is no room."""
        need = -(-len(member.tokens) // self._page_size) - len(member.pages)
        if need > 0:
            pages = self._cache.allocate(need, member.request.tenant)
            if pages is None:
                return False
            member.pages += pages
        return True

    def keep(self, member: Member) -> Node | None:
        """What was computed stays findable, the partial last page included. Where in the tree it ends."""
        return self._cache.publish_tail(member.cursor, member.tokens, member.pages, member.computed)

    def clear(self, member: Member) -> None:
        """Give all pages back."""
        self.copied(member)
        self._cache.release(member.pages)
        member.cursor.reset()
        member.pages = []
        member.computed = 0

    def _fork(self, member: Member, sibling: Member, share: int) -> Match:
        whole, rest = divmod(share, self._page_size)
        pages = sibling.pages[:whole]
        tail = sibling.pages[whole] if rest else None
        self._cache.share(pages if tail is None else [*pages, tail])
        member.cursor.reset()
        member.cursor.limit = min(member.cursor.limit, sibling.cursor.limit)  # 0 if those pages were flushed
        return Match(pages, tail, rest)

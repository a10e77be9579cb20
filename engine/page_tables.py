"""What the page table of a sequence is made of: pages found, pages shared with a sibling, pages of its own.

The scheduler says when; this says which, and takes all of them or none.
"""

from __future__ import annotations

from cache.prefix_cache import Match, PrefixCache
from cache.radix import Node

from .batch import PageCopy
from .group import Member


class PageTables:
    __slots__ = ("_cache", "_page_size")

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._page_size = cache.page_size

    def find(self, member: Member) -> Match:
        """Pin the longest prefix there is: in the tree, or in the pages of a sibling, whose prompt is the same."""
        if member.reads_nothing:
            return self._cache.begin(member.cursor)
        match = self._cache.match(member.cursor, member.tokens)
        share = min(member.prompt_len, len(member.tokens) - 1)
        if share > match.tokens(self._page_size):
            for sibling in member.group.members:
                # One that has still to copy its own tail has nothing there yet to copy from.
                if sibling.computed >= share and sibling.copy_source is None:
                    self.unpin(match)
                    return self._fork(member, sibling, share)
        return match

    def unpin(self, match: Match) -> None:
        self._cache.release(match.pages if match.tail is None else [*match.pages, match.tail])

    def fill(self, member: Member, match: Match, reserve: int) -> bool:
        """Give a sequence pages for all its tokens, those of the match first; or unpin it and say that there is no room.

        `reserve` pages have to stay available. A tail that was matched is to be copied: see `copy_of`.
        """
        tenant = member.request.tenant
        need = -(-len(member.tokens) // self._page_size) - len(match.pages)
        room = self._cache.available_to(tenant) - need >= reserve
        if match.tail is not None and not room:
            self._cache.release([match.tail])  # the page to copy from may be the one that is missing
            match = Match(match.pages, None, 0)
            room = self._cache.available_to(tenant) - need >= reserve
        fresh = self._cache.allocate(need, tenant) if room else None
        if fresh is None:
            self.unpin(match)
            return False
        member.pages = match.pages + fresh
        member.computed = match.tokens(self._page_size)
        member.copy_source = match.tail
        return True

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

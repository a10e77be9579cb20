"""A sequence starts: it finds the longest prefix there is, and holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cached_pages import CachedPages
from .cursor import Cursor
from .entries import renew
from .finding import Finder
from .node import Node
from .tombstones import Gone
from .usage import note_used, note_used_in_part


@dataclass(frozen=True, slots=True)
class Match:
    """A pinned prefix: `pages` hold whole pages of it and the first `tail_tokens` positions of `tail` the rest.

    The caller is a holder of every one of these pages and has to release each in the end. `tail` is read-only for
    everyone: it is to be copied. `gone` is set if the next whole page was there once; `chain` names the last whole page.
    """

    pages: list[int]
    tail: int | None
    tail_tokens: int
    gone: Gone | None = None
    chain: bytes = b""

    def tokens(self, page_size: int) -> int:
        return len(self.pages) * page_size + self.tail_tokens


class Reader:
    __slots__ = ("_finder", "_pages")

    def __init__(self, pages: CachedPages, finder: Finder) -> None:
        self._pages = pages
        self._finder = finder

    def match(self, cursor: Cursor, root_key: bytes, tokens: Sequence[int]) -> Match:
        """Find and hold the longest known prefix of all but the last token, and set the cursor to the end of it."""
        now = self._pages.clock()
        found = self._finder.walk(root_key, tokens, now)
        following = self._finder.following(root_key, found, tokens)
        gone = self._finder.gone(root_key, found, tokens, following, now)
        if found.expired is not None:
            self._pages.remove_below(found.expired, "expired", now)
        nodes, tail, shared, _ = found
        whole_tail = tail is not None and _is_all_of(tail, shared, tokens)
        used = [*nodes, tail] if tail is not None and whole_tail else nodes
        if cursor.counts and len(used) > cursor.counted:
            cursor.streak = self._pages.evictor.resumed(used[-1])
        if cursor.counts and following is not None and len(nodes) >= cursor.counted:
            cursor.streak = max(cursor.streak, self._pages.evictor.missed(following))
        pages = self._use(cursor, used, now)
        cursor.counted = max(cursor.counted, len(used))
        if tail is not None and used is nodes:
            pages += self._use_part(tail, shared, now)
        if nodes:
            cursor.node = nodes[-1]
            cursor.depth = len(nodes)
        chain = nodes[-1].chain if nodes else root_key
        if tail is None:
            return Match(pages, None, 0, gone, chain)
        return Match(pages[:-1], tail.page, shared, gone, chain)

    def _use(self, cursor: Cursor, path: list[Node], now: float) -> list[int]:
        """Hold all pages of a path, of which every token was used now."""
        pages = self._pages.hold(path)
        policy = cursor.policy
        counted = cursor.counted if cursor.counts else len(path)
        for at, node in enumerate(path):
            note_used(node, policy, now)
            node.hits += at >= counted
            if node.holds is not None:
                renew(node, node.start + len(node.key), now, counts=at >= counted)
        return pages

    def _use_part(self, tail: Node, shared: int, now: float) -> list[int]:
        """Hold a page of which only the beginning is used: that is no use of what others wrote behind it."""
        pages = self._pages.hold([tail])
        note_used_in_part(tail, now)
        if tail.holds is not None:
            renew(tail, tail.start + shared, now, counts=True)
        return pages


def _is_all_of(tail: Node, shared: int, tokens: Sequence[int]) -> bool:
    """Whether a page whose first tokens are found is used as a whole, the last of a prompt not being looked for."""
    missing = len(tail.key) - shared
    return not missing or (
        missing == 1 and tail.start + shared == len(tokens) - 1 and tail.key[shared] == tokens[-1]
    )

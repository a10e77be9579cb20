"""What would be found of a prompt, and what became of what would have come next. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .cached_pages import CachedPages
from .cursor import Cursor
from .dead_roots import DeadRoots
from .node import Node
from .tiers.page import page_chain
from .tombstones import Gone


@dataclass(frozen=True, slots=True)
class Found:
    """What a match would find: `tokens` of a prompt, `whole` of them in whole pages the last of which is named `chain`."""

    tokens: int
    whole: int
    chain: bytes
    gone: Gone | None


class Path(NamedTuple):
    """A walk as far as its pages have not expired. `expired` would have been the next."""

    nodes: list[Node]
    tail: Node | None
    shared: int
    expired: Node | None

    def tokens(self, page_size: int) -> int:
        return len(self.nodes) * page_size + self.shared


class Finder:
    __slots__ = ("_dead", "_pages")

    def __init__(self, pages: CachedPages, dead: DeadRoots) -> None:
        self._pages = pages
        self._dead = dead

    def look_up(self, root_key: bytes, tokens: Sequence[int]) -> Found:
        now = self._pages.clock()
        path = self.walk(root_key, tokens, now)
        size = self._pages.page_size
        chain = path.nodes[-1].chain if path.nodes else root_key
        return Found(
            path.tokens(size),
            len(path.nodes) * size,
            chain,
            self.gone(root_key, path, tokens, self.following(root_key, path, tokens), now),
        )

    def walk(self, root_key: bytes, tokens: Sequence[int], now: float) -> Path:
        """The longest known prefix of all but the last token."""
        holders = self._pages.pool.holders
        nodes, tail, shared = self._pages.tree.walk(root_key, tokens, len(tokens) - 1)
        for at, node in enumerate(nodes):
            if node.expires <= now and holders(node.page) == 1:
                return Path(nodes[:at], None, 0, node)
        if tail is not None and tail.expires <= now and holders(tail.page) == 1:
            return Path(nodes, None, 0, tail)
        return Path(nodes, tail, shared, None)

    def missing(self, cursor: Cursor, root_key: bytes, tokens: Sequence[int]) -> int:
        """How many tokens behind the last whole page at a cursor nobody has published."""
        tree = self._pages.tree
        start, end = cursor.depth * tree.page_size, len(tokens)
        if end <= start:
            return 0
        above = cursor.node or tree.roots.get(root_key)
        return end - start - (0 if above is None else tree.walk_below(above, tokens, start, end).shared)

    def following(self, root_key: bytes, path: Path, tokens: Sequence[int]) -> bytes | None:
        """The chain of the whole page that would come after a path; None if there is none, or nothing went yet."""
        size = self._pages.page_size
        start = len(path.nodes) * size
        key = tuple(tokens[start : start + size])
        if len(key) < size or not (len(self._pages.tombstones) or self._dead):
            return None
        return page_chain(path.nodes[-1].chain if path.nodes else root_key, key)

    def gone(
        self, root_key: bytes, path: Path, tokens: Sequence[int], following: bytes | None, now: float
    ) -> Gone | None:
        """What became of the whole page after a path, if it was there once."""
        if path.expired is not None:
            return Gone("expired", now - path.expired.expires, False)
        if following is None:
            return None
        gone = self._pages.tombstones.find(following, now)
        dead = self._dead.find(root_key)
        if dead is not None and dead.dead is not None and (gone is None or now - dead.dead < gone.age):
            walk = self._pages.tree.walk_below(dead, tokens, 0, (len(path.nodes) + 1) * self._pages.page_size)
            if len(walk.nodes) > len(path.nodes):
                return Gone("flushed", now - dead.dead, False)
        return gone

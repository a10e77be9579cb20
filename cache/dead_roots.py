"""What was flushed and not reused yet: whole roots, which nobody finds any more and whose pages are reclaimed in time."""

from __future__ import annotations

from collections.abc import Iterator

from .cached_pages import CachedPages
from .node import Node, Root, below


class DeadRoots:
    """`pages` counts those still held for them: all that is cut off in O(1) has to be taken apart page by page, later."""

    __slots__ = ("_last", "_live", "_next", "pages")

    def __init__(self, live: CachedPages) -> None:
        self._live = live
        self._next: list[Node] = []  # roots, and nodes whose children come first
        self._last: dict[bytes, Root] = {}  # the one flushed last of each key
        self.pages = 0

    def __bool__(self) -> bool:
        return bool(self._next)

    def __iter__(self) -> Iterator[Node]:
        """Every page that is left."""
        for root in {node.root for node in self._next}:
            yield from below(root)

    def find(self, root_key: bytes) -> Root | None:
        """The root of a key that was flushed last, as long as anything of it is left."""
        return self._last.get(root_key)

    def add(self, root: Root, now: float) -> None:
        """Nobody finds anything below a root any more. O(1)."""
        self._live.cut(root, now)
        self.pages += root.pages
        self._next.append(root)
        self._last[root.root_key] = root

    def reclaim(self, count: int | None = None) -> int:
        """Make pages free again, up to `count` of them. How many it were: those that sequences hold are free later."""
        now = self._live.clock()
        done = 0
        while self._next and (count is None or done < count):
            node = self._next[-1]
            if node.nodes:
                self._next.append(node.nodes[-1])
                continue
            self._next.pop()
            root = node.root
            if node is root:
                if self._last.get(root.root_key) is root:
                    del self._last[root.root_key]
                continue
            done += self._bury(node, now)
        return done

    def _bury(self, node: Node, now: float) -> int:
        """A page goes, the last one of its parent's. 1 if it is free now."""
        live, root = self._live, node.root
        assert root.dead is not None
        node.parent.nodes.pop()
        node.parent.keys.pop()
        root.pages -= 1
        root.tokens -= len(node.key)
        self.pages -= 1
        live.entries.lose_all(node, "flushed", now)
        if len(node.key) == live.page_size:
            live.tombstones.add(node.chain, "flushed", root.dead)
        live.evictor.withdraw(node)
        live.count_eviction(root.account, "flushed")
        page = node.page
        node.page = -1
        return live.let_go(node, page)

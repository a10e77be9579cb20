"""What the scheduler sees of the cache: find a prefix, take pages, publish them, give them back.

Pages that only the tree holds are *idle*: they are what eviction can take. Eviction goes leaf by leaf, the least
recently used first, and never touches a page that a sequence holds.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .blocks import OutOfPages, PagePool
from .radix import Key, Node, RadixTree


@dataclass(slots=True, eq=False)
class Cursor:
    """Where in its namespace a sequence has published to: `depth` whole pages, the last of them at `node`.

    Without a namespace the sequence neither reads nor feeds the tree.
    """

    namespace: bytes | None
    node: Node | None = None
    depth: int = 0

    def reset(self) -> None:
        self.node = None
        self.depth = 0


@dataclass(frozen=True, slots=True)
class Match:
    """A pinned prefix: `pages` hold whole pages of it and the first `tail_tokens` positions of `tail` the rest.

    The caller is a holder of every one of these pages and has to release each in the end. `tail` is read-only for
    everyone: it is to be copied.
    """

    pages: list[int]
    tail: int | None
    tail_tokens: int

    def tokens(self, page_size: int) -> int:
        return len(self.pages) * page_size + self.tail_tokens


@dataclass(frozen=True, slots=True)
class Survey:
    """What stands in the tree."""

    pages: set[int]
    tokens: int
    namespaces: int


class PrefixCache:
    """A page pool and the tree over it. With `enabled=False` nothing is ever found or kept, pages still flow.

    `idle` counts the pages only the tree holds, an upper bound of what eviction can free at once: a page below which a
    sequence holds another one has to wait for that. `freed` and `published` are counts that only grow: whether they
    moved tells if asking again is worth it. `written_tokens` counts those that nobody had published before; of what a call
    publishes they are the last.
    """

    def __init__(self, pages: int, page_size: int, *, enabled: bool = True) -> None:
        if page_size < 1:
            raise ValueError(f"a page holds at least one token, not {page_size}")
        self.pool = PagePool(pages)
        self.page_size = page_size
        self.enabled = enabled
        self.idle = 0
        self.freed = 0
        self.published = 0
        self.written_tokens = 0
        self.evicted = 0
        self._tree = RadixTree(page_size)
        self._node_of: list[Node | None] = [None] * pages
        self._leaves: list[
            tuple[float, int, Node]
        ] = []  # heap of (used, tie-break, leaf), stale entries and all
        self._tick = 0
        self._pushes = 0

    # ---- looking -----------------------------------------------------------------------------------------------------

    @property
    def tree_pages(self) -> int:
        return self._tree.nodes

    @property
    def available(self) -> int:
        """An upper bound of the pages `allocate` can give now."""
        return self.pool.free + self.idle

    def survey(self) -> Survey:
        """The tree counted anew, linear in it."""
        nodes = list(self._tree)
        tokens = sum(len(node.key) for node in nodes)
        return Survey({node.page for node in nodes}, tokens, len(self._tree.roots))

    def peek(self, namespace: bytes | None, tokens: Sequence[int]) -> int:
        """How many tokens `match` would find. Changes nothing."""
        if namespace is None or not self.enabled:
            return 0
        walk = self._tree.walk(namespace, tokens, len(tokens) - 1)
        return len(walk.nodes) * self.page_size + walk.shared

    def match(self, cursor: Cursor, tokens: Sequence[int]) -> Match:
        """Find and pin the longest known prefix of all but the last token, and set the cursor to the end of it.

        The last token is left out so that there is always a position to compute, and with it something to sample from.
        """
        cursor.reset()
        if cursor.namespace is None or not self.enabled:
            return Match([], None, 0)
        walk = self._tree.walk(cursor.namespace, tokens, len(tokens) - 1)
        self._tick += 1
        for node in walk.nodes:
            self._pin(node)
        if walk.tail is not None:
            self._pin(walk.tail)
        if walk.nodes:
            cursor.node = walk.nodes[-1]
            cursor.depth = len(walk.nodes)
        tail = None if walk.tail is None else walk.tail.page
        return Match([node.page for node in walk.nodes], tail, walk.shared)

    def _pin(self, node: Node) -> None:
        node.used = self._tick
        if self.pool.retain(node.page) == 2:
            self.idle -= 1

    def share(self, pages: Iterable[int]) -> None:
        """One more holder of pages that a sequence holds."""
        for page in pages:
            self.pool.retain(page)

    # ---- pages -------------------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages held by the caller, evicting idle ones if too few are free; None if that is not enough."""
        missing = count - self.pool.free
        if missing > 0 and (missing > self.idle or self._evict(missing) < missing):
            return None
        pages: list[int] = []
        try:
            for _ in range(count):
                pages.append(self.pool.allocate())  # noqa: PERF401 - those before a failure have to be given back
        except OutOfPages:
            self.release(pages)
            return None
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Give up one hold of each page. Those in the tree stay there, idle once nobody else holds them."""
        self._tick += 1
        self.freed += 1
        for page in reversed(pages):
            if self.pool.release(page) == 1:
                node = self._node_of[page]
                if node is not None:
                    node.used = self._tick
                    self.idle += 1
                    if not node.keys:
                        self._push(node)

    def publish(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int) -> None:
        """Make every whole page of `tokens[:computed]` findable. `pages` is the sequence's page table."""
        full = computed // self.page_size
        if full > cursor.depth and cursor.namespace is not None and self.enabled:
            self._publish_pages(cursor, cursor.namespace, tokens, pages, full)

    def publish_tail(
        self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int
    ) -> None:
        """The same for a sequence that has ended: the partially filled last page becomes findable too."""
        if cursor.namespace is None or not self.enabled:
            return
        full = computed // self.page_size
        if full > cursor.depth:
            self._publish_pages(cursor, cursor.namespace, tokens, pages, full)
        key = tuple(tokens[full * self.page_size : computed])
        if key:
            self._insert(self._parent(cursor, cursor.namespace, tokens, pages), key, pages[full])

    def _publish_pages(
        self, cursor: Cursor, namespace: bytes, tokens: Sequence[int], pages: Sequence[int], full: int
    ) -> None:
        size = self.page_size
        parent = self._parent(cursor, namespace, tokens, pages)
        for i in range(cursor.depth, full):
            parent = self._insert(parent, tuple(tokens[i * size : (i + 1) * size]), pages[i])
        cursor.node = parent
        cursor.depth = full

    def _parent(self, cursor: Cursor, namespace: bytes, tokens: Sequence[int], pages: Sequence[int]) -> Node:
        """The node that the cursor's next page goes below."""
        if cursor.node is not None and cursor.node.parent is None:
            # The cursor stood on another sequence's equal page, and that was evicted: publish from the root again.
            depth = cursor.depth
            cursor.reset()
            self._publish_pages(cursor, namespace, tokens, pages, depth)
        return cursor.node if cursor.node is not None else self._tree.root(namespace)

    def _insert(self, parent: Node, key: Key, page: int) -> Node:
        known = self._tree.tokens
        node, displaced = self._tree.insert(parent, key, page)
        self.written_tokens += self._tree.tokens - known
        if node.page != page or self._node_of[page] is node:
            return node  # known already, by a page of its own or by this one
        assert self._node_of[page] is None, f"page {page} would stand in the tree twice"
        self._node_of[page] = node
        node.used = self._tick
        self.pool.retain(page)
        self.published += 1
        if displaced is not None:
            self._drop(displaced)
        return node

    # ---- eviction ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Drop every idle page below which no sequence holds one."""
        self._evict(self.pool.total)

    def _evict(self, count: int) -> int:
        """Free up to `count` idle pages; how many it were. O(log tree) each, amortised."""
        done = 0
        while done < count and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if node.used != used or not self._evictable(node):
                continue
            parent = self._tree.remove(node)
            self._drop(node.page)
            done += 1
            if parent is not None and self.pool.holders(parent.page) == 1:
                self._push(parent)
        self.evicted += done
        return done

    def _evictable(self, node: Node) -> bool:
        return node.parent is not None and not node.keys and self.pool.holders(node.page) == 1

    def _drop(self, page: int) -> None:
        """The tree lets go of a page."""
        self._node_of[page] = None
        if not self.pool.release(page):
            self.idle -= 1
            self.freed += 1

    def _push(self, node: Node) -> None:
        if len(self._leaves) > 64 + 2 * self._tree.nodes:
            self._leaves = [entry for entry in self._leaves if self._current(entry)]
            heapq.heapify(self._leaves)
        self._pushes += 1
        heapq.heappush(self._leaves, (node.used, self._pushes, node))

    def _current(self, entry: tuple[float, int, Node]) -> bool:
        return entry[2].used == entry[0] and self._evictable(entry[2])

    # ---- truth -------------------------------------------------------------------------------------------------------

    def check(self, held: Iterable[int]) -> None:
        """Assert every invariant; `held` names each page once for each hold a sequence has on it."""
        self._tree.check()
        holders = Counter(held)
        nodes = list(self._tree)
        for node in nodes:
            assert self._node_of[node.page] is node, f"page {node.page} does not know its node"
            holders[node.page] += 1
        assert len(nodes) + self._node_of.count(None) == self.pool.total, (
            "a page outside the tree claims a node"
        )
        self.pool.check(holders)
        idle = [node for node in nodes if holders[node.page] == 1]
        assert len(idle) == self.idle, f"{self.idle} pages counted idle, {len(idle)} are"
        current = {entry[2].page for entry in self._leaves if self._current(entry)}
        leaves = {node.page for node in idle if not node.keys}
        assert leaves <= current, "an idle leaf cannot be evicted"

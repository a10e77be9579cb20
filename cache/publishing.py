"""What a sequence has computed becomes findable, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from .cached_pages import CachedPages
from .cursor import Cursor
from .entries import renew
from .node import Key, Node, Root
from .room import Room
from .usage import note_used, note_used_in_part, note_written
from .writers import Writers


class Publisher:
    """`published` counts pages that became findable, `written_tokens` tokens that nobody had published before: of what a call
    publishes they are the last. Both only grow."""

    def __init__(self, pages: CachedPages, room: Room, writers: Writers) -> None:
        self._pages = pages
        self._room = room
        self._writers = writers
        self.published = 0
        self.written_tokens = 0

    def publish(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int) -> None:
        """Make every whole page of `tokens[:computed]` findable that may be. `pages` is the sequence's page table."""
        full = min(computed, cursor.limit) // self._pages.page_size
        if full > cursor.depth:
            self._room.trim(self._publish_pages(cursor, tokens, pages, full).root.account)

    def publish_tail(
        self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int
    ) -> Node | None:
        """The same for a sequence that has ended: the partially filled last page becomes findable too."""
        if not cursor.limit:
            return None
        computed = min(computed, cursor.limit)
        full, rest = divmod(computed, self._pages.page_size)
        if full > cursor.depth:
            self._publish_pages(cursor, tokens, pages, full)
        tip = cursor.node
        if rest and full == cursor.depth:
            parent = self._parent(cursor, tokens, pages)
            key = tuple(tokens[computed - rest : computed])
            tip = self._insert(cursor, parent, key, pages[full], self._pages.clock())
        if tip is not None:
            self._room.trim(tip.root.account)
        return tip

    def _publish_pages(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], full: int) -> Node:
        """The last of them. Their tenant may be above its quota now; but nothing is taken before all of them stand."""
        size = self._pages.page_size
        now = self._pages.clock()
        parent = self._parent(cursor, tokens, pages)
        for i in range(cursor.depth, full):
            parent = self._insert(cursor, parent, tuple(tokens[i * size : (i + 1) * size]), pages[i], now)
        cursor.node = parent
        cursor.depth = full
        cursor.counted = max(cursor.counted, full)  # what a sequence wrote itself it does not find
        return parent

    def _parent(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int]) -> Node:
        """The node that the cursor's next page goes below."""
        if cursor.node is not None and cursor.node.page < 0:
            # The cursor stood on another sequence's equal page, and that was evicted: publish from the root again.
            depth = cursor.depth
            cursor.reset()
            self._publish_pages(cursor, tokens, pages, depth)
        return cursor.node if cursor.node is not None else self._root(cursor)

    def _root(self, cursor: Cursor) -> Root:
        assert cursor.root_key is not None
        tree = self._pages.tree
        root = tree.roots.get(cursor.root_key)
        if root is None:
            self._writers.add(cursor)
            account = self._pages.accounts.of(cursor.tenant)
            root = tree.root(cursor.root_key, account, namespace=cursor.namespace, adapter=cursor.adapter)
        return root

    def _insert(self, cursor: Cursor, parent: Node, key: Key, page: int, now: float) -> Node:
        tree = self._pages.tree
        before = tree.tokens
        node, fresh = self._pages.put(parent, key, page, now)
        self.written_tokens += tree.tokens - before
        if not fresh:
            self._write_again(cursor, node, len(key), now)
            return node
        self.published += 1
        note_written(node, cursor, now)
        if node.holds is not None:
            renew(node, node.start + len(key), now, counts=False)
        return node

    def _write_again(self, cursor: Cursor, node: Node, length: int, now: float) -> None:
        """The first `length` tokens of a page were computed once more."""
        if node.expires <= now:
            self._pages.lose_leases(node, "expired", now)
        if length < len(node.key):
            note_used_in_part(node, now)
        else:
            note_used(node, cursor.policy, now)
        if node.holds is not None:
            renew(node, node.start + length, now, counts=False)
        self._pages.offer_again(node)

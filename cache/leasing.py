"""Promises about pages that stand in the tree: made, changed, taken back, and the room that hard pins take."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .accounts import Account
from .cached_pages import CachedPages
from .cursor import Cursor
from .entries import pause
from .lease import EntrySpec, Lease
from .node import Entry, Node


class Leasing:
    """Entries end where their pages go; here they begin, and end before that. Ids are the server's own."""

    __slots__ = ("_pages",)

    def __init__(self, pages: CachedPages) -> None:
        self._pages = pages

    # ---- entries -----------------------------------------------------------------------------------------------------

    def put(self, cursor: Cursor, spec: EntrySpec, tokens: Sequence[int]) -> bool:
        """Lease the first `spec.tokens` of `tokens`, as soon as all of them stand in the tree: False, and nothing happens,
        before that. An entry of this id is renewed. Raises PinsExhausted."""
        if not cursor.limit or spec.tokens < 1:
            return False
        node = self._node_at(cursor, tokens, spec.tokens)
        if node is None:
            return False
        account = node.root.account
        known = self._pages.entries.find(spec.entry_id)
        if known is not None and known.account is not account:
            return False  # whoever guesses another's id gets nothing
        if spec.lease.pin == "hard":
            self._check_pins(node, account)
        hits = 0
        if known is not None:
            self._end(known)
            hits = known.hits
        self._start(spec.entry_id, node, spec.tokens, spec.lease, hits=hits)
        return True

    def patch(self, entry: Entry, lease: Lease) -> None:
        """Give an entry a new lease, from now on. Raises PinsExhausted. One that has lost its pages stays as it is."""
        if entry.is_live:
            if lease.pin == "hard":
                self._check_pins(entry.node, entry.account)
            self._end(entry)
            self._start(entry.entry_id, entry.node, entry.tokens, lease, hits=entry.hits)

    def drop(self, entry: Entry) -> None:
        """Forget an entry: its pages are like any others."""
        self._end(entry)

    def take_down(self, entry: Entry, kept: Callable[[Node], bool]) -> int:
        """Take the pages of an entry out of the tree, from its end up to what somebody else needs. Each that is `kept`
        elsewhere goes; at the first that is not, no more do. How many went. The entry ends with the first of them."""
        if not entry.is_live:
            return 0
        now = self._pages.clock()
        node = entry.node
        done = 0
        while node is not node.root and self._is_only_for(node, entry) and kept(node):
            parent = node.parent
            self._pages.remove(node, "demoted", now)
            node = parent
            done += 1
        self._pages.offer_if_leaf(node)
        return done

    def _is_only_for(self, node: Node, entry: Entry) -> bool:
        """Nobody needs a page but this entry, if that."""
        leased = [other for hold in node.holds or () for other in hold.entries.values()]
        own = entry.hold is not None and node is entry.node and entry.lease.pin == "hard"
        return (
            not node.keys
            and self._pages.pool.holders(node.page) == 1
            and all(other is entry for other in leased)
            and all(hold.pause is None for hold in node.holds or ())
            and node.pins == int(own)
        )

    def _start(self, entry_id: str, node: Node, tokens: int, lease: Lease, *, hits: int) -> None:
        weakest = self._pages.entries.put(entry_id, node, tokens, lease, self._pages.clock(), hits=hits)
        if weakest is not None and weakest.lease.pin == "hard":
            self._pages.unpin(node)
        if lease.pin == "hard":
            self._pages.pin(node)
        self._pages.offer_again(node)

    def _end(self, entry: Entry) -> None:
        if entry.hold is None:
            self._pages.entries.forget(entry)
            return
        live = entry.is_live
        self._pages.entries.lose(entry, None)
        if live and entry.lease.pin == "hard":
            self._pages.unpin(entry.node)
        self._pages.offer_again(entry.node)

    def _node_at(self, cursor: Cursor, tokens: Sequence[int], count: int) -> Node | None:
        """The page that holds the last of the first `count` tokens."""
        size = self._pages.page_size
        index = (count - 1) // size
        node = cursor.node
        if node is not None and node.page >= 0 and index < cursor.depth:
            for _ in range(cursor.depth - 1 - index):
                node = node.parent
            return node
        assert cursor.root_key is not None
        walk = self._pages.tree.walk(cursor.root_key, tokens, count)
        if index < len(walk.nodes):
            return walk.nodes[index]
        return walk.tail if walk.tokens(size) >= count else None

    # ---- conversations -----------------------------------------------------------------------------------------------

    def pause(self, node: Node, lease: Lease) -> bool:
        """Let a conversation that ended at `node` wait for its tools. False: that is gone."""
        if node.page < 0 or node.root.dead is not None:
            return False
        pause(node, lease, self._pages.clock())
        self._pages.offer_again(node)
        return True

    # ---- hard pins ---------------------------------------------------------------------------------------------------

    def reserve_pins(self, tenant: str, tokens: int) -> int:
        """Make sure that a path of so many tokens can be pinned later. The pages reserved. Raises PinsExhausted."""
        pages = -(-tokens // self._pages.page_size)
        self._pages.accounts.reserve(self._pages.accounts.of(tenant), pages)
        return pages

    def release_pins(self, tenant: str, pages: int) -> None:
        self._pages.accounts.unreserve(self._pages.accounts.of(tenant), pages)

    def pinned_of(self, root_key: bytes, prompt: Sequence[int], count: int) -> int:
        """How many of the first `count` tokens of a prompt stand on pages that are pinned hard already."""
        nodes, tail, shared = self._pages.tree.walk(root_key, prompt, len(prompt))
        pinned = sum(node.pins > 0 for node in nodes) * self._pages.page_size
        if tail is not None and tail.pins and pinned + shared == len(prompt):
            pinned += shared  # with a token more it could be another page
        return min(pinned, count)

    def _check_pins(self, node: Node, account: Account) -> None:
        need = 0
        while node is not node.root and not node.pins:
            need += 1
            node = node.parent
        self._pages.accounts.check_room(account, need)

"""The pages that the tree holds: who else holds them, whether they can go, and how one comes and goes.

Pages that only the tree holds and that nothing pins hard are *idle*: they are what eviction can take, leaf by leaf. Every
change to that is made here, so that each is counted once, for all and for the page's root and owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

from .accounts import Account, Accounts
from .blocks import PagePool
from .entries import Entries, claim_of
from .eviction import Evictor
from .lease import EvictionCause
from .node import Key, Node, Root, below
from .radix import RadixTree
from .tombstones import Tombstones


class CachedPages:
    """A page pool and the tree over it.

    `idle` counts the pages that eviction can take at last, those of flushed roots included. `freed` is a count that only
    grows whenever there is more room than before. `pinned` pages are pinned hard; `broken_leases` and `broken_pauses` are
    promises that were not kept.
    """

    def __init__(
        self,
        pool: PagePool,
        page_size: int,
        *,
        accounts: Accounts,
        evictor: Evictor,
        clock: Callable[[], float],
    ) -> None:
        self.pool = pool
        self.page_size = page_size
        self.tree = RadixTree(page_size)
        self.accounts = accounts
        self.evictor = evictor
        self.entries = Entries()
        self.tombstones = Tombstones()
        self.clock = clock
        self.idle = 0
        self.freed = 0
        self.pinned = 0
        self.broken_leases = 0
        self.broken_pauses = 0
        self.evictions: Counter[EvictionCause] = Counter()
        self.node_of: list[Node | None] = [None] * pool.total

    # ---- holders -----------------------------------------------------------------------------------------------------

    def hold(self, path: Sequence[Node]) -> list[int]:
        """One more holder of each page of a path, or of its end. The pages."""
        retain = self.pool.retain
        pages = [node.page for node in path]
        woken = frozen = 0
        for node in path:
            if retain(node.page) == 2:
                if node.pins:
                    frozen += 1
                else:
                    woken += 1
        if path:
            path[0].root.frozen -= frozen
            self.count_idle(path[0].root, -woken)
            self.evictor.withdraw(path[-1])
        return pages

    def release(self, pages: Sequence[int]) -> None:
        """Give up one hold of each page. Those in the tree stay there, idle once nobody else holds them."""
        self.freed += 1
        now = self.clock()
        release, node_of = self.pool.release, self.node_of
        root: Root | None = None
        idle = 0
        for page in reversed(pages):
            if release(page) != 1:
                continue
            node = node_of[page]
            if node is None:
                continue
            if node.root is not root:
                if root is not None:
                    self.count_idle(root, idle)
                root, idle = node.root, 0
            node.used = now
            if node.max_age is not None:
                node.expires = now + node.max_age
            if node.pins and root.dead is None:
                root.frozen += 1
                continue
            idle += 1
            if not node.keys and root.dead is None:
                self.offer(node)
        if root is not None:
            self.count_idle(root, idle)

    # ---- coming and going --------------------------------------------------------------------------------------------

    def put(self, parent: Node, key: Key, page: int, now: float) -> tuple[Node, bool]:
        """Let a page that a sequence holds stand for `key` below `parent`. The node that does now, and whether it is this
        page that is new there: one that holds these tokens already stays."""
        node, displaced = self.tree.insert(parent, key, page)
        if node.page != page or self.node_of[page] is node:  # known by a page of its own, or by this one
            return node, False
        assert self.node_of[page] is None, f"page {page} would stand in the tree twice"
        self.node_of[page] = node
        self.pool.retain(page)
        if len(key) == self.page_size:
            self.tombstones.forget(node.chain)
        if displaced is None:
            node.created = now
            node.owner = node.root.account.tenant
            self.accounts.charge(node.root.account, 1)
        else:
            self.evictor.withdraw(node)
            self.let_go(node, displaced)
            self.count_eviction(node.root.account, "replaced")
        if parent.seat:
            self.evictor.withdraw(parent)
        return node, True

    def remove(self, node: Node, cause: EvictionCause, now: float) -> None:
        """Take a leaf out of the tree, and end the leases on it."""
        self.lose_leases(node, cause, now)
        self.take_out(node, cause, now)

    def remove_below(self, top: Node, cause: EvictionCause, now: float) -> None:
        """Take a node and all below it out of the tree; pages that sequences hold are free once they are released."""
        for node in reversed([top, *below(top)]):
            self.remove(node, cause, now)
        self.offer_if_leaf(top.parent)

    def take_out(self, node: Node, cause: EvictionCause, now: float, *, broken: bool = False) -> None:
        """Take a leaf out of the tree on which no lease is left."""
        page = node.page
        account = node.root.account
        if len(node.key) == self.page_size:
            self.tombstones.add(node.chain, cause, now, broken=broken)
        self.evictor.withdraw(node)
        self.tree.remove(node)
        self.accounts.charge(account, -1)
        self.count_eviction(account, cause)
        self.let_go(node, page)

    def let_go(self, node: Node, page: int) -> int:
        """The tree gives a page up that it held for a node. 1 if it is free now."""
        self.node_of[page] = None
        if self.pool.release(page):
            return 0
        root = node.root
        if node.pins and root.dead is None:
            root.frozen -= 1
        else:
            self.count_idle(root, -1)
        self.freed += 1
        return 1

    def cut(self, root: Root, now: float) -> None:
        """Nobody finds anything below a root any more. O(1)."""
        account = root.account
        root.dead = now
        self.tree.cut(root)
        self.accounts.charge(account, -root.pages)
        account.idle -= root.idle
        account.pinned -= root.pinned
        self.pinned -= root.pinned
        self.idle += root.frozen  # nothing is pinned in here any more
        root.idle += root.frozen
        root.frozen = root.pinned = 0
        self.entries.live -= root.entries
        self.freed += 1

    # ---- pins and leases ---------------------------------------------------------------------------------------------

    def pin(self, node: Node) -> None:
        """One more hard pin ends here: the path to it cannot go."""
        root = node.root
        while node is not root:
            node.pins += 1
            if node.pins > 1:
                return
            root.pinned += 1
            root.account.pinned += 1
            self.pinned += 1
            if self.pool.holders(node.page) == 1:
                self.count_idle(root, -1)
                root.frozen += 1
                self.evictor.withdraw(node)
            node = node.parent

    def unpin(self, node: Node) -> None:
        root = node.root
        while node is not root:
            node.pins -= 1
            if node.pins:
                return
            root.pinned -= 1
            root.account.pinned -= 1
            self.pinned -= 1
            if self.pool.holders(node.page) == 1:
                root.frozen -= 1
                self.count_idle(root, 1)
                if not node.keys:
                    self.offer(node)
            node = node.parent

    def lose_leases(self, node: Node, cause: EvictionCause, now: float) -> float:
        """The leases on a page end. Until when it should have been kept."""
        if node.holds is None:
            return -inf
        for hold in node.holds:
            for entry in hold.entries.values():
                if entry.lease.pin == "hard":
                    self.unpin(node)
        losses = self.entries.lose_all(node, cause, now)
        account = node.root.account
        account.broken_leases += losses.leases
        account.broken_pauses += losses.pauses
        self.broken_leases += losses.leases
        self.broken_pauses += losses.pauses
        return losses.until

    # ---- what can go -------------------------------------------------------------------------------------------------

    def offer(self, node: Node) -> None:
        """An idle leaf can go, or what was known of one that can has changed."""
        node.claim = None if node.holds is None else claim_of(node)
        self.evictor.offer(node)

    def offer_again(self, node: Node) -> None:
        """What is known of a page has changed."""
        if node.seat:
            self.offer(node)

    def offer_if_leaf(self, node: Node) -> None:
        """What was below a page has gone."""
        if node.page >= 0 and not node.keys and not node.pins and self.pool.holders(node.page) == 1:
            self.offer(node)

    def count_idle(self, root: Root, pages: int) -> None:
        self.idle += pages
        root.idle += pages
        if root.dead is None:
            root.account.idle += pages

    def count_eviction(self, account: Account, cause: EvictionCause) -> None:
        self.evictions[cause] += 1
        account.evictions[cause] += 1

"""Pages for who needs them: free ones, or those of others that have to give way."""

from __future__ import annotations

from collections.abc import Callable

from .accounts import Account
from .blocks import OutOfPages
from .cached_pages import CachedPages
from .dead_roots import DeadRoots
from .eviction import Rank
from .lease import EvictionCause
from .node import Node


def _nobody(owner: str) -> bool:
    return False


class Room:
    """Takes what was flushed first, then leaf by leaf what `eviction` says among the pages that may go: never one that a
    sequence holds, a hard pin, or what a tenant is promised whatever others do.

    `on_evict(node, cause)` is called before a page is reused that went to make room (its cause is `pressure` or `quota`),
    while the node still stands where it stood. `evicted` counts those that went leaf by leaf.
    """

    def __init__(self, pages: CachedPages, dead: DeadRoots) -> None:
        self._pages = pages
        self._dead = dead
        self.on_evict: Callable[[Node, EvictionCause], None] | None = None
        self.evicted = 0

    def available_to(self, tenant: str) -> int:
        """An upper bound of the pages `allocate` can give to this tenant now."""
        pages, accounts = self._pages, self._pages.accounts
        free = pages.pool.free + pages.idle
        if accounts.floored:
            free -= accounts.spared_from(accounts.find(tenant))
        return free

    def allocate(self, count: int, tenant: str) -> list[int] | None:
        """`count` pages held by the caller, on behalf of a tenant; None if there are too few."""
        pool = self._pages.pool
        missing = count - pool.free
        if missing > 0 and (count > self.available_to(tenant) or self.make(missing, tenant) < missing):
            return None
        pages: list[int] = []
        try:
            for _ in range(count):
                pages.append(pool.allocate())  # noqa: PERF401 - those before a failure have to be given back
        except OutOfPages:
            self._pages.release(pages)
            return None
        return pages

    def make(self, count: int, tenant: str) -> int:
        """Free up to `count` pages for a tenant; how many it were. O(log tree) each, amortised."""
        done = self._dead.reclaim(count) if self._dead else 0
        asking = self._pages.accounts.find(tenant)
        now = self._pages.clock()
        while done < count:
            node = self._victim(asking)
            if node is None:
                break
            account = node.root.account
            cause: EvictionCause = "quota" if account.pages > account.quota else "pressure"
            self._evict(node, "expired" if node.expires <= now else cause, now)
            done += 1
        return done

    def trim(self, account: Account) -> None:
        """Take from a tenant what it has above its quota, as far as no promise is broken by that."""
        while account.pages > account.quota and account.idle:
            node = self._pages.evictor.next(account.tenant, below=Rank.LEASED)
            if node is None:
                break
            if node.root.dead is None:
                self._evict(node, "quota", self._pages.clock())

    def _victim(self, asking: Account | None) -> Node | None:
        """Who is above its quota pays, then everybody but those whom their floor spares."""
        accounts = self._pages.accounts
        if accounts.over:
            for payer in accounts.payers():
                node = self._next(payer.tenant)
                if node is not None:
                    return node
        if not accounts.floored:
            return self._next()
        spared = {
            account.tenant
            for account in accounts.floored
            if account is not asking and account.pages <= account.floor
        }
        return self._next(None, spared.__contains__)

    def _next(self, payer: str | None = None, spared: Callable[[str], bool] = _nobody) -> Node | None:
        while True:
            node = self._pages.evictor.next(payer, spared)
            if node is None or node.root.dead is None:
                return node

    def _evict(self, node: Node, cause: EvictionCause, now: float) -> None:
        """An idle leaf goes, to make room or because its time is over."""
        if self.on_evict is not None and cause != "expired":
            self.on_evict(node, cause)
        until = max(node.promised, self._pages.lose_leases(node, cause, now))
        if until > now:
            node.parent.promised = max(node.parent.promised, until)
        self.evicted += 1
        self._pages.take_out(node, cause, now, broken=until > now and cause != "expired")
        self._pages.offer_if_leaf(node.parent)

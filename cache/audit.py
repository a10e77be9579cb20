"""The cache counted anew, and held against what it counts. For tests and operators: linear in everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from .cached_pages import CachedPages
from .dead_roots import DeadRoots
from .node import Node


@dataclass(frozen=True, slots=True)
class Survey:
    """What stands in the tree. `pages` includes those flushed and not reused yet, `tokens` only what can be found."""

    pages: set[int]
    tokens: int
    namespaces: int


def survey(pages: CachedPages, dead: DeadRoots) -> Survey:
    nodes = list(pages.tree)
    tokens = sum(len(node.key) for node in nodes)
    return Survey({node.page for node in (*nodes, *dead)}, tokens, len(pages.tree.roots))


def check(pages: CachedPages, dead: DeadRoots, held: Iterable[int]) -> None:
    """Assert every invariant; `held` names each page once for each hold a sequence has on it."""
    pages.tree.check()
    holders = Counter(held)
    live, buried = list(pages.tree), list(dead)
    for node in live + buried:
        assert pages.node_of[node.page] is node, f"page {node.page} does not know its node"
        holders[node.page] += 1
    assert len(live) + len(buried) + pages.node_of.count(None) == pages.pool.total, (
        "a page outside the tree claims a node"
    )
    assert len(buried) == dead.pages, "the count of flushed pages is stale"
    pages.pool.check(holders)
    alone = [node for node in live if holders[node.page] == 1]
    idle = [node for node in alone if not node.pins]
    idle_dead = [node for node in buried if holders[node.page] == 1]
    assert len(idle) + len(idle_dead) == pages.idle, f"{pages.idle} pages counted idle, {len(idle)} are"
    stale = [node for node in pages.evictor if node.root.dead is not None]
    pages.evictor.check([*(node for node in idle if not node.keys), *stale])
    _check_roots(pages, live, buried, holders)
    _check_accounts(pages)
    _check_pins_and_leases(pages, live)


def _check_roots(pages: CachedPages, live: list[Node], dead: list[Node], holders: Counter[int]) -> None:
    for root in [*pages.tree.roots.values(), *{node.root for node in dead}]:
        nodes = [node for node in live + dead if node.root is root]
        alone = [node for node in nodes if holders[node.page] == 1]
        frozen = [node for node in alone if node.pins and root.dead is None]
        assert root.frozen == len(frozen), "a root's count of pinned pages that nobody holds is stale"
        assert root.idle == len(alone) - len(frozen), "a root's count of idle pages is stale"
        assert root.pages == len(nodes), "a root's count of pages is stale"
        if root.dead is None:
            assert root.pinned == sum(node.pins > 0 for node in nodes), "a root's count of pins is stale"
            entries = sum(len(hold.entries) for node in nodes for hold in node.holds or ())
            assert root.entries == entries, "a root's count of entries is stale"
            assert all(node.owner == root.account.tenant for node in nodes), "a page of somebody else's"


def _check_accounts(pages: CachedPages) -> None:
    accounts = pages.accounts
    for account in accounts:
        roots = list(pages.tree.roots_of(account))
        assert account.pages == sum(root.pages for root in roots), "an account's pages are stale"
        assert account.idle == sum(root.idle for root in roots), "an account's idle pages are stale"
        assert account.pinned == sum(root.pinned for root in roots), "an account's pins are stale"
        assert (account in accounts.over) == (account.pages > account.quota)
        assert account.pinned + account.reserved <= account.pins, "more is pinned than may be"
    assert pages.pinned == sum(account.pinned for account in accounts), "the count of pins is stale"
    broken = sum(account.broken_leases for account in accounts)
    assert pages.broken_leases == broken, "the count of broken leases is stale"


def _check_pins_and_leases(pages: CachedPages, live: list[Node]) -> None:
    standing = 0
    for node in live:
        own = 0
        for hold in node.holds or ():
            assert hold.node is node, "a hold on another page"
            assert hold.entries or hold.pause is not None, "an empty hold"
            assert node.start < hold.tokens <= node.start + len(node.key), "a lease beyond its page"
            own += sum(entry.lease.pin == "hard" for entry in hold.entries.values())
            standing += len(hold.entries)
            for name, entry in hold.entries.items():
                assert pages.entries.find(name) is entry, "a lease that nobody can ask for"
                assert entry.hold is hold
                assert entry.node is node
        assert node.holds != [], "no holds are None"
        assert node.pins == own + sum(child.pins > 0 for child in node.nodes), "a stale count of pins"
        if node.max_age is None:
            assert node.expires == inf
    assert standing == pages.entries.live, "the count of live entries is stale"

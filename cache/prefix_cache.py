"""What the scheduler sees of the cache: find a prefix, take pages, publish them, give them back.

Pages that only the tree holds and that nothing pins hard are *idle*: they are what eviction can take. It goes leaf by leaf, in
the order that `eviction` decides among those that may go: never a page that a sequence holds, a hard pin, or what a
tenant is promised whatever others do. What was flushed goes first, and nobody finds it from the moment it is flushed.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from . import entries as leases
from .accounts import Account, Accounts, Limits
from .blocks import OutOfPages, PagePool
from .entries import Entries, Entry, EntryView
from .eviction import Evictor, Rank
from .flushing import Flushed, fits_root, fits_writer, sum_nodes, sum_roots, takes_whole_roots, what_goes
from .lease import CachePolicy, EntrySpec, EvictionCause, FlushScope, Lease, Tier
from .radix import SHARED, Key, Node, RadixTree, Root, below
from .tiers.page import page_chain
from .tombstones import Gone, Tombstones

AT_ONCE = 64
"""So many flushed pages are reclaimed with the flush, at a microsecond or two each; the rest when room is needed."""

_DEPTH: dict[Tier, int] = {"device": 0, "host": 1, "disk": 2}


@dataclass(slots=True, eq=False, weakref_slot=True)
class Cursor:
    """Where below its root a sequence has published to: `depth` whole pages, the last of them at `node`; and all that the
    cache has to know of its request.

    Without a `root_key` the sequence neither reads nor feeds the tree. `tenant`, `namespace` and `adapter` are the request's,
    for its owner's account and for flushes. Only a cursor that `counts` is a use of what it finds: of several choices of
    one request, the first. `limit` is how many tokens may be published; 0 once what it stands on was flushed.
    """

    root_key: bytes | None
    node: Node | None = None
    depth: int = 0
    tenant: str = field(default="", kw_only=True)
    namespace: bytes = field(default=b"", kw_only=True)
    adapter: bytes = field(default=b"", kw_only=True)
    policy: CachePolicy = field(default_factory=CachePolicy, kw_only=True)
    counts: bool = field(default=True, kw_only=True)
    limit: int = field(default=0, init=False)
    counted: int = field(default=0, init=False)  # pages that it found or wrote before
    streak: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        policy = self.policy
        if self.root_key is not None and policy.write:
            self.limit = sys.maxsize if policy.write_tokens is None else policy.write_tokens

    def reset(self) -> None:
        self.node = None
        self.depth = 0


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


@dataclass(frozen=True, slots=True)
class Found:
    """What `match` would find: `tokens` of a prompt, `whole` of them in whole pages the last of which is named `chain`."""

    tokens: int
    whole: int
    chain: bytes
    gone: Gone | None


@dataclass(frozen=True, slots=True)
class Survey:
    """What stands in the tree. `pages` includes those flushed and not reused yet, `tokens` only what can be found."""

    pages: set[int]
    tokens: int
    namespaces: int


def _nobody(owner: str) -> bool:
    return False


def _live_longer(node: Node, max_age: float | None, now: float) -> None:
    """A page that can expire was used, by somebody whose own pages live for `max_age`: it lives as long as the longest."""
    assert node.max_age is not None
    if max_age is None:
        node.max_age, node.expires = None, inf
    else:
        node.max_age = max(node.max_age, max_age)
        node.expires = now + node.max_age


class _Path(NamedTuple):
    """A walk as far as its pages have not expired. `expired` would have been the next."""

    nodes: list[Node]
    tail: Node | None
    shared: int
    expired: Node | None


class PrefixCache:
    """A page pool and the tree over it. With `enabled=False` nothing is ever found or kept, pages still flow.

    `max_length` is that of the longest sequence, in tokens: pins and floors leave room for it, and limits that could not are
    refused with ValueError. `on_evict(node, cause)` is called before a page is reused that went to make room (its cause is
    `pressure` or `quota`), while the node still stands where it stood. `clock` gives seconds, monotonic.

    `idle` counts the pages that eviction can take at last, an upper bound of what it can free at once: a page below which a
    sequence holds another one has to wait for that. `freed` and `published` are counts that only grow: whether they
    moved tells if asking again is worth it. `written_tokens` counts those that nobody had published before; of what a call
    publishes they are the last. `pinned` pages are pinned hard; `broken_leases` and `broken_pauses` are promises that were
    not kept.
    """

    def __init__(
        self,
        pages: int,
        page_size: int,
        *,
        clock: Callable[[], float],
        enabled: bool = True,
        limits: Limits | None = None,
        evictor: Evictor | None = None,
        max_length: int = 0,
        page_bytes: int = 0,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"a page holds at least one token, not {page_size}")
        self.pool = PagePool(pages)
        self.page_size = page_size
        self.page_bytes = page_bytes
        self.enabled = enabled
        self.accounts = Accounts(limits or Limits(), pages, -(-max_length // page_size))
        self.entries = Entries()
        self.tombstones = Tombstones()
        self.on_evict: Callable[[Node, EvictionCause], None] | None = None
        self.idle = 0
        self.freed = 0
        self.published = 0
        self.written_tokens = 0
        self.pinned = 0
        self.broken_leases = 0
        self.broken_pauses = 0
        self.evicted = 0
        self.evictions: Counter[EvictionCause] = Counter()
        self._clock = clock
        self._evictor = Evictor(clock) if evictor is None else evictor
        self._tree = RadixTree(page_size)
        self._node_of: list[Node | None] = [None] * pages
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()  # that may publish, or have published
        self._dead: list[Node] = []  # flushed and not reused: roots, and nodes whose children come first
        self._dead_pages = 0
        self._dead_roots: dict[bytes, Root] = {}  # the one flushed last of each key

    # ---- looking -----------------------------------------------------------------------------------------------------

    @property
    def tree_pages(self) -> int:
        """Pages that the tree holds, those flushed and not reused yet included."""
        return self._tree.nodes + self._dead_pages

    @property
    def available(self) -> int:
        """An upper bound of the pages `allocate` can give to a tenant without a floor."""
        return self.available_to("")

    def available_to(self, tenant: str) -> int:
        """An upper bound of the pages `allocate` can give to this tenant now."""
        free = self.pool.free + self.idle
        if self.accounts.floored:
            free -= self.accounts.spared_from(self.accounts.find(tenant))
        return free

    def survey(self) -> Survey:
        """The tree counted anew, linear in it."""
        nodes = list(self._tree)
        tokens = sum(len(node.key) for node in nodes)
        pages = {node.page for node in nodes} | {node.page for node in self._dead_nodes()}
        return Survey(pages, tokens, len(self._tree.roots))

    def now(self) -> float:
        """Seconds, by the clock that leases are measured with."""
        return self._clock()

    def nodes(self) -> Iterable[Node]:
        """Every page that can be found, parents before children."""
        return iter(self._tree)

    def peek(self, root_key: bytes | None, tokens: Sequence[int]) -> int:
        """How many tokens `match` would find. Changes nothing."""
        if root_key is None or not self.enabled:
            return 0
        path = self._walk(root_key, tokens, self._clock())
        return len(path.nodes) * self.page_size + path.shared

    def look_up(self, root_key: bytes | None, tokens: Sequence[int]) -> Found:
        """The same, and what comes after it. Changes nothing."""
        if root_key is None or not self.enabled:
            return Found(0, 0, root_key or b"", None)
        now = self._clock()
        path = self._walk(root_key, tokens, now)
        whole = len(path.nodes) * self.page_size
        chain = path.nodes[-1].chain if path.nodes else root_key
        return Found(whole + path.shared, whole, chain, self._gone(root_key, path, tokens, now))

    def begin(self, cursor: Cursor) -> Match:
        """A sequence that reads nothing starts: what is flushed from now on it does not publish."""
        cursor.reset()
        cursor.streak = 0
        if cursor.root_key is not None and self.enabled:
            self._cursors.add(cursor)
        return Match([], None, 0, None, cursor.root_key or b"")

    def match(self, cursor: Cursor, tokens: Sequence[int]) -> Match:
        """Find and pin the longest known prefix of all but the last token, and set the cursor to the end of it.

        The last token is left out so that there is always a position to compute, and with it something to sample from.
        What is found was used now, and so were the leases on it; but a cursor uses a page once, however often it asks.
        """
        nothing = self.begin(cursor)
        root_key = cursor.root_key
        if root_key is None or not self.enabled or not cursor.policy.read:
            return nothing
        now = self._clock()
        found = self._walk(root_key, tokens, now)
        gone = self._gone(root_key, found, tokens, now)
        if found.expired is not None:
            self._remove_below(found.expired, "expired", now)
        nodes, tail, shared, _ = found
        whole_tail = tail is not None and self._all_of(tail, shared, tokens)
        used = [*nodes, tail] if tail is not None and whole_tail else nodes
        if cursor.counts and len(used) > cursor.counted:
            cursor.streak = self._evictor.resumed(used[-1])
        pages = self._pin(cursor, used, now)
        cursor.counted = max(cursor.counted, len(used))
        if tail is not None and used is nodes:
            pages.append(self._pin_part(tail, shared, now))
        if nodes:
            cursor.node = nodes[-1]
            cursor.depth = len(nodes)
        chain = nodes[-1].chain if nodes else root_key
        if tail is None:
            return Match(pages, None, 0, gone, chain)
        return Match(pages[:-1], tail.page, shared, gone, chain)

    def _all_of(self, tail: Node, shared: int, tokens: Sequence[int]) -> bool:
        """Whether a page whose first tokens are found is used as a whole, the last of a prompt not being looked for."""
        missing = len(tail.key) - shared
        return not missing or (
            missing == 1 and tail.start + shared == len(tokens) - 1 and tail.key[shared] == tokens[-1]
        )

    def _walk(self, root_key: bytes, tokens: Sequence[int], now: float) -> _Path:
        nodes, tail, shared = self._tree.walk(root_key, tokens, len(tokens) - 1)
        for at, node in enumerate(nodes):
            if node.expires <= now and self.pool.holders(node.page) == 1:
                return _Path(nodes[:at], None, 0, node)
        if tail is not None and tail.expires <= now and self.pool.holders(tail.page) == 1:
            return _Path(nodes, None, 0, tail)
        return _Path(nodes, tail, shared, None)

    def _pin(self, cursor: Cursor, path: list[Node], now: float) -> list[int]:
        """Hold all pages of a path, of which every token was used now."""
        retain = self.pool.retain
        group, max_age, lowest = cursor.policy.group, cursor.policy.max_age, cursor.policy.lowest
        counted = cursor.counted if cursor.counts else len(path)
        pages: list[int] = []
        woken = frozen = 0
        for at, node in enumerate(path):
            pages.append(node.page)
            if retain(node.page) == 2:
                if node.pins:
                    frozen += 1
                else:
                    woken += 1
            node.used = now
            if at >= counted:
                node.hits += 1
            if node.group is not group and node.group != group:
                node.group = SHARED
            if node.max_age is not None:
                _live_longer(node, max_age, now)
            if node.lowest is not lowest and _DEPTH[lowest] > _DEPTH[node.lowest]:
                node.lowest = lowest
            if node.holds is not None:
                leases.renew(node, node.start + len(node.key), now, counts=at >= counted)
        if path:
            path[0].root.frozen -= frozen
            self._count_idle(path[0].root, -woken)
            self._evictor.withdraw(path[-1])
        return pages

    def _pin_part(self, tail: Node, shared: int, now: float) -> int:
        """Hold a page of which only the beginning is used: that is no use of what others wrote behind it."""
        if self.pool.retain(tail.page) == 2:
            if tail.pins:
                tail.root.frozen -= 1
            else:
                self._count_idle(tail.root, -1)
            self._evictor.withdraw(tail)
        tail.used = now
        if tail.max_age is not None:
            tail.expires = now + tail.max_age
        if tail.holds is not None:
            leases.renew(tail, tail.start + shared, now, counts=True)
        return tail.page

    def _gone(self, root_key: bytes, path: _Path, tokens: Sequence[int], now: float) -> Gone | None:
        """What became of the whole page after a path, if it was there once."""
        if path.expired is not None:
            return Gone("expired", now - path.expired.expires, False)
        start = len(path.nodes) * self.page_size
        key = tuple(tokens[start : start + self.page_size])
        if len(key) < self.page_size or not (len(self.tombstones) or self._dead_roots):
            return None
        chain = path.nodes[-1].chain if path.nodes else root_key
        gone = self.tombstones.find(page_chain(chain, key), now)
        dead = self._dead_roots.get(root_key)
        if dead is not None and dead.dead is not None and (gone is None or now - dead.dead < gone.age):
            walk = self._tree.walk_below(dead, tokens, 0, start + self.page_size)
            if len(walk.nodes) > len(path.nodes):
                return Gone("flushed", now - dead.dead, False)
        return gone

    def share(self, pages: Iterable[int]) -> None:
        """One more holder of pages that a sequence holds."""
        for page in pages:
            self.pool.retain(page)

    # ---- pages -------------------------------------------------------------------------------------------------------

    def allocate(self, count: int, tenant: str = "") -> list[int] | None:
        """`count` pages held by the caller, on behalf of a tenant, evicting idle ones if too few are free; None if that is
        not enough."""
        missing = count - self.pool.free
        if missing > 0 and (count > self.available_to(tenant) or self._make_room(missing, tenant) < missing):
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
        self.freed += 1
        now = self._clock()
        release, node_of = self.pool.release, self._node_of
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
                    self._count_idle(root, idle)
                root, idle = node.root, 0
            node.used = now
            if node.max_age is not None:
                node.expires = now + node.max_age
            if node.pins and root.dead is None:
                root.frozen += 1
                continue
            idle += 1
            if not node.keys and root.dead is None:
                self._offer(node)
        if root is not None:
            self._count_idle(root, idle)

    def publish(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int) -> None:
        """Make every whole page of `tokens[:computed]` findable that may be. `pages` is the sequence's page table."""
        full = min(computed, cursor.limit) // self.page_size
        if full > cursor.depth and self.enabled:
            self._trim(self._publish_pages(cursor, tokens, pages, full).root.account)

    def publish_tail(
        self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int
    ) -> Node | None:
        """The same for a sequence that has ended: the partially filled last page becomes findable too.

        Returns the end of all that the sequence leaves in the tree, None if that is nothing.
        """
        if not cursor.limit or not self.enabled:
            return None
        computed = min(computed, cursor.limit)
        full = computed // self.page_size
        if full > cursor.depth:
            self._publish_pages(cursor, tokens, pages, full)
        key = tuple(tokens[full * self.page_size : computed])
        tip = cursor.node
        if key and full == cursor.depth:
            parent = self._parent(cursor, tokens, pages)
            tip = self._insert(cursor, parent, key, pages[full], self._clock())
        if tip is not None:
            self._trim(tip.root.account)
        return tip

    def unpublished(self, cursor: Cursor, tokens: Sequence[int], count: int) -> int:
        """How many of the first `count` tokens, their whole pages being published, are new in the cache once the rest is."""
        start = cursor.depth * self.page_size
        end = min(count, cursor.limit)
        if end <= start or not self.enabled or cursor.root_key is None:
            return 0
        above = cursor.node or self._tree.roots.get(cursor.root_key)
        return end - start - (0 if above is None else self._tree.walk_below(above, tokens, start, end).shared)

    def _publish_pages(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], full: int) -> Node:
        """The last of them. Their tenant may be above its quota now; but nothing is taken before all of them stand."""
        size = self.page_size
        now = self._clock()
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
        root = self._tree.roots.get(cursor.root_key)
        if root is None:
            self._cursors.add(cursor)
            account = self.accounts.of(cursor.tenant)
            root = self._tree.root(
                cursor.root_key, account, namespace=cursor.namespace, adapter=cursor.adapter
            )
            account.roots[cursor.root_key] = root
        return root

    def _insert(self, cursor: Cursor, parent: Node, key: Key, page: int, now: float) -> Node:
        before = self._tree.tokens
        node, displaced = self._tree.insert(parent, key, page)
        self.written_tokens += self._tree.tokens - before
        if node.page != page or self._node_of[page] is node:  # known by a page of its own, or by this one
            self._write_again(cursor, node, len(key), now)
            return node
        assert self._node_of[page] is None, f"page {page} would stand in the tree twice"
        self._node_of[page] = node
        self.pool.retain(page)
        self.published += 1
        if len(key) == self.page_size:
            self.tombstones.forget(node.chain)
        self._write(cursor, node, now)
        if displaced is None:
            node.created = now
            node.owner = node.root.account.tenant
            self.accounts.charge(node.root.account, 1)
        else:
            leases.renew(node, node.start + len(key), now, counts=False)
            self._evictor.withdraw(node)
            self._let_go(node, displaced)
            self._count_eviction(node.root.account, "replaced")
        if parent.seat:
            self._evictor.withdraw(parent)
        return node

    def _write(self, cursor: Cursor, node: Node, now: float) -> None:
        """All tokens of a page are this cursor's: those that a tail had before, too."""
        policy = cursor.policy
        node.used = now
        node.streak = cursor.streak
        node.group = policy.group
        node.lowest = policy.lowest
        node.max_age = policy.max_age
        node.expires = inf if policy.max_age is None else now + policy.max_age

    def _write_again(self, cursor: Cursor, node: Node, length: int, now: float) -> None:
        """The first `length` tokens of a page were computed once more."""
        policy = cursor.policy
        if node.expires <= now:
            self._lose_holds(node, "expired", now)
        node.used = now
        if length < len(node.key):
            if node.max_age is not None:
                node.expires = now + node.max_age
        else:
            if node.group != policy.group:
                node.group = SHARED
            if node.max_age is not None:
                _live_longer(node, policy.max_age, now)
            if _DEPTH[policy.lowest] > _DEPTH[node.lowest]:
                node.lowest = policy.lowest
        if node.holds is not None:
            leases.renew(node, node.start + length, now, counts=False)
        if node.seat:
            self._offer(node)

    # ---- eviction ----------------------------------------------------------------------------------------------------

    def evict(self, count: int) -> int:
        """Take up to `count` idle pages as if room were needed for somebody without a floor. How many it were."""
        return self._make_room(count, "")

    def reclaim(self, count: int | None = None) -> int:
        """Make pages that were flushed free again, up to `count` of them; that is done when room is needed, anyway."""
        now = self._clock()
        done = 0
        while self._dead and (count is None or done < count):
            node = self._dead[-1]
            if node.nodes:
                self._dead.append(node.nodes[-1])
                continue
            self._dead.pop()
            root = node.root
            if node is root:
                if self._dead_roots.get(root.root_key) is root:
                    del self._dead_roots[root.root_key]
                continue
            done += self._bury(node, now)
        return done

    def _bury(self, node: Node, now: float) -> int:
        """The page of a flushed node goes. 1 if it is free now."""
        root = node.root
        assert root.dead is not None
        node.parent.nodes.pop()
        node.parent.keys.pop()
        root.pages -= 1
        root.tokens -= len(node.key)
        self._dead_pages -= 1
        self.entries.lose_all(node, "flushed", now)
        if len(node.key) == self.page_size:
            self.tombstones.add(node.chain, "flushed", root.dead)
        self._evictor.withdraw(node)
        self._count_eviction(root.account, "flushed")
        page = node.page
        node.page = -1
        return self._let_go(node, page)

    def _make_room(self, count: int, tenant: str) -> int:
        """Free up to `count` pages; how many it were. O(log tree) each, amortised."""
        done = self.reclaim(count) if self._dead else 0
        asking = self.accounts.find(tenant)
        now = self._clock()
        while done < count:
            node = self._victim(asking)
            if node is None:
                break
            account = node.root.account
            cause: EvictionCause = "quota" if account.pages > account.quota else "pressure"
            self._evict(node, "expired" if node.expires <= now else cause, now)
            done += 1
        return done

    def _victim(self, asking: Account | None) -> Node | None:
        """Who is above its quota pays, then everybody but those whom their floor spares."""
        accounts = self.accounts
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
            node = self._evictor.next(payer, spared)
            if node is None or node.root.dead is None:
                return node

    def _trim(self, account: Account) -> None:
        """Take from a tenant what it has above its quota, as far as no promise is broken by that."""
        while account.pages > account.quota and account.idle:
            node = self._evictor.next(account.tenant, below=Rank.LEASED)
            if node is None:
                break
            if node.root.dead is None:
                self._evict(node, "quota", self._clock())

    def _evict(self, node: Node, cause: EvictionCause, now: float) -> None:
        """An idle leaf goes, to make room or because its time is over."""
        if self.on_evict is not None and cause != "expired":
            self.on_evict(node, cause)
        until = max(node.promised, self._lose_holds(node, cause, now))
        if until > now:
            node.parent.promised = max(node.parent.promised, until)
        self.evicted += 1
        self._remove(node, cause, now, broken=until > now and cause != "expired")
        self._offer_if_leaf(node.parent)

    def _lose_holds(self, node: Node, cause: EvictionCause, now: float) -> float:
        """The leases on a page end. Until when it should have been kept."""
        if node.holds is None:
            return -inf
        for hold in node.holds:
            for entry in hold.entries.values():
                if entry.lease.pin == "hard":
                    self._unpin(node)
        losses = self.entries.lose_all(node, cause, now)
        account = node.root.account
        account.broken_leases += losses.leases
        account.broken_pauses += losses.pauses
        self.broken_leases += losses.leases
        self.broken_pauses += losses.pauses
        return losses.until

    def _remove(self, node: Node, cause: EvictionCause, now: float, *, broken: bool = False) -> int:
        """Take a leaf out of the tree. 1 if its page is free now."""
        page = node.page
        root = node.root
        if len(node.key) == self.page_size:
            self.tombstones.add(node.chain, cause, now, broken=broken)
        self._evictor.withdraw(node)
        self._tree.remove(node)
        self.accounts.charge(root.account, -1)
        self._count_eviction(root.account, cause)
        if not root.keys:
            del root.account.roots[root.root_key]
        return self._let_go(node, page)

    def _remove_below(self, top: Node, cause: EvictionCause, now: float) -> None:
        """Take a node and all below it out of the tree; pages that sequences hold are free once they are released."""
        for node in reversed([top, *below(top)]):
            self._lose_holds(node, cause, now)
            self._remove(node, cause, now)
        self._offer_if_leaf(top.parent)

    def _let_go(self, node: Node, page: int) -> int:
        """The tree gives a page up that it held for a node. 1 if it is free now."""
        self._node_of[page] = None
        if self.pool.release(page):
            return 0
        root = node.root
        if node.pins and root.dead is None:
            root.frozen -= 1
        else:
            self._count_idle(root, -1)
        self.freed += 1
        return 1

    def _count_idle(self, root: Root, pages: int) -> None:
        self.idle += pages
        root.idle += pages
        if root.dead is None:
            root.account.idle += pages

    def _count_eviction(self, account: Account, cause: EvictionCause) -> None:
        self.evictions[cause] += 1
        account.evictions[cause] += 1

    def _offer(self, node: Node) -> None:
        node.claim = None if node.holds is None else leases.claim_of(node)
        self._evictor.offer(node)

    def _offer_if_leaf(self, node: Node) -> None:
        if node.page >= 0 and not node.keys and not node.pins and self.pool.holders(node.page) == 1:
            self._offer(node)

    def _dead_nodes(self) -> Iterable[Node]:
        for root in {node.root for node in self._dead}:
            yield from below(root)

    # ---- leases ------------------------------------------------------------------------------------------------------

    def put_entry(self, cursor: Cursor, spec: EntrySpec, tokens: Sequence[int]) -> bool:
        """Lease the first `spec.tokens` of `tokens`, as soon as all of them stand in the tree: False, and nothing happens,
        before that. An entry of this id is renewed. Raises PinsExhausted.
        """
        if not cursor.limit or not self.enabled or spec.tokens < 1:
            return False
        node = self._node_at(cursor, tokens, spec.tokens)
        if node is None:
            return False
        account = node.root.account
        known = self.entries.find(spec.entry_id)
        if known is not None and known.account is not account:
            return False  # ids are the server's own; whoever guesses another's gets nothing
        if spec.lease.pin == "hard":
            self._check_pins(node, account)
        hits = 0
        if known is not None:
            self._end_entry(known)
            hits = known.hits
        self._start_entry(spec.entry_id, node, spec.tokens, spec.lease, hits=hits)
        return True

    def patch_entry(self, entry_id: str, lease: Lease) -> EntryView | None:
        """Give an entry a new lease, from now on. Raises PinsExhausted. One that has lost its pages stays as it is."""
        entry = self.entries.find(entry_id)
        if entry is None:
            return None
        if self._is_live(entry):
            if lease.pin == "hard":
                self._check_pins(entry.node, entry.account)
            self._end_entry(entry)
            self._start_entry(entry_id, entry.node, entry.tokens, lease, hits=entry.hits)
        return self.entry(entry_id)

    def drop_entry(self, entry_id: str) -> EntryView | None:
        """Forget an entry: its pages are like any others. How it was."""
        view = self.entry(entry_id)
        if view is not None:
            entry = self.entries.find(entry_id)
            assert entry is not None
            self._end_entry(entry)
        return view

    def path_of(self, entry_id: str) -> list[Node]:
        """The pages of an entry from its root on, in the tree or gone; none if nothing is known of it."""
        entry = self.entries.find(entry_id)
        path: list[Node] = []
        node = None if entry is None else entry.node
        while node is not None and node is not node.root:
            path.append(node)
            node = node.parent
        return path[::-1]

    def take_down(self, entry_id: str, kept: Callable[[Node], bool]) -> int:
        """Take the pages of an entry out of the tree, from its end up to what somebody else needs. Each that is `kept`
        elsewhere goes; at the first that is not, no more do. How many went. The entry ends with the first of them."""
        entry = self.entries.find(entry_id)
        if entry is None or not self._is_live(entry):
            return 0
        now = self._clock()
        node = entry.node
        done = 0
        while node is not node.root and self._is_only_for(node, entry) and kept(node):
            self._lose_holds(node, "expired", now)
            parent = node.parent
            self._remove(node, "expired", now)
            node = parent
            done += 1
        self._offer_if_leaf(node)
        return done

    def _is_only_for(self, node: Node, entry: Entry) -> bool:
        """Nobody needs a page but this entry, if that."""
        leased = [other for hold in node.holds or () for other in hold.entries.values()]
        own = entry.hold is not None and node is entry.node and entry.lease.pin == "hard"
        return (
            not node.keys
            and self.pool.holders(node.page) == 1
            and all(other is entry for other in leased)
            and all(hold.pause is None for hold in node.holds or ())
            and node.pins == int(own)
        )

    def lease_tip(self, node: Node, lease: Lease) -> bool:
        """Let a conversation that ended at `node`, as `publish_tail` returned it, wait for its tools. False: that is gone."""
        if node.page < 0 or node.root.dead is not None:
            return False
        leases.pause(node, lease, self._clock())
        if node.seat:
            self._offer(node)
        return True

    def reserve_pins(self, tenant: str, tokens: int) -> int:
        """Make sure that a path of so many tokens can be pinned later. The pages reserved, to be given back with
        `release_pins` right before it is. Raises PinsExhausted."""
        pages = -(-tokens // self.page_size)
        self.accounts.reserve(self.accounts.of(tenant), pages)
        return pages

    def pinned_of(self, root_key: bytes, prompt: Sequence[int], count: int) -> int:
        """How many of the first `count` tokens of a prompt stand on pages that are pinned hard already."""
        nodes, tail, shared = self._tree.walk(root_key, prompt, len(prompt))
        pinned = sum(node.pins > 0 for node in nodes) * self.page_size
        if tail is not None and tail.pins and pinned + shared == len(prompt):
            pinned += shared  # with a token more it could be another page
        return min(pinned, count)

    def release_pins(self, tenant: str, pages: int) -> None:
        self.accounts.unreserve(self.accounts.of(tenant), pages)

    def entry(self, entry_id: str) -> EntryView | None:
        entry = self.entries.find(entry_id)
        return None if entry is None else self._view(entry)

    def all_entries(self, tenant: str | None = None) -> list[EntryView]:
        return [self._view(entry) for entry in self.entries if tenant in (None, entry.account.tenant)]

    def _is_live(self, entry: Entry) -> bool:
        return entry.hold is not None and entry.node.root.dead is None

    def _start_entry(self, entry_id: str, node: Node, tokens: int, lease: Lease, *, hits: int = 0) -> None:
        weakest = self.entries.put(entry_id, node, tokens, lease, self._clock(), hits=hits)
        if weakest is not None and weakest.lease.pin == "hard":
            self._unpin(node)
        if lease.pin == "hard":
            self._pin_hard(node)
        if node.seat:
            self._offer(node)

    def _end_entry(self, entry: Entry) -> None:
        if entry.hold is None:
            self.entries.forget(entry)
            return
        live = self._is_live(entry)
        self.entries.lose(entry, None)
        node = entry.node
        if live and entry.lease.pin == "hard":
            self._unpin(node)
        if node.seat:
            self._offer(node)

    def _node_at(self, cursor: Cursor, tokens: Sequence[int], count: int) -> Node | None:
        """The page that holds the last of the first `count` tokens."""
        index = (count - 1) // self.page_size
        node = cursor.node
        if node is not None and node.page >= 0 and index < cursor.depth:
            for _ in range(cursor.depth - 1 - index):
                node = node.parent
            return node
        assert cursor.root_key is not None
        walk = self._tree.walk(cursor.root_key, tokens, count)
        if index < len(walk.nodes):
            return walk.nodes[index]
        found = len(walk.nodes) * self.page_size + walk.shared
        return walk.tail if found >= count else None

    def _check_pins(self, node: Node, account: Account) -> None:
        need = 0
        while node is not node.root and not node.pins:
            need += 1
            node = node.parent
        self.accounts.check_room(account, need)

    def _pin_hard(self, node: Node) -> None:
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
                self._count_idle(root, -1)
                root.frozen += 1
                self._evictor.withdraw(node)
            node = node.parent

    def _unpin(self, node: Node) -> None:
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
                self._count_idle(root, 1)
                if not node.keys:
                    self._offer(node)
            node = node.parent

    def _view(self, entry: Entry) -> EntryView:
        """An entry as it is. Linear in its path."""
        now = self._clock()
        hold = entry.hold
        flushed = hold is not None and entry.node.root.dead is not None
        path = [entry.node]
        while path[-1].parent is not path[-1].root:
            path.append(path[-1].parent)
        path.reverse()
        if hold is not None and not flushed:
            device = entry.tokens
        else:
            tokens = [token for node in path for token in node.key][: entry.tokens]
            walk = self._tree.walk(entry.node.root.root_key, tokens, len(tokens))
            device = len(walk.nodes) * self.page_size + walk.shared
        lease = entry.lease
        used = entry.used if hold is None else hold.used
        expires_in = used + lease.ttl - now if lease.pin == "none" else None
        cause: EvictionCause | None = "flushed" if flushed else entry.cause
        if cause == "flushed":
            status: leases.Status = "flushed"
        elif entry.broken:
            status = "broken"
        else:
            status = "lapsed" if cause is not None or (expires_in is not None and expires_in <= 0) else "held"
        return EntryView(
            entry_id=entry.entry_id,
            tenant=entry.account.tenant,
            tokens=entry.tokens,
            device=device,
            chains=tuple(node.chain for node in path if len(node.key) == self.page_size),
            lease=lease,
            status=status,
            expires_in=expires_in,
            hits=entry.hits + (0 if hold is None else hold.hits - entry.before),
            idle=max(0.0, now - used),
            cause=cause,
        )

    # ---- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, scope: FlushScope | None = None, *, dry_run: bool = False) -> Flushed:
        """Let nobody find again what fits a scope, by default everything, not even what running sequences of it have still
        to publish. Whole roots go in O(1) each, and most of their pages are reclaimed when room is needed."""
        scope = scope or FlushScope()
        roots = self._roots_of(scope)
        if takes_whole_roots(scope):
            report = sum_roots(roots)
            if not dry_run:
                for root in roots:
                    self._cut(root)
                self._stop_writers(scope, set())
                self.reclaim(AT_ONCE)
            return report
        now = self._clock()
        going = what_goes(scope, roots, now, self.pool.holders)
        report = sum_nodes(going, self.pool.holders)
        if not dry_run:
            for node in going.nodes:
                self._lose_holds(node, "flushed", now)
                self._remove(node, "flushed", now)
            for parent in dict.fromkeys(node.parent for node in going.nodes):
                self._offer_if_leaf(parent)
            self._stop_writers(scope, set(going.nodes))
        return report

    def _roots_of(self, scope: FlushScope) -> list[Root]:
        if scope.tenant is None:
            roots = self._tree.roots
        else:
            account = self.accounts.find(scope.tenant)
            roots = {} if account is None else account.roots
        return [
            root
            for root in roots.values()
            if fits_root(scope, tenant=root.account.tenant, namespace=root.namespace, adapter=root.adapter)
        ]

    def _cut(self, root: Root) -> None:
        """Nobody finds anything below a root any more. O(1)."""
        account = root.account
        root.dead = self._clock()
        self._tree.cut(root)
        del account.roots[root.root_key]
        self.accounts.charge(account, -root.pages)
        account.idle -= root.idle
        account.pinned -= root.pinned
        self.pinned -= root.pinned
        self.idle += root.frozen  # nothing is pinned in here any more
        root.idle += root.frozen
        root.frozen = root.pinned = 0
        self.entries.live -= root.entries
        self._dead_pages += root.pages
        self._dead.append(root)
        self._dead_roots[root.root_key] = root
        self.freed += 1

    def _stop_writers(self, scope: FlushScope, removed: set[Node]) -> None:
        """What runs in a flushed scope, or stands on what was flushed, publishes nothing more."""
        for cursor in self._cursors:
            fits = fits_root(
                scope, tenant=cursor.tenant, namespace=cursor.namespace, adapter=cursor.adapter
            ) and fits_writer(scope, cursor.policy)
            if fits or cursor.node in removed:
                cursor.limit = 0

    # ---- truth -------------------------------------------------------------------------------------------------------

    def check(self, held: Iterable[int]) -> None:
        """Assert every invariant; `held` names each page once for each hold a sequence has on it."""
        self._tree.check()
        holders = Counter(held)
        live = list(self._tree)
        dead = list(self._dead_nodes())
        for node in live + dead:
            assert self._node_of[node.page] is node, f"page {node.page} does not know its node"
            holders[node.page] += 1
        assert len(live) + len(dead) + self._node_of.count(None) == self.pool.total, (
            "a page outside the tree claims a node"
        )
        assert len(dead) == self._dead_pages, "the count of flushed pages is stale"
        self.pool.check(holders)
        alone = [node for node in live if holders[node.page] == 1]
        idle = [node for node in alone if not node.pins]
        buried = [node for node in dead if holders[node.page] == 1]
        assert len(idle) + len(buried) == self.idle, f"{self.idle} pages counted idle, {len(idle)} are"
        stale = [node for node in self._evictor if node.root.dead is not None]
        self._evictor.check([*(node for node in idle if not node.keys), *stale])
        self._check_roots(live, dead, holders)
        self._check_accounts()
        self._check_pins_and_leases(live)

    def _check_roots(self, live: list[Node], dead: list[Node], holders: Counter[int]) -> None:
        for root in [*self._tree.roots.values(), *{node.root for node in dead}]:
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

    def _check_accounts(self) -> None:
        for account in self.accounts:
            roots = [root for root in self._tree.roots.values() if root.account is account]
            assert roots == list(account.roots.values()) or set(roots) == set(account.roots.values())
            assert account.pages == sum(root.pages for root in roots), "an account's pages are stale"
            assert account.idle == sum(root.idle for root in roots), "an account's idle pages are stale"
            assert account.pinned == sum(root.pinned for root in roots), "an account's pins are stale"
            assert (account in self.accounts.over) == (account.pages > account.quota)
            assert account.pinned + account.reserved <= account.pins, "more is pinned than may be"
        assert self.pinned == sum(account.pinned for account in self.accounts), "the count of pins is stale"
        broken = sum(account.broken_leases for account in self.accounts)
        assert self.broken_leases == broken, "the count of broken leases is stale"

    def _check_pins_and_leases(self, live: list[Node]) -> None:
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
                    assert self.entries.find(name) is entry, "a lease that nobody can ask for"
                    assert entry.hold is hold
                    assert entry.node is node
            assert node.holds != [], "no holds are None"
            assert node.pins == own + sum(child.pins > 0 for child in node.nodes), "a stale count of pins"
            if node.max_age is None:
                assert node.expires == inf
        assert standing == self.entries.live, "the count of live entries is stale"

"""What the scheduler sees of the cache: find a prefix, take pages, publish them, give them back.

It is put together from who does each of these (see the package), over the pages that all of them share. Pages that only the
tree holds and that nothing pins hard are *idle*: they are what eviction can take. What was flushed goes first, and nobody
finds it from the moment it is flushed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence

from .accounts import Accounts, Limits
from .audit import Survey, check, survey
from .blocks import PagePool
from .cached_pages import CachedPages
from .cursor import Cursor
from .dead_roots import DeadRoots
from .entries import EntryView, view_of
from .eviction import Evictor
from .finding import Finder, Found
from .flushing import AT_A_TIME, Flushed, Search, fits_root, sum_roots, takes_whole_roots
from .lease import EntrySpec, EvictionCause, FlushScope, Lease
from .leasing import Leasing
from .node import Node, Root
from .publishing import Publisher
from .reading import Match, Reader
from .room import Room
from .writers import Writers

AT_ONCE = 64
"""So many flushed pages are reclaimed with the flush, at a microsecond or two each; the rest when room is needed."""


class PrefixCache:
    """A page pool and the tree over it. With `enabled=False` nothing is ever found or kept, pages still flow.

    `max_length` is that of the longest sequence, in tokens: pins and floors leave room for it, and limits that could not are
    refused with ValueError. `clock` gives seconds, monotonic.
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
        self.page_size = page_size
        self.page_bytes = page_bytes
        self.enabled = enabled
        self.pool = PagePool(pages)
        self.accounts = Accounts(limits or Limits(), pages, -(-max_length // page_size))
        self._pages = CachedPages(
            self.pool,
            page_size,
            accounts=self.accounts,
            evictor=Evictor(clock) if evictor is None else evictor,
            clock=clock,
        )
        self.entries = self._pages.entries
        self.tombstones = self._pages.tombstones
        self._dead = DeadRoots(self._pages)
        self._room = Room(self._pages, self._dead)
        self._writers = Writers()
        self._finder = Finder(self._pages, self._dead)
        self._reader = Reader(self._pages, self._finder)
        self._publisher = Publisher(self._pages, self._room, self._writers)
        self._leasing = Leasing(self._pages)

    # ---- a sequence --------------------------------------------------------------------------------------------------

    def begin(self, cursor: Cursor) -> Match:
        """A sequence that reads nothing starts: what is flushed from now on it does not publish."""
        cursor.reset()
        if cursor.root_key is not None and self.enabled:
            self._writers.add(cursor)
        return Match([], None, 0, None, cursor.root_key or b"")

    def match(self, cursor: Cursor, tokens: Sequence[int]) -> Match:
        """Find and pin the longest known prefix of all but the last token, and set the cursor to the end of it.

        The last token is left out so that there is always a position to compute, and with it something to sample from.
        What is found was used now, and so were the leases on it; but a cursor uses a page once, however often it asks.
        """
        nothing = self.begin(cursor)
        if cursor.root_key is None or not self.enabled or not cursor.policy.read:
            return nothing
        return self._reader.match(cursor, cursor.root_key, tokens)

    def share(self, pages: Iterable[int]) -> None:
        """One more holder of pages that a sequence holds."""
        for page in pages:
            self.pool.retain(page)

    def allocate(self, count: int, tenant: str = "") -> list[int] | None:
        """`count` pages held by the caller, on behalf of a tenant, evicting idle ones if too few are free; None if that is
        not enough."""
        return self._room.allocate(count, tenant)

    def release(self, pages: Sequence[int]) -> None:
        """Give up one hold of each page. Those in the tree stay there, idle once nobody else holds them."""
        self._pages.release(pages)

    def publish(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int) -> None:
        """Make every whole page of `tokens[:computed]` findable that may be. `pages` is the sequence's page table."""
        if self.enabled:
            self._publisher.publish(cursor, tokens, pages, computed)

    def publish_tail(
        self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int
    ) -> Node | None:
        """The same for a sequence that has ended: the partially filled last page becomes findable too.

        Returns the end of all that the sequence leaves in the tree, None if that is nothing.
        """
        return self._publisher.publish_tail(cursor, tokens, pages, computed) if self.enabled else None

    def unpublished(self, cursor: Cursor, tokens: Sequence[int], count: int) -> int:
        """How many of the first `count` tokens, their whole pages being published, are new in the cache once the rest is."""
        if cursor.root_key is None or not self.enabled:
            return 0
        return self._finder.missing(cursor, cursor.root_key, tokens[: min(count, cursor.limit)])

    # ---- looking -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds, by the clock that leases are measured with."""
        return self._pages.clock()

    def peek(self, root_key: bytes | None, tokens: Sequence[int]) -> int:
        """How many tokens `match` would find. Changes nothing."""
        if root_key is None or not self.enabled:
            return 0
        return self._finder.walk(root_key, tokens, self.now()).tokens(self.page_size)

    def look_up(self, root_key: bytes | None, tokens: Sequence[int]) -> Found:
        """The same, and what comes after it. Changes nothing."""
        if root_key is None or not self.enabled:
            return Found(0, 0, root_key or b"", None)
        return self._finder.look_up(root_key, tokens)

    def nodes(self) -> Iterable[Node]:
        """Every page that can be found, parents before children."""
        return iter(self._pages.tree)

    def survey(self) -> Survey:
        """The tree counted anew, linear in it."""
        return survey(self._pages, self._dead)

    def check(self, held: Iterable[int]) -> None:
        """Assert every invariant; `held` names each page once for each hold a sequence has on it."""
        check(self._pages, self._dead, held)

    # ---- counts ------------------------------------------------------------------------------------------------------

    @property
    def tree_pages(self) -> int:
        """Pages that the tree holds, those flushed and not reused yet included."""
        return self._pages.tree.nodes + self._dead.pages

    @property
    def idle(self) -> int:
        """Pages that eviction can take at last, an upper bound of what it can free at once: a page below which a sequence holds
        another one has to wait for that."""
        return self._pages.idle

    @property
    def available(self) -> int:
        """An upper bound of the pages `allocate` can give to a tenant without a floor."""
        return self._room.available_to("")

    def available_to(self, tenant: str) -> int:
        """An upper bound of the pages `allocate` can give to this tenant now."""
        return self._room.available_to(tenant)

    @property
    def freed(self) -> int:
        """Grows whenever there may be more room than before: only then is it worth asking again."""
        return self._pages.freed

    @property
    def published(self) -> int:
        """Pages that have become findable, ever: only when it grows can more be found than before."""
        return self._publisher.published

    @property
    def written_tokens(self) -> int:
        """Tokens published, ever, that nobody had published before: of what a call publishes they are the last."""
        return self._publisher.written_tokens

    @property
    def pinned(self) -> int:
        """Pages that are pinned hard."""
        return self._pages.pinned

    @property
    def broken_leases(self) -> int:
        """Promises that were not kept."""
        return self._pages.broken_leases

    @property
    def broken_pauses(self) -> int:
        """Conversations whose pages did not wait for their tools as long as they should have."""
        return self._pages.broken_pauses

    @property
    def evicted(self) -> int:
        """Pages that went to make room."""
        return self._room.evicted

    @property
    def evictions(self) -> Counter[EvictionCause]:
        """Pages that went, by cause."""
        return self._pages.evictions

    # ---- room --------------------------------------------------------------------------------------------------------

    @property
    def on_evict(self) -> Callable[[Node, EvictionCause], None] | None:
        """Called with a node and a cause before a page is reused that went to make room (its cause is `pressure` or `quota`),
        while the node still stands where it stood."""
        return self._room.on_evict

    @on_evict.setter
    def on_evict(self, tell: Callable[[Node, EvictionCause], None] | None) -> None:
        self._room.on_evict = tell

    def evict(self, count: int) -> int:
        """Take up to `count` idle pages as if room were needed for somebody without a floor. How many it were."""
        return self._room.make(count, "")

    def reclaim(self, count: int | None = None) -> int:
        """Make pages that were flushed free again, up to `count` of them; that is done when room is needed, anyway."""
        return self._dead.reclaim(count)

    # ---- leases ------------------------------------------------------------------------------------------------------

    def put_entry(self, cursor: Cursor, spec: EntrySpec, tokens: Sequence[int]) -> bool:
        """Lease the first `spec.tokens` of `tokens`, as soon as all of them stand in the tree: False, and nothing happens,
        before that. An entry of this id is renewed. Raises PinsExhausted.
        """
        return self.enabled and self._leasing.put(cursor, spec, tokens)

    def patch_entry(self, entry_id: str, lease: Lease) -> EntryView | None:
        """Give an entry a new lease, from now on. Raises PinsExhausted. One that has lost its pages stays as it is."""
        entry = self.entries.find(entry_id)
        if entry is not None:
            self._leasing.patch(entry, lease)
        return self.entry(entry_id)

    def drop_entry(self, entry_id: str) -> EntryView | None:
        """Forget an entry: its pages are like any others. How it was."""
        view = self.entry(entry_id)
        entry = self.entries.find(entry_id)
        if entry is not None:
            self._leasing.drop(entry)
        return view

    def take_down(self, entry_id: str, kept: Callable[[Node], bool]) -> int:
        """Take the pages of an entry out of the tree, from its end up to what somebody else needs. Each that is `kept`
        elsewhere goes; at the first that is not, no more do. How many went. The entry ends with the first of them."""
        entry = self.entries.find(entry_id)
        return 0 if entry is None else self._leasing.take_down(entry, kept)

    def entry(self, entry_id: str) -> EntryView | None:
        entry = self.entries.find(entry_id)
        return None if entry is None else view_of(entry, self._pages.tree, self.now())

    def all_entries(self, tenant: str | None = None) -> list[EntryView]:
        now = self.now()
        wanted = [entry for entry in self.entries if tenant in (None, entry.account.tenant)]
        return [view_of(entry, self._pages.tree, now) for entry in wanted]

    def path_of(self, entry_id: str) -> list[Node]:
        """The pages of an entry from its root on, in the tree or gone; none if nothing is known of it."""
        entry = self.entries.find(entry_id)
        return [] if entry is None else entry.node.path()

    def lease_tip(self, node: Node, lease: Lease) -> bool:
        """Let a conversation that ended at `node`, as `publish_tail` returned it, wait for its tools. False: that is gone."""
        return self._leasing.pause(node, lease)

    def reserve_pins(self, tenant: str, tokens: int) -> int:
        """Make sure that a path of so many tokens can be pinned later. The pages reserved, to be given back with
        `release_pins` right before it is. Raises PinsExhausted."""
        return self._leasing.reserve_pins(tenant, tokens)

    def release_pins(self, tenant: str, pages: int) -> None:
        self._leasing.release_pins(tenant, pages)

    def pinned_of(self, root_key: bytes, prompt: Sequence[int], count: int) -> int:
        """How many of the first `count` tokens of a prompt stand on pages that are pinned hard already."""
        return self._leasing.pinned_of(root_key, prompt, count)

    # ---- flushing ----------------------------------------------------------------------------------------------------

    def flush(self, scope: FlushScope | None = None, *, dry_run: bool = False) -> Flushed:
        """Let nobody find again what fits a scope, by default everything, not even what running sequences of it have still
        to publish. Whole roots go in O(1) each, and most of their pages are reclaimed when room is needed."""
        parts = self.flush_in_parts(scope or FlushScope(), dry_run=dry_run)
        while True:
            try:
                next(parts)
            except StopIteration as end:
                flushed: Flushed = end.value
                return flushed

    def flush_in_parts(self, scope: FlushScope, *, dry_run: bool = False) -> Generator[None, None, Flushed]:
        """The same, bit by bit: others may use the cache whenever it yields, and find what is not flushed yet. What fits when
        it begins is not found any more when it is over, and what begins meanwhile and fits leaves nothing."""
        if takes_whole_roots(scope):
            return self._flush_roots(scope, dry_run=dry_run)
        now = self.now()
        search = Search(scope, self._roots_of(scope), now, self.pool.holders)
        flushed = Flushed()
        if dry_run:
            for looked, node in enumerate(search, 1):
                if node is not None:
                    flushed.add(node, self.pool.holders(node.page))
                if not looked % AT_A_TIME:
                    yield
        else:
            with self._writers.silencing(scope):
                taken: list[Node] = []
                for looked, node in enumerate(search, 1):
                    if node is not None:
                        flushed.add(node, self.pool.holders(node.page))
                        self._pages.remove(node, "flushed", now)
                        taken.append(node)
                    if not looked % AT_A_TIME:
                        self._settle(taken)
                        taken = []
                        yield
                self._settle(taken)
        flushed.kept = search.kept
        return flushed

    def _settle(self, taken: Sequence[Node]) -> None:
        """These were flushed: who stands there brings nothing back, and what was above them may go."""
        for parent in dict.fromkeys(node.parent for node in taken):
            self._pages.offer_if_leaf(parent)
        self._writers.silence_on(set(taken))

    def _flush_roots(self, scope: FlushScope, *, dry_run: bool) -> Flushed:
        roots = self._roots_of(scope)
        report = sum_roots(roots)
        if not dry_run:
            now = self.now()
            for root in roots:
                self._dead.add(root, now)
            self._writers.silence(scope)
            self.reclaim(AT_ONCE)
        return report

    def _roots_of(self, scope: FlushScope) -> list[Root]:
        tree = self._pages.tree
        roots: Iterable[Root] = tree.roots.values()
        if scope.tenant is not None:
            account = self.accounts.find(scope.tenant)
            roots = [] if account is None else tree.roots_of(account)
        return [
            root
            for root in roots
            if fits_root(scope, tenant=root.account.tenant, namespace=root.namespace, adapter=root.adapter)
        ]

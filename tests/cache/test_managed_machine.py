"""Any order of requests, leases, pins, flushes and evictions against a dictionary of what was published.

The oracle is the set of all prefixes that were published and did not go since, by root. What a match finds is the longest
common prefix with one of them, no more and no less, and a page holds what it was found for. Whoever is told that pages go
is told the truth: nothing that is held, pinned or promised by a floor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.accounts import Limits, PinsExhausted
from cache.cursor import Cursor
from cache.lease import CachePolicy, EntrySpec, EvictionCause, FlushScope, Lease, Pin, TenantLimits
from cache.node import Node
from cache.prefix_cache import PrefixCache
from tests.fakes import ManualClock

SIZE, PAGES, LONGEST = 3, 14, 15
Tokens = tuple[int, ...]
Content = list[tuple[bytes, Tokens]]

TENANTS = {"a": TenantLimits(quota=0.5, floor=0.2, pins=0.2), "b": TenantLimits(quota=0.9)}
OTHERS = TenantLimits(floor=0.1, pins=0.3)


@dataclass(slots=True, eq=False)
class Running:
    cursor: Cursor
    tokens: list[int]
    pages: list[int]
    computed: int


@dataclass(slots=True)
class Promise:
    """An entry's tokens below a root, its lease, and the latest time that it was renewed for certain."""

    root: bytes
    tokens: Tokens
    lease: Lease
    renewed: float


@dataclass(slots=True)
class Oracle:
    """All prefixes that can be found, by root."""

    known: dict[bytes, set[Tokens]] = field(default_factory=dict)

    def longest(self, root: bytes, tokens: Tokens) -> int:
        return max((_common(tokens, prefix) for prefix in self.known.get(root, ())), default=0)

    def publish(self, root: bytes, tokens: Tokens) -> None:
        self.known.setdefault(root, set()).update(tokens[: end + 1] for end in range(len(tokens)))

    def forget_page(self, node: Node) -> None:
        """Of the prefixes that end within a page those are left that others share."""
        path = _path(node)
        mine = self.known[node.root.root_key]
        for end in range(node.start + 1, len(path) + 1):
            mine.discard(path[:end])
        for sibling in node.parent.nodes:
            if sibling is not node:
                end = len(path) - len(node.key) + _common(sibling.key, node.key)
                mine.update(path[:stop] for stop in range(node.start + 1, end + 1))


def _path(node: Node) -> Tokens:
    keys: list[Tokens] = []
    while node is not node.root:
        keys.append(node.key)
        node = node.parent
    return tuple(token for key in reversed(keys) for token in key)


def _common(a: Tokens, b: Tokens) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


roots = st.sampled_from([("a", b"1"), ("a", b"2"), ("b", b"3"), ("c", b"4")])
prompts = st.tuples(st.integers(1, LONGEST), st.integers(0, 2**LONGEST - 1)).map(
    lambda drawn: [(drawn[1] >> position // 2) & 1 for position in range(drawn[0])]
)
"""Of the few that there are many begin alike."""
lease_ttls = st.sampled_from([0.0, 5.0, 50.0])
pins: st.SearchStrategy[Pin] = st.sampled_from(["none", "none", "soft", "hard"])


class ManagedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(100.0)
        self.cache = PrefixCache(
            PAGES, SIZE, clock=self.clock, limits=Limits(TENANTS, OTHERS), max_length=2 * SIZE
        )
        self.cache.on_evict = self.goes
        self.oracle = Oracle()
        self.content: dict[int, Content] = {}
        self.running: list[Running] = []
        self.promises: dict[str, Promise] = {}
        self.asking: str | None = None
        self.went = 0

    # ---- sequences ---------------------------------------------------------------------------------------------------

    @rule(
        whose=roots,
        tokens=prompts,
        group=st.sampled_from([b"", b"g"]),
        read=st.sampled_from([True, True, False]),
        bound=st.sampled_from([None, None, 0, 4, 6]),
    )
    def start(
        self, whose: tuple[str, bytes], tokens: list[int], group: bytes, read: bool, bound: int | None
    ) -> None:
        tenant, root = whose
        policy = CachePolicy(read=read, write_tokens=bound, group=group)
        cursor = Cursor(root, tenant=tenant, namespace=root, policy=policy)
        expected = self.oracle.longest(root, tuple(tokens[:-1])) if read else 0
        peeked = self.cache.look_up(root, tokens).tokens
        match = self.cache.match(cursor, tokens)
        found = match.tokens(SIZE)
        assert found == expected, f"found {found} tokens of {expected} published"
        assert not read or peeked == found
        pages = match.pages if match.tail is None else [*match.pages, match.tail]
        for position in range(found):
            assert self.content[pages[position // SIZE]][position % SIZE] == (
                root,
                tuple(tokens[: position + 1]),
            )
        self.renew(root, tuple(tokens), found)
        fresh = self.allocate(-(-len(tokens) // SIZE) - len(match.pages), tenant)
        if fresh is None:
            self.cache.release(pages)
            return
        if match.tail is not None:
            self.content[fresh[0]] = self.content[match.tail][: match.tail_tokens]
            self.cache.release([match.tail])
        self.running.append(Running(cursor, tokens, match.pages + fresh, found))

    def allocate(self, count: int, tenant: str) -> list[int] | None:
        self.asking = tenant
        before = self.went
        possible = self.cache.available_to(tenant)
        pages = self.cache.allocate(count, tenant)
        assert pages is not None or count > possible or self.running, "there was room"
        assert count <= possible or self.went == before, "what could not be had cost others their pages"
        self.asking = None
        return pages

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 9), count=st.integers(1, LONGEST))
    def step(self, at: int, count: int) -> None:
        sequence = self.running[at % len(self.running)]
        root = sequence.cursor.root_key
        assert root is not None
        for position in range(sequence.computed, min(sequence.computed + count, len(sequence.tokens))):
            page = sequence.pages[position // SIZE]
            if position % SIZE == 0:
                self.content[page] = []
            self.content[page].append((root, tuple(sequence.tokens[: position + 1])))
            sequence.computed += 1
        self.publish(sequence, sequence.computed // SIZE * SIZE)

    def publish(self, sequence: Running, end: int, *, tail: bool = False) -> None:
        cursor = sequence.cursor
        self.asking = cursor.tenant
        assert cursor.root_key is not None
        end = min(end, cursor.limit) if tail else min(end, cursor.limit // SIZE * SIZE)
        if end > cursor.depth * SIZE:
            self.oracle.publish(cursor.root_key, tuple(sequence.tokens[:end]))
        publish = self.cache.publish_tail if tail else self.cache.publish
        publish(cursor, sequence.tokens, sequence.pages, sequence.computed)
        self.asking = None

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 9), keep=st.sampled_from([True, True, False]))
    def end(self, at: int, keep: bool) -> None:
        sequence = self.running[at % len(self.running)]
        if keep:
            self.publish(sequence, sequence.computed, tail=True)
        self.cache.release(sequence.pages)
        self.running.remove(sequence)

    # ---- promises ----------------------------------------------------------------------------------------------------

    @rule(
        whose=roots,
        tokens=prompts,
        name=st.sampled_from("uvwxyz"),
        ttl=lease_ttls,
        pin=pins,
        part=st.integers(1, LONGEST),
        group=st.sampled_from([b"", b"g"]),
    )
    def serve(
        self,
        *,
        whose: tuple[str, bytes],
        tokens: list[int],
        name: str,
        ttl: float,
        pin: Pin,
        part: int,
        group: bytes,
    ) -> None:
        """A request from its start to its end, which leases a part of its prompt on the way."""
        before = len(self.running)
        self.start(whose, tokens, group, True, None)
        if len(self.running) > before:
            self.step(before, LONGEST)
            self.lease(before, name, ttl, pin, part)
            self.end(before, True)

    @precondition(lambda self: self.running)
    @rule(
        at=st.integers(0, 9),
        name=st.sampled_from("uvwxyz"),
        ttl=lease_ttls,
        pin=pins,
        part=st.integers(1, LONGEST),
    )
    def lease(self, at: int, name: str, ttl: float, pin: Pin, part: int) -> None:
        sequence = self.running[at % len(self.running)]
        root = sequence.cursor.root_key
        assert root is not None
        tokens = tuple(sequence.tokens[:part])
        lease = Lease(ttl=ttl, pin=pin, tag=name)
        spec = EntrySpec(entry_id=name, tokens=len(tokens), lease=lease)
        before = self.cache.entry(name)
        try:
            made = self.cache.put_entry(sequence.cursor, spec, sequence.tokens)
        except PinsExhausted:
            assert pin == "hard"
            assert self.cache.entry(name) == before, "a refusal changed something"
            return
        if made:
            assert self.oracle.longest(root, tokens) == len(tokens), "an entry of what is not there"
            self.promises[name] = Promise(root, tokens, lease, self.clock.now)

    @rule(name=st.sampled_from("uvwxyz"), ttl=lease_ttls, pin=pins)
    def patch(self, name: str, ttl: float, pin: Pin) -> None:
        before = self.cache.entry(name)
        try:
            after = self.cache.patch_entry(name, Lease(ttl=ttl, pin=pin))
        except PinsExhausted:
            assert self.cache.entry(name) == before
            return
        assert (before is None) == (after is None) == (name not in self.promises)
        if after is not None and after.cause is None:
            self.promises[name].lease = after.lease
            self.promises[name].renewed = self.clock.now

    @rule(name=st.sampled_from("uvwxyz"))
    def drop(self, name: str) -> None:
        dropped = self.cache.drop_entry(name)
        assert (dropped is None) == (self.promises.pop(name, None) is None)

    def renew(self, root: bytes, tokens: Tokens, found: int) -> None:
        for name, promise in self.promises.items():
            whole = len(promise.tokens) <= found and tokens[: len(promise.tokens)] == promise.tokens
            if promise.root == root and whole and self.stands(name):
                promise.renewed = self.clock.now

    def stands(self, name: str) -> bool:
        """An entry that has lost its pages stays lost, even when equal ones are published again."""
        view = self.cache.entry(name)
        return view is not None and view.cause is None

    # ---- what takes pages --------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 3.0, 40.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(count=st.integers(1, PAGES), tenant=st.sampled_from(["a", "b", "d"]))
    def squeeze(self, count: int, tenant: str) -> None:
        pages = self.allocate(count, tenant)
        if pages is not None:
            self.cache.release(pages)

    def goes(self, node: Node, cause: EvictionCause) -> None:
        self.went += 1
        assert cause in ("pressure", "quota")
        assert self.cache.pool.holders(node.page) == 1, "a page that is held goes"
        assert not node.keys, "a page goes from under others"
        assert not node.pins, "a pinned page goes"
        account = node.root.account
        assert (cause == "quota") == (account.pages > account.quota)
        if account.tenant != self.asking and cause == "pressure":
            assert account.pages > account.floor, "below its floor for somebody else's sake"
        if cause == "pressure":
            assert not any(
                other.idle and _has_leaf(self.cache, other.tenant) for other in self.cache.accounts.over
            )
        self.oracle.forget_page(node)

    @rule(
        tenant=st.sampled_from([None, "a", "b", "d"]),
        namespaces=st.sampled_from([None, (b"1",), (b"2", b"3")]),
    )
    def flush(self, tenant: str | None, namespaces: tuple[bytes, ...] | None) -> None:
        scope = FlushScope(tenant=tenant, namespaces=namespaces)
        owners = {b"1": "a", b"2": "a", b"3": "b", b"4": "c"}
        gone = [
            root
            for root, owner in owners.items()
            if tenant in (None, owner) and (namespaces is None or root in namespaces)
        ]
        planned = self.cache.flush(scope, dry_run=True)
        assert self.cache.flush(scope) == planned
        for root in gone:
            self.oracle.known.pop(root, None)
        for sequence in self.running:
            assert sequence.cursor.root_key not in gone or not sequence.cursor.limit, "an old writer goes on"

    @rule(scope=st.sampled_from([FlushScope(group=b"g"), FlushScope(tag="u"), FlushScope(entry_id="v")]))
    def flush_part(self, scope: FlushScope) -> None:
        planned = self.cache.flush(scope, dry_run=True)
        before = self.cache.tree_pages
        assert self.cache.flush(scope) == planned
        assert before - self.cache.tree_pages == planned.pages
        assert all(node.group != scope.group for node in self.cache.nodes()), "a page of the group is left"
        self.oracle.known.clear()
        for node in self.cache.nodes():
            self.oracle.publish(node.root.root_key, _path(node))

    @rule(count=st.integers(1, 4))
    def reclaim(self, count: int) -> None:
        self.cache.reclaim(count)

    # ---- truth -------------------------------------------------------------------------------------------------------

    @invariant()
    def sound(self) -> None:
        self.cache.check(page for sequence in self.running for page in sequence.pages)

    @invariant()
    def promises_are_kept_or_said_to_be_broken(self) -> None:
        now = self.clock.now
        for name, promise in self.promises.items():
            view = self.cache.entry(name)
            assert view is not None
            there = self.oracle.longest(promise.root, promise.tokens)
            assert view.device == there, "an entry tells of pages that are not there, or of fewer"
            due = promise.renewed + promise.lease.ttl > now or promise.lease.pin != "none"
            if view.status == "held":
                assert there == len(promise.tokens), "held and not there"
            if view.status == "lapsed":
                assert not due or view.cause == "expired", "over before its time"
            if promise.lease.pin == "hard":
                assert view.status in ("held", "flushed"), "a hard pin went"

    def teardown(self) -> None:
        for sequence in self.running:
            self.cache.release(sequence.pages)
        self.cache.flush()
        self.cache.reclaim()
        assert self.cache.pool.free == PAGES
        assert self.cache.idle == 0
        assert self.cache.entries.live == 0


def _has_leaf(cache: PrefixCache, tenant: str) -> bool:
    return any(
        node.owner == tenant and not node.keys and not node.pins and cache.pool.holders(node.page) == 1
        for node in cache._pages.evictor
        if node.root.dead is None
    )


TestManagedMachine = ManagedMachine.TestCase
TestManagedMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)

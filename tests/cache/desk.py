"""A cache and sequences that use it, for tests that tell a story."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.accounts import Limits
from cache.cursor import Cursor
from cache.lease import CachePolicy, EntrySpec, EvictionCause, Lease, TenantLimits
from cache.node import Node
from cache.prefix_cache import PrefixCache
from cache.reading import Match
from tests.fakes import ManualClock

SIZE = 4


@dataclass(slots=True, eq=False)
class Job:
    """A sequence that runs: its pages are held."""

    cursor: Cursor
    tokens: list[int]
    pages: list[int]
    match: Match


@dataclass(slots=True, eq=False)
class Desk:
    """`saved` is what the cache told before it reused pages."""

    pages: int = 16
    tenants: dict[str, TenantLimits] = field(default_factory=dict)
    others: TenantLimits = field(default_factory=TenantLimits)
    max_length: int = 0
    clock: ManualClock = field(default_factory=lambda: ManualClock(1000.0))
    cache: PrefixCache = field(init=False)
    running: list[Job] = field(default_factory=list)
    saved: list[tuple[bytes, EvictionCause]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = PrefixCache(
            self.pages,
            SIZE,
            clock=self.clock,
            limits=Limits(self.tenants, self.others),
            max_length=self.max_length,
        )
        self.cache.on_evict = lambda node, cause: self.saved.append((node.chain, cause))

    def start(self, tokens: list[int], *, tenant: str = "t", salt: bytes = b"", **policy: object) -> Job:
        """A sequence is admitted and computes all its tokens."""
        namespace = tenant.encode() + b"/" + salt
        cursor = Cursor(
            b"root/" + namespace,
            tenant=tenant,
            namespace=namespace,
            policy=CachePolicy(**policy),  # type: ignore[arg-type] - fields by name
        )
        match = self.cache.match(cursor, tokens)
        fresh = self.cache.allocate(-(-len(tokens) // SIZE) - len(match.pages), tenant)
        assert fresh is not None, "no room"
        if match.tail is not None:
            self.cache.release([match.tail])
        job = Job(cursor, tokens, match.pages + fresh, match)
        self.running.append(job)
        return job

    def publish(self, job: Job) -> None:
        self.cache.publish(job.cursor, job.tokens, job.pages, len(job.tokens))
        for spec in job.cursor.policy.entries:
            self.cache.put_entry(job.cursor, spec, job.tokens)

    def end(self, job: Job) -> Node | None:
        tip = self.cache.publish_tail(job.cursor, job.tokens, job.pages, len(job.tokens))
        for spec in job.cursor.policy.entries:
            self.cache.put_entry(job.cursor, spec, job.tokens)
        self.cache.release(job.pages)
        self.running.remove(job)
        self.check()
        return tip

    def run(self, tokens: list[int], *, tenant: str = "t", **policy: object) -> int:
        """From start to end. How many tokens it found."""
        job = self.start(tokens, tenant=tenant, **policy)
        self.publish(job)
        self.end(job)
        return job.match.tokens(SIZE)

    def lease(
        self, name: str, tokens: list[int], *, tenant: str = "t", salt: bytes = b"", **lease: object
    ) -> None:
        """A request that leaves an entry of all its tokens."""
        spec = EntrySpec(entry_id=name, tokens=len(tokens), lease=Lease(**lease))  # type: ignore[arg-type]
        self.run(tokens, tenant=tenant, salt=salt, entries=(spec,))

    def found(self, tokens: list[int], tenant: str = "t", salt: bytes = b"") -> int:
        """How many of `tokens` stand in the tree, the last one included."""
        return self.cache.peek(b"root/" + tenant.encode() + b"/" + salt, [*tokens, -1 % 2**32])

    def gone(self, tokens: list[int], tenant: str = "t") -> tuple[str, float, bool] | None:
        return self.cache.look_up(b"root/" + tenant.encode() + b"/", tokens).gone

    def squeeze(self, pages: int = 1, tenant: str = "other") -> int:
        """Somebody needs so many pages more than are free, and gives them back at once. How many were evicted."""
        before = self.cache.evicted
        got = self.cache.allocate(self.cache.pool.free + pages, tenant)
        if got is not None:
            self.cache.release(got)
        self.check()
        return self.cache.evicted - before

    def check(self) -> None:
        held = [page for job in self.running for page in job.pages]
        self.cache.check(held)


def text(first: int, pages: int = 1, *, more: int = 0) -> list[int]:
    """Tokens that nobody else has: whole pages, and some `more`."""
    return [first * 100 + i for i in range(pages * SIZE + more)]

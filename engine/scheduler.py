"""Which sequences run next, on which pages. A pure state machine over integers.

There is no prefill phase and no decode phase: a sequence has computed fewer positions than it has tokens, and each plan
lets it catch up under one token budget. Nothing here touches a tensor, a socket, a clock or randomness of its own.

    submit, abort ──▶ plan ──▶ (a runner carries it out) ──▶ commit ──▶ take_events

One plan is in flight at a time: the next is made after `commit` or `fail_step`. Everything else may be called between
the two; what a step in flight reads or writes stays held until it is over, so a sequence that is aborted meanwhile gives
its pages back at the commit. That is what a second plan in flight would need as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cache.accounts import PinsExhausted
from cache.audit import Survey
from cache.cursor import Cursor
from cache.flushing import Flushed
from cache.lease import FlushScope, Lease
from cache.prefix_cache import PrefixCache
from cache.tombstones import Gone

from .account import evicted, never_queued
from .batch import PageCopy, Plan, PlannedRow, RowResult, StepResult
from .deadlines import Deadlines
from .entries import PendingEntries
from .group import NEVER, Group, Member, Tenant
from .lower_tiers import LowerTiers, no_tiers
from .page_tables import PageTables
from .request import (
    CacheCounters,
    EngineCounters,
    FailureKind,
    FinishReason,
    GenerationRequest,
    PromptCached,
    RequestEnded,
    RequestFailed,
    RequestStarted,
    SequenceDelta,
    TierCounters,
    TokenLogprob,
)
from .sequence import Status
from .single_flight import SingleFlight
from .tips import Tips
from .totals import Census, Totals
from .waiting import WaitingQueue

Saved = Callable[[int, int, float], float]
"""Seconds that it saves to find so many tokens (the second) of a prompt of so many (the first), brought up in so many
seconds (the third)."""

ABREAST = 4
"""So many prompts longer than a step are computed side by side. The next of them waits."""


@dataclass(frozen=True, slots=True)
class Events:
    """What there is to tell clients since the last time, each kind in order of happening.

    Of one request: that it started comes before that its prompt is cached, then deltas or a failure, then its account.
    """

    deltas: tuple[SequenceDelta, ...]
    started: tuple[RequestStarted, ...]
    failed: tuple[RequestFailed, ...]
    cached: tuple[PromptCached, ...]
    ended: tuple[RequestEnded, ...]


def _nothing_saved(tokens: int, cached: int, loading: float) -> float:
    return 0.0


@dataclass(slots=True)
class _Flight:
    plan: Plan
    members: list[Member]


class Scheduler:
    """Owns every sequence from `submit` to its end, and every page through its cache.

    `root_key(namespace, adapter)` names the tree a request shares pages in. At least `watermark_pages` stay available
    when a sequence is admitted while others run, so that those can grow. `saved` estimates what hits save. `tiers` are those
    below the device, by default none. `lent` counts holds on pages that no sequence has: whoever has them fills them in here.
    """

    def __init__(
        self,
        *,
        cache: PrefixCache,
        max_running: int,
        max_step_tokens: int,
        max_model_len: int,
        watermark_pages: int = 0,
        clock: Callable[[], float],
        root_key: Callable[[bytes, bytes], bytes],
        saved: Saved = _nothing_saved,
        tiers: LowerTiers | None = None,
    ) -> None:
        if not 1 <= max_running <= max_step_tokens:
            raise ValueError(
                f"a step of {max_step_tokens} tokens cannot advance {max_running} running sequences"
            )
        self.cache = cache
        self.page_size = cache.page_size
        self.max_running = max_running
        self.max_step_tokens = max_step_tokens
        self._little = (
            max_step_tokens // max_running
        )  # that much of every running sequence fits into one step
        self.max_length = min(max_model_len, cache.pool.total * cache.page_size)
        self.watermark_pages = watermark_pages
        self._clock = clock
        self._root_key = root_key
        self._saved = saved
        self._groups: dict[str, Group] = {}
        self._tenants: dict[str, Tenant] = {}
        self.tiers = tiers or no_tiers(cache.page_size)
        if self.tiers.host.slots:
            cache.on_evict = self.tiers.evicted
        self.lent: Counter[int] = Counter()
        self._tables = PageTables(cache, self.tiers)
        self._waiting = WaitingQueue()
        self._single_flight = SingleFlight(self.page_size)
        self._tips = Tips(cache)
        self._running: dict[int, Member] = {}  # by uid, in order of admission
        self._held_back = 0  # sequences of held requests
        self._deadlines = Deadlines()
        self._flight: _Flight | None = None
        self._retired: list[int] = []
        self._deltas: list[SequenceDelta] = []
        self._started: list[RequestStarted] = []
        self._failed: list[RequestFailed] = []
        self._cached_prompts: list[PromptCached] = []
        self._ended: list[RequestEnded] = []
        self._closed: list[Group] = []
        self._totals = Totals()
        self._next_uid = 0
        self._blocked_at = -1  # the cache's `freed` count when somebody last found no room

    # ---- requests ----------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._groups) or self._flight is not None

    @property
    def idle(self) -> bool:
        """Nothing will be planned before something is released or submitted, or `next_deadline` has passed."""
        return self._flight is None and not self._running and not self._queued

    @property
    def held(self) -> int:
        """Sequences of requests that are held."""
        return self._held_back

    @property
    def next_deadline(self) -> float | None:
        """When the next request may be overdue, by the scheduler's clock."""
        return self._deadlines.next

    def serves(self, request_id: str) -> bool:
        """Whether the request is held or queued or runs."""
        return request_id in self._groups

    def root_of(self, request: GenerationRequest) -> bytes | None:
        """Names the tree that a request finds pages in; None if it looks for none."""
        reads = request.cache.read and request.sampling.prompt_logprobs is None and self.cache.enabled
        return self._root_key(request.namespace, request.adapter) if reads else None

    def submit(self, request: GenerationRequest, *, held: bool = False) -> bool:
        """Queue a request, and say whether it was taken. One that can never run fails at once, as an event.

        One that is `held` waits outside the queue until it is released: something that it needs is being prepared. Its
        deadline counts all the same, and it can be aborted or failed like any other.
        """
        refusal = self._refusal(request)
        if refusal is not None:
            self._refuse(request, "bad_request", refusal)
            return False
        root_key = self._root_of(request)
        try:
            entries = self._pending_entries(request, root_key)
        except PinsExhausted as error:
            self._refuse(request, "pins_exhausted", str(error))
            return False
        group = self._new_group(request, root_key, entries)
        if held:
            group.held = True
            self._held_back += request.n
        else:
            self._queue(group)
        return True

    def release(self, request_id: str, *, waited: float = 0.0) -> bool:
        """Queue a request that was held, `waited` seconds of that for pages from disk. False, and nothing happens, if it has
        ended meanwhile."""
        group = self._groups.get(request_id)
        if group is None or not group.held:
            return False
        group.held = False
        group.waited = waited
        self._held_back -= len(group.members)
        self._queue(group)
        return True

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it, as its client wishes. Unknown and ended ones are ignored."""
        group = self._groups.get(request_id)
        if group is None:
            return
        for member in list(group.members):
            if index is None or member.index == index:
                self._totals.aborted += 1
                self._deltas.append(SequenceDelta(request_id, member.index, (), "abort"))
                self._end(member)

    def fail_request(self, request_id: str, kind: FailureKind, message: str) -> None:
        """End what is left of a request with a failure. Unknown and ended ones are ignored."""
        group = self._groups.get(request_id)
        if group is not None:
            self._fail(group, kind, message)

    def flush(self, scope: FlushScope | None = None, *, dry_run: bool = False) -> Flushed:
        """Let nobody find what fits a scope, by default anything: sequences that run go on, and publish nothing more of it."""
        flushed = self.cache.flush(scope, dry_run=dry_run)
        self.look_again()
        return flushed

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        """Lease all that the first choice of a request left in the cache that ended a moment ago. Too late is nothing."""
        self._tips.lease(request_id, lease)

    def look_again(self) -> None:
        """What is promised of the cache has changed: there may be room now where there was none."""
        self._blocked_at = -1

    def take_events(self) -> Events:
        """What happened since this was called last."""
        for group in self._closed:
            self._ended.append(group.account.close(group.request.request_id, failed=group.failed))
        events = Events(
            tuple(self._deltas),
            tuple(self._started),
            tuple(self._failed),
            tuple(self._cached_prompts),
            tuple(self._ended),
        )
        for told in (
            self._deltas,
            self._started,
            self._failed,
            self._cached_prompts,
            self._ended,
            self._closed,
        ):
            told.clear()
        return events

    # ---- a step ------------------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next step, or None if there is nothing to compute now; with `has_work` it is worth asking again."""
        if self._flight is not None:
            raise RuntimeError("the plan in flight has to be committed or failed first")
        self._fail_overdue()
        preemptions = self._totals.preemptions
        self._grow()
        members: list[Member] = []
        rows: list[PlannedRow] = []
        copies: list[PageCopy] = []
        behind, budget = self._continue_running(members, rows)
        if self._waiting and (preemptions == self._totals.preemptions or not self._running):
            budget -= self._admit_waiting(_share_of_newcomers(behind, budget), members, rows, copies)
        self._catch_up(behind, budget, members, rows)
        if not rows:
            return None
        self._totals.steps += 1
        saves, loads = self.tiers.take()
        plan = Plan(self._totals.steps, tuple(rows), tuple(copies), tuple(self._retired), saves, loads)
        self._retired.clear()
        self._flight = _Flight(plan, members)
        return plan

    def commit(self, plan: Plan, result: StepResult) -> None:
        """Take in what the step in flight brought. Raises ValueError, and changes nothing, if it is not its result.

        Whatever it raises, the step stays in flight: `fail_step` then ends what it concerns.
        """
        if len(result.rows) != len(plan.rows):
            raise ValueError(f"{len(result.rows)} results for {len(plan.rows)} rows")
        computed = 0
        for member, row, outcome in zip(self._land(plan), plan.rows, result.rows, strict=True):
            if member.copy_source is not None:
                self._tables.copied(member)
            computed += row.count
            if outcome.error is not None:
                self._fail_row(member, row.count, outcome.error, outcome.fault)
                continue
            if member.status is Status.FINISHED:
                self._release_late(member, row.count)
                continue
            member.computed += row.count
            if outcome.postponed:  # the position that was not sampled is computed once more: the same again
                member.computed -= 1
                member.group.account.computed += 1
            if member.computed >= member.due:
                self._publish(member)
            if member.from_below:
                member.from_below = 0
                self.tiers.remember(member.cursor.node)
            if member.followers or member.leading is not None or row.count > 1:
                self._requeue(self._single_flight.advance(member))
            self._take_outcome(member, row, outcome)
        self.tiers.settle(saved=result.saved)
        self._flight = None
        self._totals.computed(computed)
        self._check_idle()

    def fail_step(self, plan: Plan, message: str) -> None:
        """The step in flight is lost: its requests fail, no others."""
        members = self._land(plan)
        for member in members:
            if member.status is not Status.FINISHED:
                self._fail(member.group, "engine_error", message)
        for member in members:
            if member.pages:
                self._land_late(member, keep=False)
        self.tiers.settle(saved=False)
        self._flight = None
        self._check_idle()

    # ---- what is true ------------------------------------------------------------------------------------------------

    def counters(self) -> EngineCounters:
        """Totals and levels, in O(1)."""
        return self._counters(
            len(self._running),
            self._queued + self._held_back,
            self.cache.pool.free,
            self.cache.tree_pages,
        )

    def census(self) -> Census:
        """The same and more, recounted: linear in everything. For operators and tests."""
        return self._census(self.cache.survey())

    def _census(self, tree: Survey) -> Census:
        private = set(self._held()) - tree.pages
        statuses = [member.status for member in self._members()]
        counters = self._counters(
            statuses.count(Status.RUNNING),
            statuses.count(Status.WAITING),
            self.cache.pool.free,
            len(tree.pages),
        )
        return Census(counters, len(private), len(tree.pages), tree.tokens, tree.namespaces)

    def check(self) -> None:
        """Assert every invariant of the scheduler, its cache and its pool. Linear in everything."""
        self.cache.check(self._held())
        self.tiers.check()
        tree = self.cache.survey()
        assert self._census(tree).counters == self.counters(), "a counter is stale"
        members = list(self._members())
        self._check_waiting([member for member in members if member.status is Status.WAITING])
        running = {member.uid: member for member in members if member.status is Status.RUNNING}
        assert running == self._running, "running is not what runs"
        assert len(running) <= self.max_running
        sharers = Counter(page for member in members for page in member.pages)
        for member in running.values():
            self._check_running(member, tree.pages, sharers)
        self._single_flight.check(members)
        tenants = Counter(group.tenant.name for group in self._groups.values())
        assert tenants == {name: tenant.groups for name, tenant in self._tenants.items()}, "a tenant's count"
        assert all(group.members for group in self._groups.values()), "an ended request is remembered"
        self._check_reserved()

    def _check_reserved(self) -> None:
        landing = [] if self._flight is None else [member.group for member in self._flight.members]
        reserved: Counter[str] = Counter()
        for group in {*self._groups.values(), *landing}:
            if group.entries is not None:
                reserved[group.tenant.name] += group.entries.reserved
        for account in self.cache.accounts:
            # An import that is under way has reserved some as well.
            assert account.reserved >= reserved[account.tenant], "room for pins is given away"

    def _check_waiting(self, waiting: list[Member]) -> None:
        queued = [member.uid for member in self._waiting]
        following = [member.uid for member in waiting if member.leader is not None]
        held = [member.uid for member in waiting if member.group.held]
        assert len(queued) == len(self._waiting)
        assert len(held) == self._held_back
        everywhere = queued + following + held
        assert sorted(everywhere) == sorted(member.uid for member in waiting), "lost, or waiting twice"
        for member in waiting:
            assert not member.pages, "a waiting sequence holds pages"

    def _check_running(self, member: Member, in_tree: set[int], sharers: Counter[int]) -> None:
        size = self.page_size
        assert member.computed < len(member.tokens) <= max(member.limit, member.prompt_len)
        assert len(member.pages) * size >= member.computed
        assert member.cursor.depth <= member.computed // size, "published before it was computed"
        for page in member.pages[member.computed // size :]:
            assert page not in in_tree, "a page still written is in the tree"
            assert sharers[page] == 1, "a page still written is shared"

    def _members(self) -> Iterator[Member]:
        for group in self._groups.values():
            yield from group.members

    def _held(self) -> Iterator[int]:
        """Every page once for each hold a sequence has on it, those only kept for the step in flight included, and what is
        lent."""
        yield from self.lent.elements()
        for member in self._members():
            yield from _holds(member)
        if self._flight is not None:
            for member in self._flight.members:
                if member.status is Status.FINISHED:
                    yield from _holds(member)

    def _counters(self, running: int, waiting: int, free: int, tree: int) -> EngineCounters:
        cache = self.cache
        return self._totals.counters(
            running=running,
            waiting=waiting,
            pages_total=cache.pool.total,
            pages_free=free,
            pages_tree=tree,
            evicted_pages=cache.evicted,
            cache=self._cache_counters(),
        )

    def _cache_counters(self) -> CacheCounters:
        cache, totals = self.cache, self._totals
        return CacheCounters(
            looked_up_tokens=totals.looked_up_tokens,
            written_tokens=cache.written_tokens,
            recomputed_tokens=totals.recomputed_tokens,
            evictions=dict(cache.evictions),
            entries=cache.entries.live,
            pinned_pages=cache.pinned,
            broken_leases=cache.broken_leases,
            broken_pauses=cache.broken_pauses,
            followers=totals.followers,
            saved=totals.saved,
            loading=totals.loading,
            device=TierCounters(
                bytes=cache.tree_pages * cache.page_bytes,
                budget=cache.pool.total * cache.page_bytes,
                hit_tokens=totals.cached_tokens - totals.host_tokens - totals.disk_tokens,
                stored=cache.published,
                evicted=cache.evicted,
            ),
            host=self.tiers.host_counters(cache.page_bytes, totals.host_tokens),
            disk=self.tiers.disk_counters(totals.disk_tokens),
        )

    def _check_idle(self) -> None:
        """The one check cheap enough for production: with no request left, all pages are free or in the tree."""
        cache = self.cache
        if not self._groups and not self.lent and cache.pool.free + cache.tree_pages != cache.pool.total:
            self._totals.failed_checks += 1

    # ---- submit: a request becomes a group ---------------------------------------------------------------------------

    def _refusal(self, request: GenerationRequest) -> str | None:
        length = len(request.prompt)
        if request.request_id in self._groups:
            return "a request with this id is being served"
        if not length:
            return "the prompt is empty"
        if request.n < 1:
            return f"n is {request.n} and has to be at least 1"
        if request.sampling.max_tokens < 0:
            return f"max_tokens is {request.sampling.max_tokens} and cannot be negative"
        if length + min(request.sampling.max_tokens, 1) > self.max_length:
            return f"the prompt of {length} tokens is too long: prompt and answer share {self.max_length}"
        return None

    def _refuse(self, request: GenerationRequest, kind: FailureKind, message: str) -> None:
        self._failed.append(RequestFailed(request.request_id, kind, message))
        if request.request_id not in self._groups:
            self._ended.append(never_queued(request.request_id))

    def _root_of(self, request: GenerationRequest) -> bytes | None:
        """Where in the cache a request reads and writes, None if it does neither."""
        policy = request.cache
        shares = (policy.read or policy.write) and self.cache.enabled
        return self._root_key(request.namespace, request.adapter) if shares else None

    def _pending_entries(self, request: GenerationRequest, root_key: bytes | None) -> PendingEntries | None:
        """Raises PinsExhausted."""
        if root_key is None or not request.cache.write or not request.cache.entries:
            return None
        return PendingEntries(self.cache, request, root_key)

    def _new_group(
        self, request: GenerationRequest, root_key: bytes | None, entries: PendingEntries | None
    ) -> Group:
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            # Whoever comes new, or back, starts level with the least served: no credit for time away.
            served = min((other.served for other in self._tenants.values()), default=0)
            tenant = self._tenants[request.tenant] = Tenant(request.tenant, served)
        tenant.groups += 1
        group = Group(request, tenant, root_key, self._clock(), entries)
        group.members.extend(self._new_member(group, index) for index in range(request.n))
        self._groups[request.request_id] = group
        if request.deadline is not None:
            self._deadlines.add(group, group.arrival + request.deadline)
        return group

    def _new_member(self, group: Group, index: int) -> Member:
        request = group.request
        length = len(request.prompt)
        wants_prompt = index == 0 and request.sampling.prompt_logprobs is not None
        cursor = Cursor(
            group.root_key,
            tenant=request.tenant,
            namespace=request.namespace,
            adapter=request.adapter,
            policy=request.cache,
            counts=index == 0,
        )
        self.cache.begin(cursor)  # from here on a flush stops what it would write
        self._next_uid += 1
        return Member(
            uid=self._next_uid,
            request=request,
            index=index,
            tokens=list(request.prompt),
            prompt_len=length,
            arrival=group.arrival,
            group=group,
            cursor=cursor,
            limit=min(length + request.sampling.max_tokens, self.max_length),
            prompt_logprobs=[None] if wants_prompt else None,
        )

    def _queue(self, group: Group) -> None:
        first, *others = group.members
        self._waiting.add(first)
        for member in others:
            self._single_flight.follow(member, first, first.prompt_len)
        self._blocked_at = -1

    @property
    def _queued(self) -> int:
        return len(self._waiting) + self._single_flight.following

    def _fail_overdue(self) -> None:
        if self._deadlines:
            for group in self._deadlines.pop_overdue(self._clock()):
                self._fail(group, "deadline", f"not finished within {group.request.deadline:g} s")

    # ---- plan: who runs ----------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Give every running sequence the pages its tokens need, at the cost of the cache, then of others."""
        size = self.page_size
        for member in list(self._running.values()):
            if len(member.tokens) > len(member.pages) * size:
                while member.status is Status.RUNNING and not self._tables.grow(member):
                    self._preempt(max(self._running.values(), key=_expendable))

    def _preempt(self, member: Member) -> None:
        """Take a running sequence's pages. It waits in its old place and computes again what the cache forgets."""
        self._totals.preemptions += 1
        del self._running[member.uid]
        member.status = Status.WAITING
        self._requeue(self._single_flight.stop(member))
        reached = max(member.reached, member.computed)
        self._release(member, keep=False)
        member.preempted = True
        member.reached = reached
        if member.prompt_logprobs is not None:
            member.prompt_logprobs = [None]
        self._waiting.add(member)

    def _continue_running(self, members: list[Member], rows: list[PlannedRow]) -> tuple[list[Member], int]:
        """All that those lack who lack little: one position while they generate, a few more after forced tokens.

        Returns those that are further behind, and the budget that is left: a position for each of them at least.
        """
        behind: list[Member] = []
        budget = self.max_step_tokens
        for member in self._running.values():
            length = len(member.tokens)
            missing = length - member.computed
            if missing > self._little:
                behind.append(member)
                continue
            budget -= missing
            member.in_flight = True
            member.group.tenant.served += missing
            members.append(member)
            rows.append(PlannedRow(member, member.computed, missing, length < member.limit))
        return behind, budget

    def _catch_up(
        self, behind: list[Member], budget: int, members: list[Member], rows: list[PlannedRow]
    ) -> None:
        """Divide the budget evenly, who needs least first: what those leave over goes to the others."""
        behind.sort(key=_missing)
        for place, member in enumerate(behind):
            share = -(-budget // (len(behind) - place))
            budget -= self._add_row(member, share, members, rows)

    def _add_row(self, member: Member, budget: int, members: list[Member], rows: list[PlannedRow]) -> int:
        length = len(member.tokens)
        count = min(length - member.computed, budget)
        ends = member.computed + count == length
        member.in_flight = True
        member.group.tenant.served += count
        members.append(member)
        rows.append(PlannedRow(member, member.computed, count, ends and length < member.limit))
        return count

    def _admit_waiting(
        self, budget: int, members: list[Member], rows: list[PlannedRow], copies: list[PageCopy]
    ) -> int:
        """Let in who has room, up to `budget` positions of them; how many it became."""
        left = budget
        while left and len(self._running) < self.max_running:
            if self._running and self._blocked_at == self.cache.freed:
                break  # no room was found, and nothing was given back since
            member = self._waiting.next(self._cached)
            if member is None:
                break
            prefix = self._tables.find(member)
            lead = self._single_flight.find(member, prefix.match.tokens(self.page_size))
            if lead is not None:
                self._tables.unpin(prefix.match)
                self._waiting.remove(member)
                self._single_flight.follow(member, lead.leader, lead.agreed)
                self._totals.followers += lead.leader.group is not member.group
                continue
            if not self._tables.fill(member, prefix, self.watermark_pages if self._running else 0):
                self._blocked_at = self.cache.freed
                break
            copy = self._tables.copy_of(member)
            if copy is not None:
                copies.append(copy)
            self._start(member, prefix.match.gone)
            left -= self._add_row(member, left, members, rows)
        return budget - left

    def _cached(self, member: Member) -> int:
        """How much a cache holds of a waiting sequence; asked again only after something was published."""
        if member.hint_age != self.cache.published:
            member.hint_age = self.cache.published
            reads = member.request.cache.read and not member.reads_nothing
            member.hint = self.cache.peek(member.cursor.root_key, member.tokens) if reads else 0
        return member.hint

    def _start(self, member: Member, gone: Gone | None) -> None:
        self._waiting.admit(member)
        member.status = Status.RUNNING
        self._running[member.uid] = member
        member.found = member.computed
        self._expect_page(member)
        if not member.group.account.started:
            self._tell_start(member, gone)
            self.tiers.used(member.cursor.node)
        # What is loaded others find after this step: one that needs it too follows, rather than load it again.
        others_find = member.cursor.depth * self.page_size if member.from_below else member.computed
        self._single_flight.lead(member, others_find)

    def _tell_start(self, member: Member, gone: Gone | None) -> None:
        """Once for a request, by the first of its choices that is admitted: only this hit counts."""
        group, cached = member.group, member.computed
        on_disk = member.from_disk
        in_host = member.from_below - on_disk
        loading = group.waited + self.tiers.loading(member.from_below)
        saved = self._saved(member.prompt_len, cached, loading)
        group.account.start(cached, saved)
        self._totals.started(member.prompt_len, cached, in_host, on_disk, saved=saved, loading=loading)
        if group.root_key is not None and group.request.cache.read and not member.reads_nothing:
            self._totals.looked_up_tokens += member.prompt_len
        queued = self._clock() - group.arrival
        self._started.append(
            RequestStarted(
                group.request.request_id,
                cached,
                queued,
                host_tokens=in_host,
                disk_tokens=on_disk,
                saved=saved,
                loading=loading,
                evicted=None if member.from_below else evicted(gone),
            )
        )

    def _requeue(self, members: list[Member]) -> None:
        """Those that waited for a leader wait for room now, each in its old place."""
        for member in members:
            self._waiting.add(member)
            self._blocked_at = -1

    # ---- commit: what a row brought ----------------------------------------------------------------------------------

    def _land(self, plan: Plan) -> list[Member]:
        if self._flight is None or self._flight.plan is not plan:
            raise ValueError("this plan is not in flight")
        members = self._flight.members
        for member in members:
            member.in_flight = False
        return members

    def _take_outcome(self, member: Member, row: PlannedRow, outcome: RowResult) -> None:
        if member.prompt_logprobs is not None and outcome.prompt_logprobs is not None:
            member.prompt_logprobs += outcome.prompt_logprobs
        if outcome.postponed:
            return
        if row.sample:
            if outcome.token is None:
                self._fail(member.group, "engine_error", "the model gave no token")
                return
            self._append(member, outcome.token, outcome)
        elif member.computed == len(member.tokens):
            self._tell(member, (), None, "length")  # nothing but the prompt was asked for
            self._complete_prompt(member)

    def _publish(self, member: Member) -> None:
        """What was computed of a sequence becomes findable, page by page."""
        entries = member.group.entries
        known = self.cache.written_tokens
        self.cache.publish(member.cursor, member.tokens, member.pages, member.computed)
        self._expect_page(member)
        end = member.cursor.depth * self.page_size
        self._count_written(member, known, end)
        if entries and entries.shortest <= end:
            self._put_entries(member, entries, end)

    def _expect_page(self, member: Member) -> None:
        """When the next page of a sequence is whole, if it may be published then."""
        due = (member.cursor.depth + 1) * self.page_size
        member.due = due if due <= member.cursor.limit else NEVER

    def _count_written(self, member: Member, known: int, end: int) -> None:
        """What was just published of a sequence ends at `end`, and what of it nobody knew does as well."""
        member.group.account.wrote(end - (self.cache.written_tokens - known), end)

    def _put_entries(self, member: Member, entries: PendingEntries, upto: int) -> None:
        made = entries.put(member.cursor, member.tokens, upto)
        member.group.account.entries += made
        for entry_id in made:
            self.tiers.make_last(self.cache.path_of(entry_id)[-1])

    def _complete_prompt(self, member: Member) -> None:
        """Once for a request, by the first of its choices that gets there."""
        group = member.group
        if not group.account.complete:
            if group.entries:
                self._put_entries(member, group.entries, member.prompt_len)
            ahead = 0
            if member.pages:  # or else it has ended with its first token, and left what it may
                ahead = self.cache.unpublished(member.cursor, member.tokens, member.prompt_len)
            self._cached_prompts.append(group.account.complete_prompt(group.request.request_id, ahead))

    def _append(self, member: Member, token: int, outcome: RowResult) -> None:
        """Add the token and those it forces, up to the first that ends the sequence."""
        before = len(member.tokens)
        member.tokens.append(token)
        finish = self._finish_reason(member, token)
        tokens: tuple[int, ...] = (token,)
        if outcome.forced and finish is None:
            finish = self._append_forced(member, outcome.forced)
            tokens = tuple(member.tokens[before:])
        self._totals.generated_tokens += len(tokens)
        self._tell(member, tokens, outcome.logprob, finish)
        if before == member.prompt_len:
            self._complete_prompt(member)

    def _append_forced(self, member: Member, forced: tuple[int, ...]) -> FinishReason | None:
        """They are computed by the next plans, and what follows is sampled after the last of them."""
        before = len(member.tokens)
        finish: FinishReason | None = None
        for token in forced:
            member.tokens.append(token)
            finish = self._finish_reason(member, token)
            if finish is not None:
                break
        self._totals.forced_tokens += len(member.tokens) - before
        return finish

    def _finish_reason(self, member: Member, token: int) -> FinishReason | None:
        sampling = member.request.sampling
        if token in sampling.stop_token_ids and member.generated > sampling.min_tokens:
            return "stop"
        return "length" if len(member.tokens) >= member.limit else None

    def _tell(
        self,
        member: Member,
        tokens: tuple[int, ...],
        logprob: TokenLogprob | None,
        finish: FinishReason | None,
    ) -> None:
        prompt = None
        if member.prompt_logprobs is not None:
            prompt = tuple(member.prompt_logprobs)
            member.prompt_logprobs = None
        logprobs = None if logprob is None else (logprob,)
        self._deltas.append(
            SequenceDelta(member.request.request_id, member.index, tokens, finish, logprobs, prompt)
        )
        if finish is not None:
            self._end(member)

    # ---- the end of a sequence ---------------------------------------------------------------------------------------

    def _fail_row(self, member: Member, count: int, message: str, fault: FailureKind) -> None:
        member.group.account.computed += count
        if member.status is not Status.FINISHED:
            self._fail(member.group, fault, message)
        elif member.pages:
            self._land_late(member, keep=False)

    def _release_late(self, member: Member, count: int) -> None:
        """After the step that computed `count` positions for a sequence that ended meanwhile."""
        if member.pages:
            member.computed += count
            self._land_late(member, keep=not member.group.failed)
        else:  # another choice of its request failed in this very step
            member.group.account.computed += count

    def _land_late(self, member: Member, *, keep: bool) -> None:
        """The step is over that was computing a sequence when it ended."""
        self._release(member, keep=keep)
        member.group.account.landing -= 1
        self._close_if_over(member.group)

    def _fail(self, group: Group, kind: FailureKind, message: str) -> None:
        group.failed = True
        self._failed.append(RequestFailed(group.request.request_id, kind, message))
        for member in list(group.members):
            self._end(member)

    def _end(self, member: Member) -> None:
        """The one way out, for a finish, an abort and a failure alike."""
        if member.status is Status.RUNNING:
            del self._running[member.uid]
        elif member.leader is not None:
            self._single_flight.unfollow(member)
        elif member.group.held:
            self._held_back -= 1
        else:
            self._waiting.remove(member)
        member.status = Status.FINISHED
        self._requeue(self._single_flight.stop(member))
        group = member.group
        group.account.generated += member.generated
        if member.in_flight:
            group.account.landing += 1
        elif member.pages:
            self._release(member, keep=not group.failed)
        self._leave_group(member)
        self._close_if_over(group)

    def _close_if_over(self, group: Group) -> None:
        """Of a request that has ended nothing more is to come once no step computes for it: its account is due."""
        if not group.members and not group.account.landing:
            self._closed.append(group)
            if group.entries is not None:
                group.entries.drop()

    def _leave_group(self, member: Member) -> None:
        group = member.group
        group.members.remove(member)
        if group.members:
            return
        del self._groups[group.request.request_id]
        group.tenant.groups -= 1
        if not group.tenant.groups:
            del self._tenants[group.tenant.name]

    def _keep(self, member: Member) -> None:
        """What a sequence that has ended leaves to others, up to its last token."""
        known = self.cache.written_tokens
        tip = self._tables.keep(member)
        self._count_written(member, known, min(member.computed, member.cursor.limit))
        entries = member.group.entries
        if entries:
            self._put_entries(member, entries, member.prompt_len)
        if tip is not None and member.index == 0:
            self._tips.add(member.request.request_id, tip)

    def _release(self, member: Member, *, keep: bool = True) -> None:
        """The pages go, and with them what the runner keeps for the sequence."""
        computed = member.computed
        member.group.account.computed += computed - member.found
        self._totals.recomputed_tokens += max(min(computed, member.reached) - member.found, 0)
        if keep:
            self._keep(member)
        self._tables.clear(member)
        self._retired.append(member.uid)


def _missing(member: Member) -> int:
    return len(member.tokens) - member.computed


def _share_of_newcomers(behind: list[Member], budget: int) -> int:
    """What those further behind leave to who waits: all they do not need, and while they are few, an equal share.

    So a long prompt does not keep everybody else waiting until it is done, and many at once still come one by one.
    """
    needed = sum(map(_missing, behind))
    if len(behind) < ABREAST:
        needed = min(needed, budget - budget // (len(behind) + 1))
    return max(0, budget - needed)


def _expendable(member: Member) -> tuple[int, int]:
    """What is preempted first: the lowest priority, then the newest."""
    return member.request.priority, member.uid


def _holds(member: Member) -> Iterator[int]:
    yield from member.pages
    if member.copy_source is not None:
        yield member.copy_source

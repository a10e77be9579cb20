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
from cache.flushing import Flushed
from cache.lease import FlushScope, Lease
from cache.prefix_cache import PrefixCache

from .account import never_queued
from .admission import Admission, Saved
from .batch import Plan, StepResult
from .counters import counted
from .draft import Draft
from .endings import Endings
from .entries import PendingEntries
from .events import Events, Outbox
from .group import Member
from .groups import Groups
from .lower_tiers import LowerTiers, no_tiers
from .outcomes import Outcomes
from .page_tables import PageTables
from .preemption import Preemption
from .publications import Publications
from .request import EngineCounters, FailureKind, GenerationRequest, RequestFailed, SequenceDelta
from .roster import Roster
from .sequence import Status
from .totals import Census, Totals


def _nothing_saved(tokens: int, cached: int, loading: float) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
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
        self.max_running = max_running
        self.max_step_tokens = max_step_tokens
        self.max_length = min(max_model_len, cache.pool.total * cache.page_size)
        self.tiers = tiers or no_tiers(cache.page_size)
        if self.tiers.host.slots:
            cache.on_evict = self.tiers.evicted
        self.lent: Counter[int] = Counter()
        self._clock = clock
        self._root_key = root_key
        self._flight: _Flight | None = None
        self._totals = Totals()
        self._outbox = Outbox()
        self._groups = Groups(cache, self.max_length)
        self._roster = Roster(cache.page_size)
        self._tables = PageTables(cache, self.tiers)
        self._publications = Publications(cache, self._tables, self.tiers, self._outbox)
        self._endings = Endings(
            groups=self._groups,
            roster=self._roster,
            tables=self._tables,
            publications=self._publications,
            outbox=self._outbox,
            totals=self._totals,
        )
        self._outcomes = Outcomes(
            publications=self._publications,
            endings=self._endings,
            outbox=self._outbox,
            totals=self._totals,
        )
        self._preemption = Preemption(
            self._roster, self._tables, self._endings, self._totals, cache.page_size
        )
        self._admission = Admission(
            cache=cache,
            tables=self._tables,
            tiers=self.tiers,
            roster=self._roster,
            publications=self._publications,
            outbox=self._outbox,
            totals=self._totals,
            clock=clock,
            saved=saved,
            max_running=max_running,
            watermark_pages=watermark_pages,
        )

    # ---- requests ----------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return bool(self._groups) or self._flight is not None

    @property
    def idle(self) -> bool:
        """Nothing will be planned before something is released or submitted, or `next_deadline` has passed."""
        return self._flight is None and not self._roster.running and not self._roster.queued

    @property
    def held(self) -> int:
        """Sequences of requests that are held."""
        return self._roster.held

    @property
    def next_deadline(self) -> float | None:
        """When the next request may be overdue, by the scheduler's clock."""
        return self._groups.next_deadline

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
        refusal = self._groups.refusal(request)
        if refusal is not None:
            self._refuse(request, "bad_request", refusal)
            return False
        root_key = self._shared_root(request)
        try:
            entries = self._pending_entries(request, root_key)
        except PinsExhausted as error:
            self._refuse(request, "pins_exhausted", str(error))
            return False
        group = self._groups.open(request, root_key, entries, self._clock())
        if held:
            self._roster.hold(group)
        else:
            self._roster.queue(group)
        return True

    def _refuse(self, request: GenerationRequest, kind: FailureKind, message: str) -> None:
        self._outbox.failed.append(RequestFailed(request.request_id, kind, message))
        if request.request_id not in self._groups:
            self._outbox.ended.append(never_queued(request.request_id))

    def _shared_root(self, request: GenerationRequest) -> bytes | None:
        """Where in the cache a request reads and writes, None if it does neither."""
        policy = request.cache
        shares = (policy.read or policy.write) and self.cache.enabled
        return self._root_key(request.namespace, request.adapter) if shares else None

    def _pending_entries(self, request: GenerationRequest, root_key: bytes | None) -> PendingEntries | None:
        """Raises PinsExhausted."""
        if root_key is None or not request.cache.write or not request.cache.entries:
            return None
        return PendingEntries(self.cache, request, root_key)

    def release(self, request_id: str, *, waited: float = 0.0) -> bool:
        """Queue a request that was held, `waited` seconds of that for pages from disk. False, and nothing happens, if it has
        ended meanwhile."""
        group = self._groups.find(request_id)
        if group is None or not group.held:
            return False
        group.waited = waited
        self._roster.release(group)
        return True

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it, as its client wishes. Unknown and ended ones are ignored."""
        group = self._groups.find(request_id)
        if group is None:
            return
        for member in list(group.members):
            if index is None or member.index == index:
                self._totals.aborted += 1
                self._outbox.deltas.append(SequenceDelta(request_id, member.index, (), "abort"))
                self._endings.end(member)

    def fail_request(self, request_id: str, kind: FailureKind, message: str) -> None:
        """End what is left of a request with a failure. Unknown and ended ones are ignored."""
        group = self._groups.find(request_id)
        if group is not None:
            self._endings.fail(group, kind, message)

    def flush(self, scope: FlushScope | None = None, *, dry_run: bool = False) -> Flushed:
        """Let nobody find what fits a scope, by default anything: sequences that run go on, and publish nothing more of it."""
        flushed = self.cache.flush(scope, dry_run=dry_run)
        self.look_again()
        return flushed

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        """Lease all that the first choice of a request left in the cache that ended a moment ago. Too late is nothing."""
        self._publications.lease_tip(request_id, lease)

    def look_again(self) -> None:
        """What is promised of the cache has changed: there may be room now where there was none."""
        self._roster.look_again()

    def take_events(self) -> Events:
        """What happened since this was called last."""
        return self._outbox.take()

    # ---- a step ------------------------------------------------------------------------------------------------------

    def plan(self) -> Plan | None:
        """The next step, or None if there is nothing to compute now; with `has_work` it is worth asking again."""
        if self._flight is not None:
            raise RuntimeError("the plan in flight has to be committed or failed first")
        for group in self._groups.pop_overdue(self._clock()):
            self._endings.fail(group, "deadline", f"not finished within {group.request.deadline:g} s")
        had_room = self._preemption.grow()
        draft = self._new_draft()
        draft.go_on(self._roster.running.values())
        if self._roster.waiting and (had_room or not self._roster.running):
            self._admission.fill(draft, draft.for_newcomers())
        draft.catch_up()
        if not draft.rows:
            return None
        self._totals.steps += 1
        saves, loads = self.tiers.take()
        retired = self._endings.take_retired()
        plan = Plan(self._totals.steps, tuple(draft.rows), tuple(draft.copies), retired, saves, loads)
        self._flight = _Flight(plan, draft.members)
        return plan

    def _new_draft(self) -> Draft:
        budget = self.max_step_tokens
        return Draft(budget, little=budget // self.max_running)  # so much of all that run fits into one step

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
                self._endings.fail_row(member, row.count, outcome.error, outcome.fault)
                continue
            if member.status is Status.FINISHED:
                self._endings.release_late(member, row.count)
                continue
            member.computed += row.count
            if outcome.postponed:  # the position that was not sampled is computed once more: the same again
                member.computed -= 1
                member.group.account.computed += 1
            if member.computed >= member.due:
                self._publications.publish(member)
            if member.from_below:
                member.from_below = 0
                self.tiers.remember(member.cursor.node)
            if member.followers or member.leading is not None or row.count > 1:
                self._roster.advance(member)
            self._outcomes.take(member, row, outcome)
        self._totals.computed(computed)
        self._settle(saved=result.saved)

    def fail_step(self, plan: Plan, message: str) -> None:
        """The step in flight is lost: its requests fail, no others."""
        members = self._land(plan)
        for member in members:
            if member.status is not Status.FINISHED:
                self._endings.fail(member.group, "engine_error", message)
        for member in members:
            self._endings.lose_late(member)
        self._settle(saved=False)

    def _land(self, plan: Plan) -> list[Member]:
        if self._flight is None or self._flight.plan is not plan:
            raise ValueError("this plan is not in flight")
        members = self._flight.members
        for member in members:
            member.in_flight = False
        return members

    def _settle(self, *, saved: bool) -> None:
        """The step is over. With no request left, all pages are free or in the tree: the one check cheap enough for
        production."""
        self.tiers.settle(saved=saved)
        self._flight = None
        cache = self.cache
        if not self._groups and not self.lent and cache.pool.free + cache.tree_pages != cache.pool.total:
            self._totals.failed_checks += 1

    # ---- what is true ------------------------------------------------------------------------------------------------

    def counters(self) -> EngineCounters:
        """Totals and levels, in O(1)."""
        roster = self._roster
        return self._counted(len(roster.running), roster.queued + roster.held, self.cache.tree_pages)

    def census(self) -> Census:
        """The same and more, recounted: linear in everything. For operators and tests."""
        return self._census(self.cache.survey())

    def _census(self, tree: Survey) -> Census:
        private = set(self._held()) - tree.pages
        statuses = [member.status for member in self._groups.members()]
        counters = self._counted(
            statuses.count(Status.RUNNING), statuses.count(Status.WAITING), len(tree.pages)
        )
        return Census(counters, len(private), len(tree.pages), tree.tokens, tree.namespaces)

    def _counted(self, running: int, waiting: int, pages_tree: int) -> EngineCounters:
        return counted(
            self._totals, self.cache, self.tiers, running=running, waiting=waiting, pages_tree=pages_tree
        )

    def check(self) -> None:
        """Assert every invariant of the scheduler, its cache and its pool. Linear in everything."""
        self.cache.check(self._held())
        self.tiers.check()
        tree = self.cache.survey()
        assert self._census(tree).counters == self.counters(), "a counter is stale"
        members = list(self._groups.members())
        self._groups.check()
        self._roster.check(members)
        assert len(self._roster.running) <= self.max_running
        sharers = Counter(page for member in members for page in member.pages)
        for member in self._roster.running.values():
            self._check_running(member, tree.pages, sharers)
        self._check_reserved()

    def _check_running(self, member: Member, in_tree: set[int], sharers: Counter[int]) -> None:
        size = self.cache.page_size
        assert member.computed < len(member.tokens) <= max(member.limit, member.prompt_len)
        assert len(member.pages) * size >= member.computed
        assert member.cursor.depth <= member.computed // size, "published before it was computed"
        for page in member.pages[member.computed // size :]:
            assert page not in in_tree, "a page still written is in the tree"
            assert sharers[page] == 1, "a page still written is shared"

    def _check_reserved(self) -> None:
        landing = [] if self._flight is None else [member.group for member in self._flight.members]
        reserved: Counter[str] = Counter()
        for group in {*self._groups, *landing}:
            if group.entries is not None:
                reserved[group.tenant.name] += group.entries.reserved
        for account in self.cache.accounts:
            # An import that is under way has reserved some as well.
            assert account.reserved >= reserved[account.tenant], "room for pins is given away"

    def _held(self) -> Iterator[int]:
        """Every page once for each hold a sequence has on it, those only kept for the step in flight included, and what is
        lent."""
        yield from self.lent.elements()
        for member in self._groups.members():
            yield from _holds(member)
        if self._flight is not None:
            for member in self._flight.members:
                if member.status is Status.FINISHED:
                    yield from _holds(member)


def _holds(member: Member) -> Iterator[int]:
    yield from member.pages
    if member.copy_source is not None:
        yield member.copy_source

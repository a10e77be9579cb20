"""Answers questions about the cache. What changes in it goes through here or through a request, and nowhere else."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Generator

from cache.accounts import Account, Limits, PinsExhausted
from cache.entries import EntryView
from cache.flushing import Flushed, takes_whole_roots
from cache.prefix_cache import PrefixCache

from .account import evicted
from .calibration import Calibration
from .errors import BadRequest
from .page_moves import NotMoved, PageMoves
from .prepare import check_lease
from .request import (
    AskCache,
    AskEntry,
    CacheAnswer,
    CacheQuestion,
    CacheReport,
    EntryReport,
    EntryState,
    ExportPages,
    FailureKind,
    FlushCache,
    FlushReport,
    ImportPages,
    LimitsReport,
    LookUp,
    LookUpReport,
    SetLimits,
    TenantCache,
)
from .scheduler import Scheduler

ENTRIES_AT_A_TIME = 1024

SLICE = 0.002
"""Seconds that questions may take between two steps, beside those that are answered at once."""

Job = Generator[None, None, CacheAnswer]


class CacheDesk:
    """`root_key(namespace, adapter)` is the scheduler's, `moves` bring pages where they are wanted."""

    def __init__(
        self,
        scheduler: Scheduler,
        calibration: Calibration,
        root_key: Callable[[bytes, bytes], bytes],
        moves: PageMoves,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._cache: PrefixCache = scheduler.cache
        self._calibration = calibration
        self._root_key = root_key
        self._moves = moves
        self._clock = clock
        self._jobs: deque[Job] = deque()

    def answer(self, question: CacheQuestion) -> CacheAnswer | None:
        """None if it will be in the reports of `moves`, or what comes of `work`, when it is done."""
        answer: CacheAnswer | None = None
        match question:
            case ExportPages() | ImportPages():
                self._moves.transfer(question)
            case FlushCache():
                flush = self._flush(question)
                if takes_whole_roots(question.scope):
                    answer = _at_once(flush)
                else:
                    self._jobs.append(flush)
            case LookUp():
                answer = self._look_up(question)
            case AskEntry():
                answer = self._entry(question)
            case AskCache():
                self._jobs.append(self._report(question))
            case SetLimits():
                answer = self._set_limits(question)
        return answer

    def work(self, seconds: float | None = None) -> list[CacheAnswer]:
        """Go on for so long with what takes longer than there may be between two steps, by default `SLICE`; what is answered
        by that."""
        due = self._clock() + (SLICE if seconds is None else seconds)
        answers: list[CacheAnswer] = []
        while self._jobs:
            job = self._jobs.popleft()
            try:
                next(job)
                self._jobs.append(job)
            except StopIteration as end:
                answers.append(end.value)
            if self._clock() >= due:
                break
        return answers

    @property
    def busy(self) -> bool:
        """There is something to go on with."""
        return bool(self._jobs)

    def _flush(self, question: FlushCache) -> Job:
        scope, dry_run = question.scope, question.dry_run
        path = [] if scope.entry_id is None else self._cache.path_of(scope.entry_id)
        flushed = Flushed()
        if "device" in scope.tiers:
            flushed = yield from self._cache.flush_in_parts(scope, dry_run=dry_run)
        below = yield from self._moves.flush_in_parts(scope, flushed.nodes, path, dry_run=dry_run)
        self._scheduler.look_again()
        size = self._cache.page_size
        return FlushReport(
            query_id=question.query_id,
            pages={"device": flushed.pages, **below},
            tokens={"device": flushed.tokens, **{tier: pages * size for tier, pages in below.items()}},
            bytes={"device": flushed.pages * self._cache.page_bytes, **self._moves.bytes_in(below)},
            entries=flushed.entries,
            in_use=flushed.in_use,
            kept=flushed.kept,
        )

    def _look_up(self, question: LookUp) -> LookUpReport:
        root_key, prompt = self._root_key(question.namespace, question.adapter), question.prompt
        found = self._cache.look_up(root_key, prompt)
        host, disk = self._moves.look_up(root_key, found.chain, prompt, found.whole)
        # Where whole pages go on below, the part of a page that is here is of no use.
        device = found.whole if host or disk else found.tokens
        loading = self._moves.loading(host, disk)
        return LookUpReport(
            query_id=question.query_id,
            device=device,
            host=host,
            disk=disk,
            saved=self._calibration.saved(len(prompt), device + host + disk, loading),
            evicted=None if host or disk else evicted(found.gone),
        )

    def _entry(self, question: AskEntry) -> EntryReport:
        view = self._cache.entry(question.entry_id)
        kind: FailureKind | None = None
        error: str | None = None
        try:
            if question.drop:
                self._moves.drop_import(question.entry_id)
                view = self._cache.drop_entry(question.entry_id)
            elif question.lease is not None:
                check_lease(question.lease)
                view = self._cache.patch_entry(question.entry_id, question.lease)
            if question.to is not None and view is not None and not question.drop:
                self._moves.move(question.entry_id, question.to)
                view = self._cache.entry(question.entry_id)
        except PinsExhausted as refused:
            kind, error = "pins_exhausted", str(refused)
        except BadRequest as refused:
            kind, error = "bad_request", str(refused)
        except NotMoved as refused:
            kind, error = "unavailable", str(refused)
        self._scheduler.look_again()
        entry = None if view is None else self._state(view)
        return EntryReport(query_id=question.query_id, entry=entry, kind=kind, error=error)

    def _report(self, question: AskCache) -> Job:
        wanted = question.tenant
        held: Counter[str] = Counter()
        now = self._cache.now()
        for looked, entry in enumerate(list(self._cache.entries), 1):
            held[entry.account.tenant] += entry.is_held(now)
            if not looked % ENTRIES_AT_A_TIME:
                yield
        accounts = [account for account in self._cache.accounts if wanted in (None, account.tenant)]
        below = self._moves.tenants()
        tenants = [
            self._tenant(account, held[account.tenant])
            for account in accounts
            if account.pages or account.tenant in below
        ]
        strangers = below - {account.tenant for account in accounts}
        tenants += [self._stranger(tenant) for tenant in sorted(strangers) if wanted in (None, tenant)]
        return CacheReport(query_id=question.query_id, tenants=tuple(tenants))

    def _set_limits(self, question: SetLimits) -> LimitsReport:
        try:
            self._cache.accounts.change(Limits(question.tenants, question.others))
        except ValueError as refused:
            return LimitsReport(question.query_id, str(refused))
        self._moves.limits_changed()
        self._scheduler.look_again()
        return LimitsReport(question.query_id)

    def _tenant(self, account: Account, held: int) -> TenantCache:
        return TenantCache(
            tenant=account.tenant,
            bytes={
                "device": account.pages * self._cache.page_bytes,
                **self._moves.bytes_of(account.tenant),
            },
            entries=held,
            pinned_pages=account.pinned,
            evictions=dict(account.evictions),
            broken_leases=account.broken_leases,
        )

    def _stranger(self, tenant: str) -> TenantCache:
        """Who has pages on disk from before this engine started, and nothing since."""
        return TenantCache(
            tenant=tenant,
            bytes={"device": 0, **self._moves.bytes_of(tenant)},
            pinned_pages=0,
            evictions={},
            broken_leases=0,
        )

    def _state(self, view: EntryView) -> EntryState:
        host, disk = self._moves.tokens_of(view)
        status, cause = view.status, view.cause
        if status == "demoted" and view.tokens - view.device - host - disk >= self._cache.page_size:
            status, cause = "broken", "lost"
        return EntryState(
            entry_id=view.entry_id,
            tenant=view.tenant,
            tokens=view.tokens,
            device=view.device,
            host=host,
            disk=disk,
            lease=view.lease,
            status=status,
            expires_in=view.expires_in,
            hits=view.hits,
            idle=view.idle,
            cause=cause,
        )


def _at_once(job: Job) -> CacheAnswer:
    """The answer of one that takes no time."""
    try:
        next(job)
    except StopIteration as end:
        answer: CacheAnswer = end.value
        return answer
    raise AssertionError("what was to be answered at once has only begun")

"""Answers questions about the cache. What changes in it goes through here or through a request, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

from cache.accounts import Account, PinsExhausted
from cache.entries import EntryView
from cache.prefix_cache import PrefixCache

from .account import evicted
from .calibration import Calibration
from .errors import BadRequest
from .prepare import check_lease
from .request import (
    AskCache,
    AskEntry,
    CacheAnswer,
    CacheQuestion,
    CacheReport,
    EntryReport,
    EntryState,
    FailureKind,
    FlushCache,
    FlushReport,
    LookUp,
    LookUpReport,
    TenantCache,
    TransferReport,
)
from .scheduler import Scheduler


class CacheDesk:
    """`root_key(namespace, adapter)` is the scheduler's."""

    def __init__(
        self, scheduler: Scheduler, calibration: Calibration, root_key: Callable[[bytes, bytes], bytes]
    ) -> None:
        self._scheduler = scheduler
        self._cache: PrefixCache = scheduler.cache
        self._calibration = calibration
        self._root_key = root_key

    def answer(self, question: CacheQuestion) -> CacheAnswer:
        match question:
            case FlushCache():
                return self._flush(question)
            case LookUp():
                return self._look_up(question)
            case AskEntry():
                return self._entry(question)
            case AskCache():
                return self._report(question)
            case _:
                return TransferReport(
                    query_id=question.query_id, kind="bad_request", error="pages are not transferred here"
                )

    def _flush(self, question: FlushCache) -> FlushReport:
        flushed = self._scheduler.flush(question.scope, dry_run=question.dry_run)
        return FlushReport(
            query_id=question.query_id,
            pages=flushed.pages,
            tokens=flushed.tokens,
            entries=flushed.entries,
            in_use=flushed.in_use,
            kept=flushed.kept,
            bytes={"device": flushed.pages * self._cache.page_bytes},
        )

    def _look_up(self, question: LookUp) -> LookUpReport:
        found = self._cache.look_up(self._root_key(question.namespace, question.adapter), question.prompt)
        return LookUpReport(
            query_id=question.query_id,
            device=found.tokens,
            saved=self._calibration.saved(len(question.prompt), found.tokens),
            evicted=evicted(found.gone),
        )

    def _entry(self, question: AskEntry) -> EntryReport:
        view = self._cache.entry(question.entry_id)
        kind: FailureKind | None = None
        error: str | None = None
        try:
            if question.drop:
                view = self._cache.drop_entry(question.entry_id)
            elif question.lease is not None:
                check_lease(question.lease)
                view = self._cache.patch_entry(question.entry_id, question.lease)
        except PinsExhausted as refused:
            kind, error = "pins_exhausted", str(refused)
        except BadRequest as refused:
            kind, error = "bad_request", str(refused)
        self._scheduler.look_again()
        entry = None if view is None else _entry_state(view)
        return EntryReport(query_id=question.query_id, entry=entry, kind=kind, error=error)

    def _report(self, question: AskCache) -> CacheReport:
        wanted = question.tenant
        accounts = [account for account in self._cache.accounts if wanted in (None, account.tenant)]
        return CacheReport(
            query_id=question.query_id,
            tenants=tuple(self._tenant(account) for account in accounts if account.pages),
            entries=tuple(_entry_state(view) for view in self._cache.all_entries(wanted)),
        )

    def _tenant(self, account: Account) -> TenantCache:
        return TenantCache(
            tenant=account.tenant,
            bytes={"device": account.pages * self._cache.page_bytes},
            pinned_pages=account.pinned,
            evictions=dict(account.evictions),
            broken_leases=account.broken_leases,
        )


def _entry_state(view: EntryView) -> EntryState:
    return EntryState(
        entry_id=view.entry_id,
        tenant=view.tenant,
        tokens=view.tokens,
        device=view.device,
        host=0,
        disk=0,
        lease=view.lease,
        status=view.status,
        expires_in=view.expires_in,
        hits=view.hits,
        idle=view.idle,
        cause=view.cause,
    )

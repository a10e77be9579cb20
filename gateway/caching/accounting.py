"""What the cache did for whom: tokens by where they came from, device time saved, and why prompts missed.

Counted per tenant, and within a tenant per `prompt_cache_key` and per cache object. Clients make up as many keys as they
like, so only those used most are kept apart; what is no longer kept apart is still in the sums.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
from msgspec import structs

from engine.request import RequestEnded

from ..desk import Submission
from .reasons import Finding
from .report import finding_of
from .settled import Settled, settle

KEPT = 100
"""Keys and objects of a tenant that are told apart at least; twice as many at most, before the least used are summed up."""

MOST_REASONS = 64
"""More different words than there are would be a mistake of ours, and must not become as many series."""
OTHER_REASON = "other"


@dataclass(slots=True)
class Counts:
    """Sums over requests that have ended. Tokens of prompts are `computed` or came from a tier; `written` of the prompt's are
    new in the cache. `saved` is seconds of the device's time. `reasons` counts prompts by why so much of them was found."""

    requests: int = 0
    unfinished: int = 0
    computed: int = 0
    device: int = 0
    host: int = 0
    disk: int = 0
    written: int = 0
    completion: int = 0
    saved: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        self.requests += other.requests
        self.unfinished += other.unfinished
        self.computed += other.computed
        self.device += other.device
        self.host += other.host
        self.disk += other.disk
        self.written += other.written
        self.completion += other.completion
        self.saved += other.saved
        for reason, count in other.reasons.items():
            known = reason in self.reasons or len(self.reasons) < MOST_REASONS
            self.reasons[reason if known else OTHER_REASON] += count

    @property
    def prompt(self) -> int:
        return self.computed + self.device + self.host + self.disk


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts as a client sees them. `prompt_tokens` is the sum of `tokens`, by where they came from; `reasons` counts prompts by
    why so much of them was found."""

    requests: int
    unfinished_requests: int
    prompt_tokens: int
    tokens: dict[str, int]
    written_tokens: int
    completion_tokens: int
    saved_seconds: float
    reasons: dict[str, int]


class Named(Usage, frozen=True, kw_only=True):
    """Those of one `prompt_cache_key`, or one cache object."""

    name: str


class TenantStats(Usage, frozen=True, kw_only=True):
    """`other_keys` sums up the keys that are not listed, and what listed ones did before they were."""

    tenant: str
    keys: list[Named]
    other_keys: Usage
    objects: list[Named]
    other_objects: Usage


class Most:
    """Counts by name, for the names used most: the sum of all is exact, and there are never more than twice `kept`."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._by_name: dict[str, Counts] = {}
        self.other = Counts()

    def add(self, name: str, counts: Counts) -> None:
        held = self._by_name.setdefault(name, Counts())
        held.add(counts)
        if len(self._by_name) > 2 * self._kept:
            self._sum_up()

    def get(self, name: str) -> Counts:
        return self._by_name.get(name) or Counts()

    def most(self) -> list[tuple[str, Counts]]:
        """By requests, the most first."""
        return sorted(self._by_name.items(), key=lambda item: (-item[1].requests, item[0]))

    def _sum_up(self) -> None:
        for name, counts in self.most()[self._kept :]:
            self.other.add(counts)
            del self._by_name[name]


class _Tenant:
    def __init__(self) -> None:
        self.counts = Counts()
        self.keys = Most()
        self.objects = Most()


class Accounting:
    """A listener of the desk's. There are as many tenants as the operator has made keys for."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self.everybody = Counts()

    def submitted(self, submission: Submission) -> None:
        """Nothing is known yet."""

    def started(self, submission: Submission) -> None:
        """Why the prompt was found so far is counted with all the rest: others may still be finding it out."""

    def ended(self, submission: Submission, account: RequestEnded | None) -> None:
        counts = _counts(settle(submission.generation, account), finding_of(submission.generation))
        tenant = self._tenants.setdefault(submission.caller.tenant.id, _Tenant())
        self.everybody.add(counts)
        tenant.counts.add(counts)
        if submission.job.cache_key is not None:
            tenant.keys.add(submission.job.cache_key, counts)
        if submission.job.cache_id is not None:
            tenant.objects.add(submission.job.cache_id, counts)

    def stats(self, tenant: str | None = None) -> list[TenantStats]:
        """Of one tenant, zeros if it has not been here yet, or of all that have."""
        if tenant is not None:
            return [_stats(tenant, self._tenants.get(tenant) or _Tenant())]
        return [_stats(name, held) for name, held in sorted(self._tenants.items())]

    def of_object(self, tenant: str, object_id: str) -> Usage:
        """Of the requests that named a cache object: zeros if it is not told apart (any more)."""
        held = self._tenants.get(tenant)
        return _usage(Counts() if held is None else held.objects.get(object_id))

    def totals(self) -> list[tuple[str, Counts]]:
        """By tenant."""
        return [(name, held.counts) for name, held in sorted(self._tenants.items())]


def _counts(settled: Settled, finding: Finding | None) -> Counts:
    return Counts(
        requests=1,
        unfinished=settled.status != "ok",
        computed=settled.computed,
        device=settled.device,
        host=settled.host,
        disk=settled.disk,
        written=settled.written,
        completion=settled.completion,
        saved=settled.saved,
        reasons=Counter() if finding is None else Counter((finding.reason,)),
    )


def _stats(name: str, tenant: _Tenant) -> TenantStats:
    return TenantStats(
        tenant=name,
        keys=_named(tenant.keys),
        other_keys=_usage(tenant.keys.other),
        objects=_named(tenant.objects),
        other_objects=_usage(tenant.objects.other),
        **structs.asdict(_usage(tenant.counts)),
    )


def _named(most: Most) -> list[Named]:
    return [Named(name=name, **structs.asdict(_usage(counts))) for name, counts in most.most()]


def _usage(counts: Counts) -> Usage:
    return Usage(
        requests=counts.requests,
        unfinished_requests=counts.unfinished,
        prompt_tokens=counts.prompt,
        tokens={
            "computed": counts.computed,
            "device": counts.device,
            "host": counts.host,
            "disk": counts.disk,
        },
        written_tokens=counts.written,
        completion_tokens=counts.completion,
        saved_seconds=round(counts.saved, 6),
        reasons=dict(counts.reasons.most_common()),
    )

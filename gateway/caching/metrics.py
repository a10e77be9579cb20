"""What Prometheus scrapes of the cache: `headwater_cache_*`.

Labels come from fixed sets, but for the names of tenants, which only the operator gets to see (`TenantMetrics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, get_args

import msgspec
from msgspec import structs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache.lease import TIERS, EvictionCause
from engine.client import EngineClient
from engine.request import CacheCounters, RequestEnded, TierCounters

from ..desk import Submission
from .accounting import Accounting
from .ledger import Ledger

PREFIX = "headwater_cache_"
SOURCES = ("computed", *TIERS)

StructT = TypeVar("StructT", bound=msgspec.Struct)

_LEVELS = frozenset({"bytes", "budget", "entries", "pinned_pages"})


class LastingCounters:
    """The engine's totals, going on where they were when it is started again. A listener of the desk's, since it has to
    look often: what an engine counted after the last look before its end is lost."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._past = CacheCounters()
        self._restarts = engine.health.restarts
        self._steps = 0
        self._last = CacheCounters()

    def read(self) -> CacheCounters:
        """Totals of all engines so far, levels of the one that runs."""
        self._look()
        return _sum(self._past, self._last)

    def submitted(self, submission: Submission) -> None:
        """Its tokens are counted by the engine later."""

    def started(self, submission: Submission) -> None:
        """Likewise."""

    def ended(self, submission: Submission, account: RequestEnded | None) -> None:
        self._look()

    def _look(self) -> None:
        counters, restarts = self._engine.counters, self._engine.health.restarts
        if restarts != self._restarts or counters.steps < self._steps:
            self._past = _sum(self._past, self._last)
        self._restarts, self._steps, self._last = restarts, counters.steps, counters.cache


class CacheMetrics(Collector):
    """`ledger` None: there is none."""

    def __init__(
        self, model: str, counters: LastingCounters, accounting: Accounting, ledger: Ledger | None
    ) -> None:
        self._model = model
        self._counters = counters
        self._accounting = accounting
        self._ledger = ledger

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        counters = self._counters.read()
        tiers: dict[str, TierCounters] = {tier: getattr(counters, tier) for tier in TIERS}
        found = {tier: each.hit_tokens for tier, each in tiers.items()}
        computed = max(counters.looked_up_tokens - sum(found.values()), 0)
        yield self._total(
            "prompt_tokens",
            "Prompt tokens by where their KV came from.",
            "source",
            {"computed": computed, **found},
        )
        yield self._total(
            "prompts",
            "Prompts by why so much of them was found.",
            "reason",
            self._accounting.everybody.reasons,
        )
        for name, meaning, value in (
            ("written_tokens", "Tokens that were new in the cache.", counters.written_tokens),
            ("recomputed_tokens", "Tokens computed again after a preemption.", counters.recomputed_tokens),
            ("saved_seconds", "Device time that hits saved.", counters.saved),
            ("loading_seconds", "Time spent on bringing pages up.", counters.loading),
            (
                "broken_leases",
                "Entries that lost pages before the time they were promised.",
                counters.broken_leases,
            ),
            (
                "broken_pauses",
                "Conversations that lost pages while they waited for tools.",
                counters.broken_pauses,
            ),
            ("followers", "Requests that waited for another to compute their prefix.", counters.followers),
        ):
            yield self._total(name, meaning, None, {"": value})
        causes = {cause: counters.evictions.get(cause, 0) for cause in get_args(EvictionCause)}
        yield self._total("evicted_pages", "Pages that went, by cause.", "cause", causes)
        yield from self._tiers(tiers)
        yield self._level("entries", "Paths that have a lease.", None, {"": counters.entries})
        yield self._level("pinned_pages", "Pages pinned hard.", None, {"": counters.pinned_pages})
        if self._ledger is not None:
            lost = CounterMetricFamily(
                "headwater_ledger_dropped_lines",
                "Lines of the ledger that were lost.",
                labels=["model_name"],
            )
            lost.add_metric([self._model], self._ledger.dropped)
            yield lost

    def _tiers(self, tiers: dict[str, TierCounters]) -> Iterator[Metric]:
        for field, name, meaning in (
            ("bytes", "bytes", "Bytes of cached pages."),
            ("budget", "budget_bytes", "Bytes that they may take."),
        ):
            yield self._level(
                name, meaning, "tier", {tier: getattr(each, field) for tier, each in tiers.items()}
            )
        for field, name, meaning in (
            ("stored", "stored_pages", "Pages that a tier took in."),
            ("evicted", "tier_evicted_pages", "Pages that a tier gave up."),
            ("failed", "failed_pages", "Pages that a tier could not give back."),
        ):
            yield self._total(
                name, meaning, "tier", {tier: getattr(each, field) for tier, each in tiers.items()}
            )

    def _total(self, name: str, meaning: str, label: str | None, values: Mapping[str, float]) -> Metric:
        return self._filled(CounterMetricFamily, name, meaning, label, values)

    def _level(self, name: str, meaning: str, label: str | None, values: Mapping[str, float]) -> Metric:
        return self._filled(GaugeMetricFamily, name, meaning, label, values)

    def _filled(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        meaning: str,
        label: str | None,
        values: Mapping[str, float],
    ) -> Metric:
        """With a sample for each value of the label, or one where there is none."""
        labels = ["model_name"] if label is None else ["model_name", label]
        family = kind(PREFIX + name, meaning, labels=labels)
        for value, count in values.items():
            family.add_metric([self._model, value][: len(labels)], count)
        return family


class TenantMetrics(Collector):
    """What is said of tenants by name. There are as many as the operator has made keys for, so clients add no series."""

    def __init__(self, model: str, accounting: Accounting) -> None:
        self._model = model
        self._accounting = accounting

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        tokens = CounterMetricFamily(
            PREFIX + "tenant_prompt_tokens",
            "Prompt tokens of ended requests by where their KV came from.",
            labels=["model_name", "tenant", "source"],
        )
        plain = {
            name: CounterMetricFamily(f"{PREFIX}tenant_{name}", meaning, labels=["model_name", "tenant"])
            for name, meaning in (
                ("requests", "Requests that have ended."),
                ("written_tokens", "Tokens that were new in the cache."),
                ("saved_seconds", "Device time that hits saved."),
            )
        }
        for tenant, counts in self._accounting.totals():
            for source in SOURCES:
                tokens.add_metric([self._model, tenant, source], getattr(counts, source))
            for name, value in (
                ("requests", counts.requests),
                ("written_tokens", counts.written),
                ("saved_seconds", counts.saved),
            ):
                plain[name].add_metric([self._model, tenant], value)
        yield tokens
        yield from plain.values()


def _sum(one: StructT, other: StructT) -> StructT:
    """Totals added up, levels as in the `other`."""
    added: dict[str, object] = {}
    for name, value in structs.asdict(other).items():
        before = getattr(one, name)
        if name in _LEVELS:
            added[name] = value
        elif isinstance(value, msgspec.Struct):
            added[name] = _sum(before, value)
        elif isinstance(value, dict):
            added[name] = {key: before.get(key, 0) + value.get(key, 0) for key in {**before, **value}}
        else:
            added[name] = before + value
    return structs.replace(other, **added)

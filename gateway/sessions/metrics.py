"""How the store is doing, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from cache.bulletin import Bulletin
from cache.redis_link import Fault, RedisLink

from ..metrics import Histogram
from .sessions import Sessions

_BOUNDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


class StoreLatency(Histogram):
    """Seconds that replies of Redis took."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_BOUNDS)


class StoreMetrics(Collector):
    """Without a `link` the store is in this process or in files: what is said of Redis is left out."""

    def __init__(
        self,
        sessions: Sessions,
        link: RedisLink | None,
        latency: StoreLatency,
        bulletin: Bulletin | None = None,
    ) -> None:
        self._sessions = sessions
        self._link = link
        self._latency = latency
        self._bulletin = bulletin

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        counts, journal = self._sessions.counts, self._sessions.journal
        yield GaugeMetricFamily(
            "headwater_store_journal_length", "Changes that the store does not have yet.", len(journal)
        )
        yield GaugeMetricFamily("headwater_store_journal_bytes", "Memory these take.", journal.nbytes)
        yield CounterMetricFamily(
            "headwater_store_lost_records", "Records that could not be kept.", counts.lost
        )
        yield CounterMetricFamily(
            "headwater_store_conflicts",
            "Changes of the journal that somebody else's had come before.",
            counts.conflicts,
        )
        if self._link is not None:
            yield from self._redis(self._link)

    def _redis(self, link: RedisLink) -> Iterable[Metric]:
        yield GaugeMetricFamily("headwater_store_up", "1 while Redis is asked.", int(not link.is_open))
        hears = self._bulletin is not None and self._bulletin.up
        yield GaugeMetricFamily("headwater_store_bulletin_up", "1 while notes of others arrive.", int(hears))
        yield CounterMetricFamily(
            "headwater_store_breaker_opens", "Times Redis was given up for a while.", link.counts.opened
        )
        errors = CounterMetricFamily(
            "headwater_store_errors", "Commands that failed, by what was the matter.", labels=["kind"]
        )
        for fault in get_args(Fault):
            errors.add_metric([fault], link.counts.faults[fault])
        yield errors
        latency = HistogramMetricFamily("headwater_store_latency_seconds", "Time to Redis and back.")
        latency.add_metric([], buckets=self._latency.buckets(), sum_value=self._latency.sum)
        yield latency

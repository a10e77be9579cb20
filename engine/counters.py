"""The sums of what an engine has done, together with the levels of now, as they are told."""

from __future__ import annotations

from cache.prefix_cache import PrefixCache

from .lower_tiers import LowerTiers
from .request import CacheCounters, EngineCounters, TierCounters
from .totals import Totals


def counted(
    totals: Totals,
    cache: PrefixCache,
    tiers: LowerTiers,
    *,
    running: int,
    waiting: int,
    pages_tree: int,
) -> EngineCounters:
    """O(1)."""
    return EngineCounters(
        steps=totals.steps,
        running=running,
        waiting=waiting,
        pages_total=cache.pool.total,
        pages_free=cache.pool.free,
        pages_tree=pages_tree,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        computed_tokens=totals.computed_tokens,
        generated_tokens=totals.generated_tokens,
        forced_tokens=totals.forced_tokens,
        preemptions=totals.preemptions,
        evicted_pages=cache.evicted,
        aborted=totals.aborted,
        failed_checks=totals.failed_checks,
        step_sizes=tuple(totals.step_sizes),
        cache=_of_cache(totals, cache, tiers),
    )


def _of_cache(totals: Totals, cache: PrefixCache, tiers: LowerTiers) -> CacheCounters:
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
        host=tiers.host_counters(cache.page_bytes, totals.host_tokens),
        disk=tiers.disk_counters(totals.disk_tokens),
    )

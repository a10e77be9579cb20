"""Sums are exact whoever is told apart, and nobody's part is shown to another."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from engine.request import CacheCounters, EngineCounters, TierCounters
from gateway.caching.accounting import MOST_REASONS, OTHER_REASON, Accounting, Counts, Most
from gateway.caching.metrics import LastingCounters
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=200), st.integers(1, 4))
def test_what_is_summed_up_is_still_in_the_sum(uses: list[tuple[int, int]], kept: int) -> None:
    most, total = Most(kept), Counts()
    for name, tokens in uses:
        counts = Counts(
            *(tokens + i for i in range(8)), saved=tokens / 2, reasons=Counter([f"word {tokens}"])
        )
        most.add(str(name), counts)
        total.add(counts)
        assert len(most.most()) <= 2 * kept
    added = Counts()
    for _, counts in most.most():
        added.add(counts)
    added.add(most.other)
    assert [getattr(added, field.name) for field in fields(added)] == [
        getattr(total, field.name) for field in fields(total)
    ]


def test_what_is_used_most_is_told_apart_among_many() -> None:
    most = Most(10)
    names = ["often"] * 500 + [f"once {i}" for i in range(2000)]
    random.Random(7).shuffle(names)
    for name in names:
        most.add(name, Counts(requests=1))
    name, counts = most.most()[0]
    assert name == "often"
    assert counts.requests > 400


def test_words_for_reasons_are_bounded() -> None:
    counts = Counts()
    for i in range(200):
        counts.add(Counts(reasons=Counter([f"word {i}"])))
    assert len(counts.reasons) == MOST_REASONS + 1
    assert counts.reasons[OTHER_REASON] == 200 - MOST_REASONS


# -- the engine's totals -----------------------------------------------------------------------------------------------


class Lives:
    """An engine that is only counters."""

    def __init__(self) -> None:
        self.counters = EngineCounters()
        self.restarts = 0

    @property
    def health(self) -> Lives:
        return self


def cache(tokens: int, saved: float = 0.0, level: int = 0) -> CacheCounters:
    tier = TierCounters(bytes=level, hit_tokens=tokens)
    return CacheCounters(
        written_tokens=tokens, saved=saved, evictions={"pressure": tokens}, entries=level, device=tier
    )


@given(st.lists(st.sampled_from(["step", "look", "die"]), max_size=40))
def test_totals_go_on_when_an_engine_starts_again(events: list[str]) -> None:
    """They never fall, and lack at most what was counted between the last look and the end of an engine."""
    engine = Lives()
    lasting = LastingCounters(engine)  # type: ignore[arg-type]
    truth = unseen = last = 0
    down = False
    for event in [*events, "look"]:
        if event == "step":
            engine.restarts, down = engine.restarts + down, False
            steps = engine.counters.steps + 1
            engine.counters = EngineCounters(steps=steps, cache=cache(steps, steps / 4, level=steps))
            truth, unseen = truth + 1, unseen + 1
        elif event == "look":
            seen = lasting.read()
            unseen = 0 if engine.counters.steps else unseen
            assert last <= seen.written_tokens <= truth
            last = seen.written_tokens
            assert seen.device.hit_tokens == last
            assert seen.evictions.get("pressure", 0) == last
            assert seen.saved == last / 4
            assert seen.entries == seen.device.bytes == engine.counters.cache.entries
        else:
            truth -= unseen  # nobody knows of those
            unseen = 0
            engine.counters, down = EngineCounters(), True
    assert last == truth


# -- a server ----------------------------------------------------------------------------------------------------------


async def scrape(gateway: Gateway, key: str) -> tuple[dict[str, float], str]:
    headers = {"Authorization": f"Bearer {key}"}
    async with gateway.client.get(gateway.url + "/metrics", headers=headers) as response:
        text = await response.text()
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "model_name"]
            samples[sample.name + "".join(f"[{value}]" for value in labels)] = sample.value
    return samples, text


async def ask(gateway: Gateway, key: str, **more: Any) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    status, _ = await gateway.post("/v1/chat/completions", {**CHAT, **more}, headers=headers)
    assert status == 200


async def test_each_tenant_has_its_own_numbers_and_only_the_operator_sees_names(start: Start) -> None:
    engine = FakeEngine()
    # what no real cache would say of equal prompts is not to be explained
    limits = {"explain_bytes": 0}
    gateway = await start(engine, http={"api_keys": ("sk-a", "sk-b"), "admin_key": "sk-admin"}, limits=limits)
    await ask(gateway, "sk-a", prompt_cache_key="one")
    engine.cached_tokens = 4
    await ask(gateway, "sk-b", prompt_cache_key="one")
    await ask(gateway, "sk-b", prompt_cache_key="two")
    await gateway.at_rest()
    prompt = len(engine.requests[0].prompt)
    a, b = engine.requests[0].tenant, engine.requests[1].tenant
    seen, text = await scrape(gateway, "sk-a")
    assert a not in text
    assert b not in text
    assert seen["headwater_cache_prompts_total[cold]"] == 1
    assert seen["headwater_cache_prompts_total[partial_hit]"] == 2
    seen, text = await scrape(gateway, "sk-admin")
    assert seen[f"headwater_cache_tenant_prompt_tokens_total[computed][{a}]"] == prompt
    assert seen[f"headwater_cache_tenant_prompt_tokens_total[device][{a}]"] == 0
    assert seen[f"headwater_cache_tenant_prompt_tokens_total[computed][{b}]"] == 2 * (prompt - 4)
    assert seen[f"headwater_cache_tenant_prompt_tokens_total[device][{b}]"] == 8
    assert seen[f"headwater_cache_tenant_requests_total[{b}]"] == 2
    assert text.count("# EOF") == 0


async def test_metrics_of_the_cache_are_the_engines(start: Start) -> None:
    engine = FakeEngine()
    gateway = await start(engine)
    engine.cache_counters = structs.replace(
        cache(7, 0.5, level=3),
        looked_up_tokens=20,
        pinned_pages=2,
        broken_leases=4,
        followers=5,
        host=TierCounters(bytes=64, budget=128, hit_tokens=6, stored=1, evicted=2, failed=3),
    )
    seen, _ = await scrape(gateway, "any")
    for name, value in {
        "prompt_tokens_total[computed]": 7,
        "prompt_tokens_total[device]": 7,
        "prompt_tokens_total[host]": 6,
        "prompt_tokens_total[disk]": 0,
        "written_tokens_total": 7,
        "saved_seconds_total": 0.5,
        "evicted_pages_total[pressure]": 7,
        "evicted_pages_total[flushed]": 0,
        "broken_leases_total": 4,
        "followers_total": 5,
        "bytes[device]": 3,
        "bytes[host]": 64,
        "budget_bytes[host]": 128,
        "stored_pages_total[host]": 1,
        "tier_evicted_pages_total[host]": 2,
        "failed_pages_total[host]": 3,
        "entries": 3,
        "pinned_pages": 2,
    }.items():
        assert seen["headwater_cache_" + name] == value, name
    assert "headwater_ledger_dropped_lines_total" not in seen


async def test_statistics_of_a_tenant() -> None:
    accounting = Accounting()
    (empty,) = accounting.stats("a")
    assert (empty.requests, empty.prompt_tokens, empty.keys) == (0, 0, [])
    assert accounting.stats() == []
    await asyncio.sleep(0)

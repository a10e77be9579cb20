"""What is pinned comes back after the engine was started again: behind everybody else, and nobody is told otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from engine.errors import EngineDied
from gateway.caching import rewarming
from tests.gateway.live import MODEL, Gateway

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "system", "content": "You are kind."}]}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewarming, "INTERVAL", 0.005)


async def make(gateway: Gateway, **fields: Any) -> str:
    status, made = await gateway.post("/v1/caches", {**BODY, **fields})
    assert status == 200, made
    return str(made["id"])


async def status_of(gateway: Gateway, name: str) -> str:
    status, found = await gateway.get(f"/v1/caches/{name}")
    assert status == 200
    return str(found["status"])


async def becomes(gateway: Gateway, name: str, wanted: str) -> None:
    async with asyncio.timeout(5.0):
        while await status_of(gateway, name) != wanted:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.005)


async def restart(gateway: Gateway) -> None:
    """Another engine, that knows nothing."""
    gateway.engine.status = "restarting"
    gateway.engine.entries.clear()
    gateway.engine.requests.clear()
    gateway.engine.restarts += 1
    await asyncio.sleep(0.02)
    gateway.engine.status = "ready"


async def test_pinned_caches_come_back_one_by_one_behind_all_others(gateway: Gateway) -> None:
    pinned = {
        name: await make(gateway, name=name, pin=pin, priority=priority)
        for name, pin, priority in (("low", "hard", 10), ("high", "soft", 90))
    }
    plain = await make(gateway, ttl="30m")
    gateway.engine.prefill_delay = 0.1
    await restart(gateway)
    await becomes(gateway, "high", "warming")
    assert await status_of(gateway, "low") == "warming"
    assert await status_of(gateway, plain) == "cold", "nobody promised more"
    await becomes(gateway, "high", "active")
    assert await status_of(gateway, "low") == "warming"
    await becomes(gateway, "low", "active")
    asked = [(request.cache.entries[0].entry_id, request.priority) for request in gateway.engine.requests]
    assert asked == [(pinned["high"], rewarming.LAST), (pinned["low"], rewarming.LAST)]
    await asyncio.sleep(0.05)
    assert len(gateway.engine.requests) == 2, "once is enough"


async def test_what_has_ended_or_was_deleted_meanwhile_is_left_alone(gateway: Gateway) -> None:
    names = [await make(gateway, pin="soft", priority=priority) for priority in (90, 50)]
    gateway.engine.prefill_delay = 0.1
    await restart(gateway)
    await becomes(gateway, names[1], "warming")
    async with gateway.client.delete(f"{gateway.url}/v1/caches/{names[1]}") as response:
        assert response.status == 200
    await becomes(gateway, names[0], "active")
    await gateway.at_rest()
    await asyncio.sleep(0.05)
    assert [request.cache.entries[0].entry_id for request in gateway.engine.requests] == names[:1]


async def test_one_that_cannot_come_back_keeps_no_other_waiting(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = [await make(gateway, pin="soft", priority=priority) for priority in (90, 50)]
    gateway.engine.keeps_entries = False
    await restart(gateway)
    await becomes(gateway, second, "cold")
    assert len(gateway.engine.requests) == 2
    assert await status_of(gateway, first) == "cold"
    assert caplog.text.count("the cache did not keep it") == 2


async def test_a_restart_in_between_begins_anew(gateway: Gateway) -> None:
    name = await make(gateway, pin="soft")
    gateway.engine.keeps_entries, gateway.engine.fail_after = False, 0
    gateway.engine.failure = EngineDied("the engine ended while it computed this")
    await restart(gateway)
    await becomes(gateway, name, "warming")
    async with asyncio.timeout(5.0):
        while len(gateway.engine.requests) < 3:  # noqa: ASYNC110 - it tries again and again
            await asyncio.sleep(0.005)
    gateway.engine.keeps_entries, gateway.engine.fail_after = True, None
    await restart(gateway)
    await becomes(gateway, name, "active")


async def test_a_miss_before_it_is_back_is_the_restarts(gateway: Gateway) -> None:
    name = await make(gateway, pin="soft")
    gateway.engine.prefill_delay = 0.3
    await restart(gateway)
    await becomes(gateway, name, "warming")
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "cache": {"id": name},
    }
    status, answer = await gateway.post("/v1/chat/completions", chat)
    assert (status, answer["x_cache"]["reason"]) == (200, "restarted")
    status, why = await gateway.post("/v1/caches/explain", {"response_id": answer["id"]})
    assert (status, why["reason"]) == (200, "restarted")
    await becomes(gateway, name, "active")
    status, answer = await gateway.post(
        "/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": "other"}]}
    )
    assert answer["x_cache"]["reason"] != "restarted", "this engine has had it"


async def test_an_entry_that_lost_pages_is_warming_too(gateway: Gateway) -> None:
    name = await make(gateway, pin="soft")
    gateway.engine.prefill_delay = 0.2
    await restart(gateway)
    await becomes(gateway, name, "warming")
    await becomes(gateway, name, "active")
    entry = gateway.engine.entries[name]
    gateway.engine.entries[name] = structs.replace(entry, device=0, cause="pressure")
    assert await status_of(gateway, name) == "broken", "not any more"

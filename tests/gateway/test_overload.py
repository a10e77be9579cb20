"""A full queue says so at once, and to the right party."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.errors import RequestFailure
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start

CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def stuck() -> FakeEngine:
    engine = FakeEngine()
    engine.prefill_delay = 60.0
    return engine


async def fill(
    gateway: Gateway, count: int, headers: dict[str, str] | None = None
) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(gateway.post(CHAT, BODY, headers=headers or {})) for _ in range(count)]
    async with asyncio.timeout(5):
        while gateway.engine.running < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return tasks


async def let_go(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_full_server_is_503(start: Start) -> None:
    gateway = await start(stuck(), limits={"max_queued_requests": 3})
    waiting = await fill(gateway, 3)
    async with gateway.client.post(gateway.url + CHAT, json=BODY) as response:
        assert response.status == 503
        assert (response.headers["Retry-After"], response.headers["retry-after-ms"]) == ("1", "1000")
        error = (await response.json())["error"]
    assert (error["code"], error["type"], error["param"]) == ("overloaded", "server_error", None)
    assert (await gateway.get("/health/ready")) == (503, {"status": "queue_full"})
    await let_go(waiting)
    await gateway.at_rest()
    gateway.engine.prefill_delay = 0.0
    assert (await gateway.post(CHAT, BODY))[0] == 200


async def test_a_tenant_over_its_own_limit_is_429_and_others_are_served(start: Start) -> None:
    gateway = await start(stuck(), http={"api_keys": ("a", "b")}, limits={"max_tenant_queued": 2})
    waiting = await fill(gateway, 2, {"Authorization": "Bearer a"})
    status, body = await gateway.post(CHAT, BODY, headers={"Authorization": "Bearer a"})
    assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
    gateway.engine.prefill_delay = 0.0
    assert (await gateway.post(CHAT, BODY, headers={"Authorization": "Bearer b"}))[0] == 200
    await let_go(waiting)
    await gateway.at_rest()


async def test_tokens_are_counted_too(start: Start) -> None:
    gateway = await start(stuck(), limits={"max_queued_tokens": 50})
    long = {**BODY, "messages": [{"role": "user", "content": "x" * 200}]}
    waiting = [asyncio.create_task(gateway.post(CHAT, long))]  # alone it may be longer than the whole queue
    async with asyncio.timeout(5):
        while not gateway.engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    status, body = await gateway.post(CHAT, BODY)
    assert (status, body["error"]["code"]) == (503, "overloaded")
    await let_go(waiting)
    await gateway.at_rest()


async def test_started_requests_do_not_count(start: Start) -> None:
    engine = FakeEngine()
    engine.token_delay = 0.2
    gateway = await start(engine, limits={"max_queued_requests": 1})
    statuses = []
    tasks = []
    for _ in range(4):
        tasks.append(asyncio.create_task(gateway.post(CHAT, BODY)))
        await asyncio.sleep(0.03)
    statuses = [status for status, _ in await asyncio.gather(*tasks)]
    assert statuses == [200] * 4
    await gateway.at_rest()


async def test_an_engine_too_far_behind(start: Start) -> None:
    gateway = await start()
    gateway.engine.too_far_behind = True
    async with gateway.client.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "1"
    assert gateway.engine.queue.rejected == {"engine_behind": 1}
    await gateway.at_rest()


async def test_a_body_with_many_prompts_takes_many_places(start: Start) -> None:
    gateway = await start(stuck(), limits={"max_queued_requests": 3})
    status, _ = await gateway.post("/v1/completions", {"model": MODEL, "prompt": ["a"] * 4})
    assert status == 503
    assert gateway.engine.requests == []
    await gateway.at_rest()


async def test_it_is_decided_before_anything_is_tokenised(start: Start) -> None:
    """A prompt that would be refused for its tokens is refused for want of room instead."""
    gateway = await start(stuck(), limits={"max_queued_requests": 1})
    strange = {"model": MODEL, "prompt": [10**9]}
    assert (await gateway.post("/v1/completions", strange))[0] == 400
    waiting = await fill(gateway, 1)
    assert (await gateway.post("/v1/completions", strange))[0] == 503
    await let_go(waiting)
    await gateway.at_rest()


async def test_every_rejection_is_counted_by_its_reason(start: Start) -> None:
    gateway = await start(stuck(), limits={"max_tenant_queued": 2})
    status, _ = await gateway.post("/v1/completions", {"model": MODEL, "prompt": ["a"] * 3})
    assert status == 429
    async with gateway.client.get(gateway.url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    assert 'headwater_rejected_requests_total{reason="tenant_queue"} 1.0' in lines
    assert 'headwater_rejected_requests_total{reason="engine_behind"} 0.0' in lines
    assert f'vllm:admission_rejections_total{{model_name="{MODEL}"}} 1.0' in lines


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_that_fails_gives_its_place_back(start: Start, stream: bool) -> None:
    gateway = await start(limits={"max_queued_requests": 1})
    for _ in range(3):
        gateway.engine.die(RequestFailure("gone"))
        async with gateway.client.post(gateway.url + CHAT, json={**BODY, "stream": stream}) as response:
            assert response.status == 500
        await gateway.at_rest()

"""A full queue says so at once, and to the right party."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import Admission, Place
from gateway.config import Limits
from gateway.errors import Overloaded
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


async def test_an_engine_with_a_full_queue(start: Start) -> None:
    gateway = await start()
    gateway.engine.full = True
    async with gateway.client.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "3"
    await gateway.at_rest()


async def test_a_body_with_many_prompts_takes_many_places(start: Start) -> None:
    gateway = await start(stuck(), limits={"max_queued_requests": 3})
    status, _ = await gateway.post("/v1/completions", {"model": MODEL, "prompt": ["a"] * 4})
    assert status == 503
    assert gateway.engine.requests == []


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(0, 60), st.booleans()), max_size=60
    )
)
def test_counts_always_come_back(steps: list[tuple[str, int, int, bool]]) -> None:
    admission = Admission(Limits(max_queued_requests=10, max_tenant_queued=6, max_queued_tokens=100))
    held: list[Place] = []
    for tenant, requests, tokens, leave in steps:
        try:
            place = admission.enter(tenant, requests)
            held.append(place)
            place.weigh(tokens)
        except Overloaded:
            pass
        if held and leave:
            place = held.pop(0)
            place.release(1, tokens)
            place.release(place.requests, place.tokens)
            place.release(1, 1)
        admission.check()
        assert admission.requests <= 10
    for place in held:
        place.release(place.requests, place.tokens)
    admission.check()
    assert (admission.requests, admission.tokens) == (0, 0)


def test_which_limit_speaks_first() -> None:
    admission = Admission(Limits(max_queued_requests=2, max_tenant_queued=1))
    admission.enter("a", 1)
    with pytest.raises(Overloaded) as own:
        admission.enter("a", 1)
    assert own.value.status == 429
    admission.enter("b", 1)
    with pytest.raises(Overloaded) as everyones:
        admission.enter("c", 1)
    assert everyones.value.status == 503
    assert admission.rejected == {"tenant_queue": 1, "queue_requests": 1}

"""Stopping: who is waited for, who is turned away, and what the rest are told."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import orjson
import pytest

from engine.errors import StartError
from gateway.app import LIFECYCLE
from gateway.config import Http, Limits
from gateway.lifecycle import Phase
from gateway.server import Stop, check_exposed, run
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.raw import RawClient

CHAT = "/v1/chat/completions"


def ask(max_tokens: int, **changes: Any) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": max_tokens,
        **changes,
    }
    return orjson.dumps(body)


def slow() -> FakeEngine:
    engine = FakeEngine()
    engine.token_delay = 0.005
    return engine


async def stream(gateway: Gateway, max_tokens: int) -> bytes:
    async with gateway.client.post(gateway.url + CHAT, data=ask(max_tokens, stream=True)) as response:
        assert response.status == 200
        return await response.read()


async def begun(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(5):
        while gateway.engine.totals["generated"] < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_streams_in_flight_are_finished(start: Start) -> None:
    gateway = await start(slow())
    streams = [asyncio.create_task(stream(gateway, 60)) for _ in range(12)]
    await begun(gateway, 24)
    os.kill(os.getpid(), signal.SIGTERM)
    answers = await asyncio.gather(*streams)
    assert all(raw.endswith(b"data: [DONE]\n\n") for raw in answers)
    async with asyncio.timeout(3):
        await gateway.task


async def test_readiness_falls_first_then_work_is_refused(start: Start) -> None:
    gateway = await start(slow(), http={"drain_delay": 0.3})
    running = asyncio.create_task(stream(gateway, 200))
    await begun(gateway, 2)
    gateway.stop.ask()
    await asyncio.sleep(0.05)
    assert (await gateway.get("/health/ready")) == (503, {"status": "draining"})
    async with gateway.client.post(gateway.url + CHAT, data=ask(1)) as response:
        assert response.status == 200  # balancers take a moment to notice
    while gateway.app[LIFECYCLE].phase is not Phase.DRAINING:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    async with gateway.client.post(gateway.url + CHAT, data=ask(1)) as response:
        assert response.status == 503
        assert response.headers["Connection"] == "close"
        assert response.headers["Retry-After"]
        assert (await response.json())["error"]["code"] == "server_shutting_down"
    client = await RawClient.connect(gateway)
    client.write(b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" % CHAT.encode())
    assert b" 503 " in await asyncio.wait_for(client.reader.read(), 2)  # and the end: it keeps its word
    client.leave(reset=False)
    assert (await gateway.get("/health/live"))[0] == 200
    assert (await running).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("hurry", [False, True])
async def test_what_is_left_is_told(start: Start, hurry: bool) -> None:
    gateway = await start(slow(), http={"drain_timeout": 30.0 if hurry else 0.2})
    streamed = asyncio.create_task(stream(gateway, 2000))
    await begun(gateway, 2)
    gateway.stop.ask()
    if hurry:
        await asyncio.sleep(0.05)
        gateway.stop.ask()
    async with asyncio.timeout(3):
        raw = await streamed
        await gateway.task
    last = orjson.loads(raw.removesuffix(b"\n\n").rpartition(b"\n\n")[2].removeprefix(b"data: "))
    assert last["error"]["code"] == "server_shutting_down"
    assert b"[DONE]" not in raw
    assert len(gateway.engine.aborted) == 1


async def test_one_that_waits_for_its_whole_answer_gets_503(start: Start) -> None:
    gateway = await start(slow(), http={"drain_timeout": 0.1})

    async def whole() -> int:
        async with gateway.client.post(gateway.url + CHAT, data=ask(2000)) as response:
            return response.status

    waiting = asyncio.create_task(whole())
    await begun(gateway, 2)
    gateway.stop.ask()
    assert await waiting == 503


async def test_a_port_in_use_is_one_line(start: Start) -> None:
    gateway = await start()
    with pytest.raises(
        StartError, match=rf"^cannot listen on 127.0.0.1:{gateway.port}: Address already in use$"
    ):
        await run(gateway.app, Http(port=gateway.port), Limits(), stop=Stop())


@pytest.mark.parametrize(
    ("http", "refused"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "admin_key": "k"}, True),
        ({"host": "0.0.0.0", "api_keys": ("k",)}, False),
        ({"cors_origins": ("*",)}, True),
        ({"cors_origins": ("https://a.example",)}, False),
        ({"cors_origins": ("*",), "api_keys": ("k",)}, False),
    ],
)
def test_strangers_need_a_key(http: dict[str, Any], refused: bool) -> None:
    if refused:
        with pytest.raises(StartError):
            check_exposed(Http(**http))
    else:
        check_exposed(Http(**http))

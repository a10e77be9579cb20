"""Clients that leave, readers that stall, engines that fail, deadlines that pass: nothing of a request stays behind."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from engine.errors import EngineDied, RequestFailure
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.raw import RawClient

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def ask(path: str, **changes: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": ["hi", "yo"]}
    return {"model": MODEL, "max_tokens": 1000, **prompt, **changes}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("phase", ["queued", "decode"])
async def test_a_client_that_leaves_is_let_go_of(
    start: Start, path: str, stream: bool, n: int, phase: str
) -> None:
    engine = FakeEngine()
    engine.prefill_delay = 30.0 if phase == "queued" else 0.0
    engine.token_delay = 0.002
    gateway = await start(engine)
    client = await RawClient.connect(gateway)
    client.send(path, ask(path, stream=stream, n=n))
    prompts = 1 if path == CHAT else 2
    async with asyncio.timeout(2):
        while engine.running < prompts or (phase == "decode" and engine.totals["generated"] < 4):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    client.leave(reset=n == 3)
    await gateway.at_rest(1.0)
    assert len(engine.aborted) == prompts
    engine.prefill_delay = 0.0
    assert (await gateway.post(CHAT, ask(CHAT, max_tokens=1)))[0] == 200


async def test_a_client_that_leaves_while_sending_its_body(start: Start) -> None:
    gateway = await start()
    client = await RawClient.connect(gateway)
    client.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    await asyncio.sleep(0.05)
    client.leave(reset=False)
    await gateway.at_rest(1.0)
    assert gateway.engine.requests == []


async def test_headers_must_come_soon(start: Start) -> None:
    gateway = await start(limits={"header_timeout": 0.2})
    for begin in (b"", b"POST /v1/completions HT", b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"):
        client = await RawClient.connect(gateway)
        client.write(begin)
        async with asyncio.timeout(2):
            assert await client.reader.read() == b""
        client.leave(reset=False)


async def test_an_idle_connection_that_asked_once_stays_open(start: Start) -> None:
    gateway = await start(limits={"header_timeout": 0.1})
    client = await RawClient.connect(gateway)
    for _ in range(2):
        client.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        await client.reader.readexactly(len(b'{"status":"live"}'))
        await asyncio.sleep(0.3)
    client.leave(reset=False)


async def test_a_body_must_come_in_time(start: Start) -> None:
    gateway = await start(limits={"body_timeout": 0.2})
    client = await RawClient.connect(gateway)
    client.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
    async with asyncio.timeout(2):
        head = await client.head()
    assert head.startswith(b"HTTP/1.1 408")
    client.leave(reset=False)


async def test_a_reader_that_stalls_loses_its_request(start: Start) -> None:
    engine = FakeEngine(lambda request, index: [0xE2, 0x82, 0xAC] * 200_000, max_model_len=2_000_000)
    gateway = await start(engine, limits={"write_timeout": 0.3})
    client = await RawClient.connect(gateway, receive_buffer=4096)
    client.send(CHAT, ask(CHAT, stream=True, max_tokens=600_000, logprobs=True, top_logprobs=20))
    await client.head()
    async with asyncio.timeout(20):
        while not engine.aborted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await gateway.at_rest()
    client.leave(reset=False)


def connections() -> int:
    """Open ones of this process's servers: each has a task of aiohttp's."""
    return sum(
        getattr(task.get_coro(), "__qualname__", "") == "RequestHandler.start" for task in asyncio.all_tasks()
    )


async def test_a_whole_answer_that_nobody_reads_is_not_kept(start: Start) -> None:
    engine = FakeEngine(lambda request, index: [97] * 20_000, max_model_len=40_000)
    gateway = await start(engine, limits={"write_timeout": 0.5})
    client = await RawClient.connect(gateway, receive_buffer=4096)
    client.send(CHAT, ask(CHAT, max_tokens=20_000, logprobs=True, top_logprobs=20))
    await client.head()
    await gateway.at_rest()
    assert connections() == 1
    async with asyncio.timeout(10):
        while connections():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    client.leave(reset=False)


async def test_too_many_connections(start: Start) -> None:
    gateway = await start(limits={"max_connections": 2})
    clients = [await RawClient.connect(gateway) for _ in range(2)]
    await asyncio.sleep(0.05)
    extra = await RawClient.connect(gateway)
    head = await extra.head()
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after" in head.lower()
    for client in (*clients, extra):
        client.leave(reset=False)


async def test_bytes_that_are_no_http_get_json(gateway: Gateway) -> None:
    client = await RawClient.connect(gateway)
    client.write(b"\x16\x03\x01 nonsense\r\n\r\n")
    raw = await client.reader.read()
    assert raw.startswith(b"HTTP/1.0 400")
    assert b"Server: headwater\r\n" in raw
    assert orjson.loads(raw.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    client.leave(reset=False)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_an_engine_that_dies_before_anything_was_sent(start: Start, path: str) -> None:
    engine = FakeEngine()
    engine.die(EngineDied("The engine stopped while the request was running."))
    gateway = await start(engine)
    for stream in (False, True):
        data = orjson.dumps(ask(path, stream=stream))
        async with gateway.client.post(gateway.url + path, data=data) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "1"
            assert (await response.json())["error"]["code"] == "engine_restarting"
    await gateway.at_rest()


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("failure", "code"),
    [(EngineDied("gone"), "engine_restarting"), (RequestFailure("one bad row"), "engine_error")],
)
async def test_an_engine_that_dies_in_mid_stream_is_told_in_the_stream(
    start: Start, path: str, failure: RequestFailure, code: str
) -> None:
    engine = FakeEngine()
    engine.fail_after = 5
    engine.failure = failure
    engine.token_delay = 0.005
    gateway = await start(engine)
    async with gateway.client.post(gateway.url + path, json=ask(path, stream=True)) as response:
        assert response.status == 200
        raw = await response.read()
    frames = raw.removesuffix(b"\n\n").split(b"\n\n")
    error = orjson.loads(frames[-1].removeprefix(b"data: "))["error"]
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}
    assert b"[DONE]" not in raw
    await gateway.at_rest()


async def test_an_engine_that_is_not_ready(start: Start) -> None:
    engine = FakeEngine()
    gateway = await start(engine)
    for status in ("starting", "restarting", "unresponsive", "failed"):
        engine.status = status  # type: ignore[assignment]
        async with gateway.client.post(gateway.url + CHAT, json=ask(CHAT)) as response:
            assert response.status == 503
            assert "retry-after-ms" in response.headers
            assert (await response.json())["error"]["code"] == f"engine_{status}"
        assert (await gateway.get("/health/ready"))[0] == 503
        assert (await gateway.get("/health/live"))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_ends_a_request(start: Start, stream: bool) -> None:
    engine = FakeEngine()
    engine.token_delay = 0.01
    gateway = await start(engine)
    headers = {"X-Request-Timeout": "0.2"}
    async with gateway.client.post(
        gateway.url + CHAT, json=ask(CHAT, stream=stream), headers=headers
    ) as response:
        raw = await response.read()
        assert response.status == (200 if stream else 504)
        if not stream:
            assert response.headers["x-should-retry"] == "false"
    assert b'"code":"deadline_exceeded"' in raw
    assert 0 < (engine.requests[0].deadline or 0) <= 0.2
    await gateway.at_rest()


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
async def test_a_deadline_is_a_number(gateway: Gateway, value: str) -> None:
    status, body = await gateway.post(CHAT, ask(CHAT), headers={"X-Request-Timeout": value})
    assert (status, body["error"]["param"]) == (400, "X-Request-Timeout")


async def test_a_fault_of_ours_stays_between_us(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await start()

    def broken(*args: object) -> object:
        raise ZeroDivisionError("secret at 0xdeadbeef in /usr/lib")

    monkeypatch.setattr("gateway.openai.chat.ChatWriter.whole", broken)
    status, body = await gateway.post(CHAT, ask(CHAT, max_tokens=1))
    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "secret" not in str(body)
    monkeypatch.setattr("gateway.openai.chat.ChatWriter.pieces", broken)
    async with gateway.client.post(gateway.url + CHAT, json=ask(CHAT, stream=True)) as response:
        raw = await response.read()
    assert b'"code":"internal_error"' in raw
    assert b"secret" not in raw
    await gateway.at_rest()


async def test_silence_is_filled_with_comments(start: Start) -> None:
    engine = FakeEngine()
    engine.prefill_delay = 1.6
    gateway = await start(engine, http={"keepalive_comment": 0.2})
    async with gateway.client.post(gateway.url + CHAT, json=ask(CHAT, stream=True, max_tokens=2)) as response:
        raw = await response.read()
    assert raw.count(b": keep-alive\n\n") >= 2
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_one_stop_string_ends_its_choice_in_the_engine(start: Start) -> None:
    engine = FakeEngine(lambda request, index: b"stop here" * 100 if index == 0 else b"go on " * 20)
    engine.token_delay = 0.001
    gateway = await start(engine)
    _, body = await gateway.post(CHAT, ask(CHAT, n=2, stop="here", max_tokens=60))
    first, second = body["choices"]
    assert (first["message"]["content"], first["finish_reason"]) == ("stop ", "stop")
    assert (second["message"]["content"], second["finish_reason"]) == ("go on " * 10, "length")
    assert engine.aborted == [(engine.requests[0].request_id, 0)]
    assert body["usage"]["completion_tokens"] == 9 + 60


async def test_logs_say_nothing_of_prompts_and_keys(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    gateway = await start(http={"api_keys": ("sk-CANARY1",)})
    headers = {"Authorization": "Bearer sk-CANARY1"}
    messages = [{"role": "user", "content": "CANARY2"}]
    assert (await gateway.post(CHAT, ask(CHAT, messages=messages, max_tokens=2), headers=headers))[0] == 200
    for key in ("sk-CANARY1", "sk-CANARY3"):
        async with gateway.client.post(
            gateway.url + CHAT, data=b"{CANARY4", headers={"Authorization": f"Bearer {key}"}
        ) as response:
            assert "CANARY" not in await response.text()
    assert caplog.records
    assert "CANARY" not in caplog.text


async def test_many_at_once(gateway: Gateway) -> None:
    async def one(i: int) -> str:
        status, body = await gateway.post(
            CHAT, ask(CHAT, messages=[{"role": "user", "content": str(i)}], max_tokens=8)
        )
        assert status == 200
        return str(body["id"])

    assert len(set(await asyncio.gather(*[one(i) for i in range(60)]))) == 60
    await gateway.at_rest()


async def test_http_1_0_is_understood(gateway: Gateway) -> None:
    body = orjson.dumps(ask(CHAT, stream=True, max_tokens=3))
    client = await RawClient.connect(gateway)
    client.write(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    raw = await client.reader.read()
    assert raw.startswith(b"HTTP/1.0 200")
    assert raw.endswith(b"data: [DONE]\n\n")
    client.leave(reset=False)

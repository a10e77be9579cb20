"""Every request that reached the engine has one line, with what its client was told or what was done for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineDied, PinsExhausted, RequestFailure
from gateway.caching.ledger import key_label
from gateway.key_store import KeyStore
from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


async def lines(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """Once there are so many."""
    assert gateway.ledger is not None
    path = gateway.ledger.path
    async with asyncio.timeout(2):
        while True:
            content = await asyncio.to_thread(path.read_text)
            if content.count("\n") >= count:
                return [json.loads(line) for line in content.splitlines()]
            await asyncio.sleep(0.01)


async def test_a_line_says_what_usage_said(start: Start, tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.cached_tokens = 3
    keys = KeyStore(tmp_path / "keys.json")
    new = await asyncio.to_thread(lambda: keys.create("ci", "acme"))
    gateway = await start(engine, http={"key_store": keys.path}, ledger=tmp_path / "ledger")
    headers = {"Authorization": f"Bearer {new.key}", "X-Request-Id": "mine"}
    asked = {**CHAT, "n": 2, "prompt_cache_key": "user 7"}
    status, body = await gateway.post("/v1/chat/completions", asked, headers=headers)
    assert status == 200
    (line,) = await lines(gateway, 1)
    usage = body["usage"]
    assert line.pop("time") > 1_700_000_000
    assert line.pop("seconds") > 0
    assert line.pop("id") == engine.requests[0].request_id
    assert line == {
        "request_id": "mine",
        "tenant": "acme",
        "key": new.stored.id,
        "model": MODEL,
        "endpoint": "/v1/chat/completions",
        "status": "ok",
        "error": None,
        "finish": ["length", "length"],
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "cached_host_tokens": 0,
        "cached_disk_tokens": 0,
        "written_tokens": usage["prompt_tokens_details"]["cache_write_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "reasoning_tokens": 0,
        "computed_tokens": usage["prompt_tokens"] - 3 + usage["completion_tokens"] - 1,
        "saved_seconds": 0.0,
        "queued_seconds": 0.0,
        "prompt_cache_key": key_label("user 7"),
        "cache_id": None,
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (EngineDied("gone"), "engine_restarting"),
        (RequestFailure("broken"), "engine_error"),
        (PinsExhausted("full"), "pin_quota_exceeded"),
    ],
)
async def test_a_failure_has_the_code_its_client_was_given(
    start: Start, tmp_path: Path, stream: bool, failure: RequestFailure, code: str
) -> None:
    engine = FakeEngine()
    gateway = await start(engine, ledger=tmp_path / "ledger")
    engine.die(failure)
    async with gateway.client.post(f"{gateway.url}/v1/chat/completions", json={**CHAT, "stream": stream}) as response:  # fmt: skip
        await response.read()
    (line,) = await lines(gateway, 1)
    assert (line["status"], line["error"], line["finish"]) == ("failed", code, [None])
    assert line["prompt_tokens"] > 0


async def test_a_client_that_leaves_is_charged_for_what_was_generated(start: Start, tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.token_delay = 0.01
    gateway = await start(engine, ledger=tmp_path / "ledger")
    asked = {**CHAT, "max_tokens": 500, "stream": True}
    async with gateway.client.post(f"{gateway.url}/v1/chat/completions", json=asked) as response:
        await response.content.readany()
        response.close()
    (line,) = await lines(gateway, 1)
    assert (line["status"], line["error"]) == ("aborted", None)
    assert 0 < line["completion_tokens"] < 500


async def test_a_deadline_is_a_failure(start: Start, tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.token_delay = 0.05
    gateway = await start(engine, ledger=tmp_path / "ledger")
    headers = {"X-Request-Timeout": "0.1"}
    status, _ = await gateway.post("/v1/chat/completions", {**CHAT, "max_tokens": 500}, headers=headers)
    assert status == 504
    (line,) = await lines(gateway, 1)
    assert (line["status"], line["error"]) == ("failed", "deadline_exceeded")


async def test_what_is_refused_before_the_engine_has_no_line(start: Start, tmp_path: Path) -> None:
    gateway = await start(ledger=tmp_path / "ledger")
    assert (await gateway.post("/v1/chat/completions", {**CHAT, "top_p": 7}))[0] == 400
    gateway.engine.too_far_behind = True
    assert (await gateway.post("/v1/chat/completions", CHAT))[0] == 503
    gateway.engine.too_far_behind = False
    assert (await gateway.post("/v1/completions", {"model": MODEL, "prompt": ["a", "b"], "max_tokens": 1}))[0] == 200  # fmt: skip
    found = await lines(gateway, 2)
    assert len(found) == 2, "each prompt has its own"
    assert len({line["request_id"] for line in found}) == 1
    assert len({line["id"] for line in found}) == 2


async def test_a_stop_string_ends_what_is_charged(start: Start, tmp_path: Path) -> None:
    gateway = await start(FakeEngine(says("ab.cdefgh")), ledger=tmp_path / "ledger")
    _, body = await gateway.post("/v1/chat/completions", {**CHAT, "max_tokens": 9, "stop": "."})
    (line,) = await lines(gateway, 1)
    assert (line["status"], line["finish"]) == ("ok", ["stop"])
    assert line["completion_tokens"] == body["usage"]["completion_tokens"] == 3


async def test_what_is_cut_off_at_the_end_of_a_drain_has_its_line(start: Start, tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.token_delay = 0.05
    gateway = await start(engine, http={"drain_timeout": 0.1}, ledger=tmp_path / "ledger")
    asking = asyncio.create_task(gateway.post("/v1/chat/completions", {**CHAT, "max_tokens": 500}))
    async with asyncio.timeout(2):
        while not engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    gateway.stop.ask()
    assert (await asking)[0] == 503
    await gateway.task
    content = await asyncio.to_thread((tmp_path / "ledger").read_text)
    (line,) = map(json.loads, content.splitlines())
    assert (line["status"], line["error"]) == ("failed", "server_shutting_down")

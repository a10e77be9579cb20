"""The order of things in a stream, read raw and through the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start

CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 6,
    "stream": True,
}


async def events(gateway: Gateway, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of every event; `[DONE]` stays a string."""
    async with gateway.client.post(gateway.url + path, json=body) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        raw = await response.read()
    frames = raw.split(b"\n\n")
    assert frames.pop() == b""
    data = [frame.removeprefix(b"data: ") for frame in frames if not frame.startswith(b":")]
    return ["[DONE]" if part == b"[DONE]" else orjson.loads(part) for part in data]


async def test_order_of_a_stream(gateway: Gateway) -> None:
    *chunks, done = await events(gateway, "/v1/chat/completions", CHAT)
    assert done == "[DONE]"
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], MODEL, "chat.completion.chunk")
    }
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert all("usage" not in c for c in chunks)


async def test_usage_comes_last_and_null_before(gateway: Gateway) -> None:
    *chunks, usage, done = await events(
        gateway, "/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}
    )
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert usage["usage"]["prompt_tokens_details"].keys() == {"cached_tokens", "cache_write_tokens"}
    assert all(c["usage"] is None for c in chunks)


async def test_a_null_inside_an_option_is_absent_too(gateway: Gateway) -> None:
    options = {"include_usage": None, "include_obfuscation": None}
    *chunks, _ = await events(gateway, "/v1/chat/completions", {**CHAT, "stream_options": options})
    assert all("usage" not in c for c in chunks)


async def test_each_choice_has_its_role_and_its_finish(gateway: Gateway) -> None:
    *chunks, _ = await events(gateway, "/v1/chat/completions", {**CHAT, "n": 3})
    for index in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert own[-1]["finish_reason"] == "length"
        assert len("".join(c["delta"].get("content", "") for c in own)) == 6


async def test_stream_equals_whole(gateway: Gateway) -> None:
    *chunks, _ = await events(gateway, "/v1/chat/completions", CHAT)
    _, whole = await gateway.post("/v1/chat/completions", {**CHAT, "stream": False})
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == whole["choices"][0]["message"]["content"]


async def test_log_probabilities_and_finish_are_both_there(gateway: Gateway) -> None:
    *chunks, _ = await events(gateway, "/v1/chat/completions", {**CHAT, "logprobs": True})
    entries = [entry for c in chunks if (lp := c["choices"][0]["logprobs"]) for entry in lp["content"]]
    assert len(entries) == 6
    assert all(entry["top_logprobs"] == [] and entry["bytes"] for entry in entries)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("text", ["naïve café", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "日本語"])
async def test_characters_arrive_whole(start: Start, text: str) -> None:
    gateway = await start(FakeEngine(says(text)))
    *chunks, _ = await events(gateway, "/v1/chat/completions", {**CHAT, "max_tokens": 100})
    pieces = [c["choices"][0]["delta"].get("content", "") for c in chunks]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_official_client_reads_it(gateway: Gateway) -> None:
    def read() -> list[ChatCompletionChunk]:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            return list(client.chat.completions.create(**CHAT, stream_options={"include_usage": True}))

    chunks = await asyncio.to_thread(read)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + 6

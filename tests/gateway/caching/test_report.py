"""What answers say of the cache: usage, `x_cache` and the header, the same whole and streamed, read by the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from msgspec import structs
from openai import OpenAI

from cache.lease import CachePolicy, Lease
from engine.client import RequestStream
from engine.request import Evicted, GenerationRequest, PromptCached, RequestStarted, SamplingParams
from gateway.caching.ask import CacheAsk
from gateway.caching.reasons import Finding, plain_finding
from gateway.caching.report import details, header
from gateway.generation import Generation
from gateway.pieces import TextOptions
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
ENDPOINTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
    TEXT: {"prompt": ["hello", "hi"], "max_tokens": 5},
}
DETAILS = {"x-cache-details": "1"}


async def whole(gateway: Gateway, path: str, **change: Any) -> tuple[dict[str, Any], str]:
    headers = change.pop("headers", {})
    body = {"model": MODEL, **ENDPOINTS[path], **change}
    async with gateway.client.post(gateway.url + path, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json(), response.headers["x-cache"]


async def streamed(gateway: Gateway, path: str, **change: Any) -> tuple[list[dict[str, Any]], str]:
    headers = change.pop("headers", {})
    body = {"model": MODEL, **ENDPOINTS[path], "stream": True, **change}
    async with gateway.client.post(gateway.url + path, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        frames = (await response.read()).removesuffix(b"\n\n").split(b"\n\n")
        assert frames.pop() == b"data: [DONE]"
        return [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames], response.headers["x-cache"]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"n": 3},
        {"stop": ["b", "k", "q"], "max_tokens": 50},
        {"prompt_cache_options": {"ttl": "1h"}},
        {"cache": {"bypass": "write"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_a_stream_says_what_the_whole_says(start: Start, path: str, change: dict[str, Any]) -> None:
    # or the second would be told that the first had computed all of it
    gateway = await start(limits={"explain_bytes": 0})
    gateway.engine.cached_tokens = 1
    asked = {"seed": 1, "headers": DETAILS, **change}
    body, on_whole = await whole(gateway, path, **asked)
    chunks, on_stream = await streamed(gateway, path, stream_options={"include_usage": True}, **asked)
    assert chunks[-1]["usage"] == body["usage"]
    assert chunks[-1]["x_cache"] == body["x_cache"]
    # of several prompts only the first is known to have started when the headers go out
    assert on_stream in ({on_whole} if path == CHAT else {on_whole, "pending"})
    counts = body["usage"]["prompt_tokens_details"]
    found, written = counts["cached_tokens"], counts["cache_write_tokens"]
    assert on_whole == f"hit={found};write={written};reason={body['x_cache']['reason']}"
    assert found > 0
    assert found + written <= body["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_without_usage_a_stream_tells_it_where_a_choice_ends(gateway: Gateway, path: str) -> None:
    chunks, _ = await streamed(gateway, path, n=2, prompt_cache_options={})
    ends = [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert len(ends) == (2 if path == CHAT else 4)
    assert all(("x_cache" in chunk) == (chunk in ends) for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)
    body, _ = await whole(gateway, path, n=2, prompt_cache_options={})
    told = {end["x_cache"]["entry_ids"][0] for end in ends}
    assert told == set(body["x_cache"]["entry_ids"])


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_it_is_told_to_those_who_ask(gateway: Gateway, path: str) -> None:
    assert "x_cache" not in (await whole(gateway, path))[0]
    assert "x_cache" in (await whole(gateway, path, headers=DETAILS))[0]
    assert "x_cache" in (await whole(gateway, path, prompt_cache_key="k"))[0]
    chunks, _ = await streamed(gateway, path)
    assert not any("x_cache" in chunk for chunk in chunks)


async def test_a_stream_whose_headers_cannot_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.openai.answer.FIRST_EVENT_PATIENCE", 0.05)
    engine = FakeEngine()
    engine.prefill_delay = 0.3
    gateway = await start(engine)
    chunks, said = await streamed(gateway, CHAT, prompt_cache_options={})
    assert said == "pending"
    assert chunks[-1]["x_cache"]["reason"] == "cold"


async def test_a_cut_stream_counts_what_was_read(start: Start) -> None:
    """A stop string aborts the engine's sequence; what the prompt took is counted all the same."""
    engine = FakeEngine(says("abcdef" * 20))
    engine.cached_tokens = 4
    gateway = await start(engine)
    chunks, _ = await streamed(gateway, CHAT, stop="c", max_tokens=99, stream_options={"include_usage": True})
    assert engine.aborted
    counts = chunks[-1]["usage"]["prompt_tokens_details"]
    assert counts == {"cached_tokens": 4, "cache_write_tokens": chunks[-1]["usage"]["prompt_tokens"] - 4}


# -- the parts by themselves -------------------------------------------------------------------------------------------


def generation(prompt: int, *events: RequestStarted | PromptCached) -> Generation:
    """Of a request that has got so far."""
    stream = RequestStream(
        GenerationRequest(request_id="r", prompt=[1] * prompt, sampling=SamplingParams(max_tokens=3)),
        lambda *_: None,
    )
    made = Generation(stream, Tokenizer.hash(), TextOptions())
    made._take(events)
    return made


def test_tiers_and_times() -> None:
    start = RequestStarted("r", 90, 0.1, host_tokens=30, disk_tokens=20, saved=0.25, loading=0.0125)
    told = details(
        CacheAsk(lease=Lease(ttl=300)), [generation(100, start, PromptCached("r", 10, ("e1", "e2")))]
    )
    assert told == {
        "hit_tokens": {"device": 40, "host": 30, "disk": 20},
        "matched_tokens": 90,
        "write_tokens": 10,
        "entry_ids": ["e1", "e2"],
        "reason": "partial_hit",
        "saved_ms": 250.0,
        "loading_ms": 12.5,
        "mode": "implicit",
        "ttl": "5m",
        "pin": "none",
    }


def test_of_several_prompts_the_first_miss_is_named() -> None:
    hit = generation(5, RequestStarted("r", 4, 0.0), PromptCached("r", 1))
    cold = generation(7, RequestStarted("r", 0, 0.0), PromptCached("r", 7))
    assert header([hit, cold]) == "hit=4;write=8;reason=cold"
    assert header([hit]) == "hit=4;write=1;reason=hit"
    assert header([hit, generation(3)]) == "pending"
    assert header([generation(9, RequestStarted("r", 4, 0.0))]) == "hit=4;reason=partial_hit"
    assert header([generation(3)]) == "pending"


def test_who_knows_better_is_believed() -> None:
    known = generation(7, RequestStarted("r", 3, 0.0), PromptCached("r", 4))
    known.finding = Finding("tools_changed", {"segment": "tools", "token": 3})
    assert header([known]) == "hit=3;write=4;reason=tools_changed"
    assert details(CacheAsk(), [known])["first_divergence"] == {"segment": "tools", "token": 3}


@pytest.mark.parametrize(
    ("cached", "read", "evicted", "reason"),
    [
        (0, True, None, "cold"),
        (0, True, Evicted("pressure", 3.0), "evicted"),
        (4, True, None, "partial_hit"),
        (4, True, Evicted("expired", 3.0), "evicted"),
        (9, True, None, "hit"),
        (0, False, None, "bypass"),
    ],
)
def test_plain_reasons(cached: int, read: bool, evicted: Evicted | None, reason: str) -> None:
    request = generation(10).request
    asked = structs.replace(request, cache=CachePolicy(read=read))
    assert plain_finding(asked, RequestStarted("r", cached, 0.0, evicted=evicted)).reason == reason


# -- the official client -----------------------------------------------------------------------------------------------


async def test_the_official_client_reads_all_of_it(gateway: Gateway) -> None:
    gateway.engine.cached_tokens = 2

    def ask() -> None:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            answer = client.chat.completions.create(
                model=MODEL,
                messages=[
                    {
                        "role": "system",
                        "content": [
                            {
                                "type": "text",
                                "text": "Rules.",
                                "prompt_cache_breakpoint": {"mode": "explicit"},
                            }
                        ],
                    },
                    {"role": "user", "content": "hello"},
                ],
                max_tokens=5,
                prompt_cache_key="agent-7",
                prompt_cache_options={"mode": "implicit", "ttl": "30m"},
                prompt_cache_retention="24h",
                extra_body={"cache": {"pin": "soft", "tag": "docs"}, "cache_salt": "s"},
            )
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            assert answer.usage.prompt_tokens_details.cached_tokens == 2
            assert answer.usage.prompt_tokens_details.cache_write_tokens == answer.usage.prompt_tokens - 2
            told = (answer.model_extra or {})["x_cache"]
            assert (told["ttl"], told["pin"], told["retention"], len(told["entry_ids"])) == (
                "30m",
                "soft",
                "24h",
                2,
            )

            raw = client.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=[{"role": "user", "content": "hello"}],
                extra_headers=DETAILS,
                max_tokens=2,
            )
            assert raw.headers["x-cache"].startswith("hit=2;write=")
            assert "x_cache" in (raw.parse().model_extra or {})

            chunks = list(
                client.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "hello"}],
                    max_tokens=5,
                    stream=True,
                    stream_options={"include_usage": True},
                    prompt_cache_options={"mode": "implicit"},
                )
            )
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.prompt_tokens_details is not None
            assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 2
            assert (chunks[-1].model_extra or {})["x_cache"]["ttl"] == "30m"

            warmed = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "hello"}],
                extra_body={"prompt_cache_options": {"prewarm": True}},
            )
            assert (warmed.choices[0].message.content, warmed.choices[0].finish_reason) == ("", "length")
            text = client.completions.create(
                model=MODEL, prompt="hello", max_tokens=2, extra_body={"cache": {"ttl": "5m"}}
            )
            assert (text.model_extra or {})["x_cache"]["ttl"] == "5m"

    await asyncio.to_thread(ask)
    await gateway.at_rest()

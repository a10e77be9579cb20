"""POST /v1/caches/lookup over an engine that answers as told."""

from __future__ import annotations

from typing import Any

import pytest

from engine.request import Evicted, LookUpReport
from tests.gateway.live import MODEL, Gateway, Start

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "abcdef"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        (
            "/v1/chat/completions",
            {
                **CHAT,
                "messages": [*CHAT["messages"], {"role": "assistant", "content": "yes"}],
                "continue_final_message": True,
                "cache_salt": "s",
            },
        ),
        ("/v1/completions", {**COMPLETION, "prompt_cache_key": "k", "cache_salt": "s"}),
        ("/v1/completions", {"model": "toy", "prompt": [1, 2, 3]}),
    ],
)
async def test_it_looks_for_what_the_request_would(gateway: Gateway, path: str, body: dict[str, Any]) -> None:
    status, _ = await gateway.post("/v1/caches/lookup", {**body, "max_tokens": 1})
    assert status == 200
    assert gateway.engine.requests == []
    await gateway.post(path, {**body, "max_tokens": 1})
    (request,) = gateway.engine.requests
    assert gateway.engine.looked_up == [(request.namespace, request.prompt)]


@pytest.mark.parametrize(
    "asked",
    [
        {"cache": {"bypass": "read"}},
        {"cache": {"bypass": "all"}},
        {"prompt_cache_options": {"mode": "explicit"}},
        {"echo": True, "logprobs": 1},
    ],
    ids=["read", "all", "explicit", "echo"],
)
async def test_what_looks_for_nothing_finds_nothing(gateway: Gateway, asked: dict[str, Any]) -> None:
    gateway.engine.found = LookUpReport(query_id=0, device=3, evicted=Evicted("pressure", 2.5))
    body = {**COMPLETION, **asked}
    status, answer = await gateway.post("/v1/caches/lookup", body)
    assert (status, answer["hit_tokens"], answer["evicted"]) == (200, 0, None)
    status, answer = await gateway.post("/v1/caches/explain", {"request": body})
    assert (status, answer["reason"], answer["hit_tokens"]) == (200, "bypass", 0)


async def test_what_it_says(gateway: Gateway) -> None:
    gateway.engine.found = LookUpReport(
        query_id=0, device=3, host=1, disk=1, saved=0.0125, evicted=Evicted("pressure", 2.5, broken=True)
    )
    assert await gateway.post("/v1/caches/lookup", COMPLETION) == (
        200,
        {
            "object": "cache.lookup",
            "model": MODEL,
            "prompt_tokens": 6,
            "hit_tokens": 5,
            "miss_tokens": 1,
            "hit_tokens_by_tier": {"device": 3, "host": 1, "disk": 1},
            "saved_ms": 12.5,
            "evicted": {"cause": "pressure", "seconds_ago": 2.5, "broken": True},
        },
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": MODEL}, "prompt"),
        ({**CHAT, "what": 1}, "what"),
        ({**CHAT, "audio": {}}, "audio"),
        ({**CHAT, "temperature": 3}, "temperature"),
        ({**COMPLETION, "prompt": ["a", "b"]}, "prompt"),
        ({**COMPLETION, "prompt": [9999]}, "prompt"),
        ({**COMPLETION, "prompt": "x" * 3000}, "prompt"),
    ],
)
async def test_what_the_endpoint_refuses_is_refused(gateway: Gateway, body: object, param: str) -> None:
    status, answer = await gateway.post("/v1/caches/lookup", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert gateway.engine.looked_up == []


async def test_each_tenant_looks_in_its_own_place(start: Start) -> None:
    gateway = await start(http={"api_keys": ("sk-a", "sk-b")})
    for key in ("sk-a", "sk-b"):
        await gateway.post("/v1/caches/lookup", CHAT, headers={"Authorization": f"Bearer {key}"})
    (one, prompt), (other, same) = gateway.engine.looked_up
    assert (one != other, prompt) == (True, same)

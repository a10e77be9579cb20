"""Salts, keys, tags, names of tools and users are clients' own: as many as they like, and nothing of the gateway's grows."""

from __future__ import annotations

import asyncio
import gc

import pytest

from gateway import replies, spoken
from gateway.app import DESK
from gateway.caching.accounting import Most
from gateway.structured import schemas
from gateway.tools import offer
from tests.gateway.live import MODEL, Gateway, Start
from tests.reach import reach

CONCURRENT, TURN = 16, 112


async def ask(gateway: Gateway, number: int) -> None:
    own = f"own-{number}"
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "name": own, "content": "hi"}],
        "max_tokens": 2,
        "user": own,
        "cache_salt": own,
        "prompt_cache_key": own,
        "cache": {"tag": own},
        "tools": [{"type": "function", "function": {"name": own, "parameters": {"type": "object"}}}],
        "tool_choice": "none",
        "response_format": {"type": "json_schema", "json_schema": {"name": own, "schema": {"const": own}}},
    }
    status, answer = await gateway.post("/v1/chat/completions", body, headers={"x-request-id": own})
    assert status == 200, answer
    status, _ = await gateway.post("/v1/caches/lookup", body)
    assert status == 200
    for path in (f"/v1/caches/{own}", f"/v1/{own}", f"/v1/models/{own}"):
        status, _ = await gateway.get(path)
        assert status == 404


async def test_what_clients_make_up_does_not_add_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memories that are full sooner than a server's."""
    for module in (spoken, replies, offer, schemas):
        monkeypatch.setattr(module, "MAX_KEPT", 20)
    monkeypatch.setattr(Most.__init__, "__defaults__", (4,))
    gateway = await start(limits={"explain_bytes": 20_000})
    sizes: list[int] = []
    for turn in range(8):
        for first in range(0, TURN, CONCURRENT):
            await asyncio.gather(*[ask(gateway, turn * TURN + first + i) for i in range(CONCURRENT)])
        await gateway.at_rest()
        engine = gateway.engine
        for remembered in (
            engine.requests,
            engine.entries,
            engine.looked_up,
            engine.sent,
        ):  # by the fake itself
            remembered.clear()
        gc.collect()
        sizes.append(reach(gateway.app, gateway.app[DESK]))
    growth = (sum(sizes[-3:]) - sum(sizes[:3])) / 3  # connections come and go
    assert growth < 2.5 * TURN, sizes  # an item for each request would be 5 * TURN

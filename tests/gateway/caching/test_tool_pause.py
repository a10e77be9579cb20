"""A conversation that waits for its tools is leased for a while, and the engine is told apart which tools."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cache.lease import Lease
from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.tools.wire import function, hermes, named

CALL = hermes("get_weather", '{"city": "Oslo"}')
SEND = hermes("send", "{}")
TOOLS = [function("get_weather"), function("send")]


async def leased(start: Start, text: str, *, tenants: str = "", **body: Any) -> list[Lease]:
    """The leases asked for; of the kinds of tools only that there are some."""
    engine = FakeEngine(says(text))
    gateway = await start(engine, tenants=tenants)
    await ask(gateway, **body)
    assert {request_id for request_id, _ in engine.leased_tips} <= {r.request_id for r in engine.requests}
    assert all(0 < lease.kind < 1 << 64 for _, lease in engine.leased_tips)
    return [replace(lease, kind=0) for _, lease in engine.leased_tips]


async def ask(gateway: Gateway, **body: Any) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **body}
    async with gateway.client.post(f"{gateway.url}/v1/chat/completions", json=asked) as response:
        assert response.status == 200, await response.text()
        await response.read()
    await gateway.at_rest()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", named("get_weather")])
async def test_an_answer_with_calls_leaves_a_lease(start: Start, stream: bool, choice: Any) -> None:
    assert await leased(start, CALL, stream=stream, tool_choice=choice) == [Lease(ttl=120, pause=True)]


@pytest.mark.parametrize(
    ("pause", "leases"),
    [("30m", [1800]), ("15s", [15]), ("0s", []), (0, []), (None, [120])],
)
async def test_for_as_long_as_asked(start: Start, pause: Any, leases: list[float]) -> None:
    found = await leased(start, CALL, cache={"tool_pause_ttl": pause})
    assert [lease.ttl for lease in found] == leases


async def test_but_no_longer_than_the_tenant_may(start: Start) -> None:
    tenants = "default: {max_ttl: 40s, default_ttl: 30s}"
    for body in ({}, {"cache": {"tool_pause_ttl": "5m"}}, {"prompt_cache_key": "k"}):
        assert await leased(start, CALL, tenants=tenants, **body) == [Lease(ttl=40, pause=True)]


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("No need.", {}),
        (CALL, {"max_tokens": len(CALL) - 3}),
        (CALL, {"cache": {"bypass": "write"}}),
        (CALL, {"prompt_cache_options": {"mode": "explicit"}}),
        ("Stop here. " + CALL, {"stop": "here"}),
        (CALL + " and here", {"stop": "here"}),
    ],
)
async def test_what_nobody_waits_for_is_not_leased(start: Start, text: str, body: dict[str, Any]) -> None:
    assert await leased(start, text, **body) == []


async def test_the_first_choice_counts(start: Start) -> None:
    assert await leased(start, CALL, n=2) == [Lease(ttl=120, pause=True)]


async def test_the_same_tools_are_of_one_kind_whatever_their_order_and_number(start: Start) -> None:
    engine = FakeEngine()
    gateway = await start(engine)
    for answer in (CALL, CALL + CALL, SEND, CALL + SEND, SEND + CALL):
        engine.script = says(answer)
        await ask(gateway)
    weather, twice, send, both, turned = (lease.kind for _, lease in engine.leased_tips)
    assert weather == twice
    assert both == turned
    assert len({weather, send, both}) == 3

"""A request that names a cache object begins with it, or is told why not."""

from __future__ import annotations

from typing import Any

import pytest

from cache.lease import Lease
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SYSTEM = {"role": "system", "content": "You are kind."}
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FORGETS = "{% for m in messages %}{% if m.role == 'user' and not loop.last %}[old]{% else %}[{{ m.content }}]{% endif %}{% endfor %}"


async def make(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    status, made = await gateway.post("/v1/caches", {"model": MODEL, **fields})
    assert status == 200, made
    return made


async def ask(gateway: Gateway, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    return await gateway.post(path, {"model": MODEL, "max_tokens": 2, **body})


async def test_a_chat_goes_on_from_the_cached_messages(gateway: Gateway) -> None:
    made = await make(gateway, messages=[SYSTEM], ttl="5m", tag="docs")
    status, body = await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]})
    assert status == 200, body
    await ask(gateway, CHAT, messages=[SYSTEM, USER])
    create, used, spelled = gateway.engine.requests
    assert used.prompt == spelled.prompt
    assert used.prompt[: made["tokens"]] == create.prompt
    assert used.namespace == create.namespace
    (entry,) = used.cache.entries
    assert (entry.entry_id, entry.tokens) == (made["id"], made["tokens"])
    assert entry.lease == Lease(ttl=300, tag="docs"), "an engine that was started again has the entry again"
    assert body["x_cache"]["entry_ids"] == [made["id"]]


async def test_its_tools_and_variables_come_with_it(gateway: Gateway) -> None:
    made = await make(
        gateway, messages=[SYSTEM], tools=[TOOL], chat_template_kwargs={"enable_thinking": False}
    )
    status, body = await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}, tool_choice="required")
    assert status in (200, 500), "the fake engine calls nothing; the tool may be called"
    assert (await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}, tools=[TOOL]))[0] == 200
    status, body = await ask(gateway, CHAT, messages=[USER], tool_choice="required")
    assert (status, body["error"]["param"]) == (400, "tool_choice")


async def test_what_would_change_the_prefix_is_a_conflict(start: Start) -> None:
    gateway = await start()
    made = await make(gateway, messages=[SYSTEM])
    status, body = await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}, tools=[TOOL])
    assert (status, body["error"]["code"], body["error"]["param"]) == (
        409,
        "cache_prefix_mismatch",
        "cache.id",
    )
    assert "at token " in body["error"]["message"]
    rewriting = await start(template=FORGETS)
    made = await make(rewriting, messages=[USER])
    status, body = await ask(rewriting, CHAT, messages=[USER], cache={"id": made["id"]})
    assert (status, body["error"]["code"]) == (409, "cache_prefix_mismatch")


@pytest.mark.parametrize("prompt", ["the text", [116, 104]])
async def test_a_completion_goes_on_from_the_cached_tokens(gateway: Gateway, prompt: Any) -> None:
    made = await make(gateway, prompt="Once upon ")
    status, body = await ask(gateway, TEXT, prompt=prompt, cache={"id": made["id"]}, echo=True)
    assert status == 200, body
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    assert gateway.engine.requests[-1].prompt == [*b"Once upon ", *ids]
    assert body["choices"][0]["text"].startswith("Once upon th")


async def test_several_prompts_each_begin_with_it(gateway: Gateway) -> None:
    made = await make(gateway, messages=[SYSTEM])
    await ask(gateway, TEXT, prompt=["a", "b"], cache={"id": made["id"]})
    create, *used = gateway.engine.requests
    assert [request.prompt for request in used] == [[*create.prompt, 97], [*create.prompt, 98]]


async def test_messages_are_no_continuation_of_a_text(gateway: Gateway) -> None:
    made = await make(gateway, prompt="Once upon ")
    status, body = await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]})
    assert (status, body["error"]["code"]) == (409, "cache_prefix_mismatch")


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": [USER]}), (TEXT, {"prompt": "x"})])
@pytest.mark.parametrize("looking", [False, True])
async def test_what_is_not_there_is_said(
    start: Start, path: str, body: dict[str, Any], looking: bool
) -> None:
    gateway = await start(http={"api_keys": ("sk-a", "sk-b")})
    mine = {"headers": {"Authorization": "Bearer sk-a"}}
    status, made = await gateway.post("/v1/caches", {"model": MODEL, "prompt": "Once", "ttl": "1s"}, **mine)
    assert status == 200, made
    count = len(gateway.engine.requests)
    path = "/v1/caches/lookup" if looking else path

    async def refused(cache_id: str, key: str) -> tuple[Any, ...]:
        status, answer = await gateway.post(
            path,
            {"model": MODEL, **body, "cache": {"id": cache_id}},
            headers={"Authorization": f"Bearer {key}"},
        )
        return status, answer["error"]["code"], answer["error"]["param"]

    assert await refused("cache_nothing", "sk-a") == (404, "cache_not_found", "cache.id")
    assert await refused(made["id"], "sk-b") == (404, "cache_not_found", "cache.id"), "another tenant's"
    async with gateway.client.post(
        f"{gateway.url}/v1/caches/flush", json={"scope": {"cache_id": made["id"]}}, **mine
    ) as response:
        assert response.status == 200, await response.text()
    assert await refused(made["id"], "sk-a") == (410, "cache_gone", "cache.id")
    assert len(gateway.engine.requests) == count, "never silently without it"
    await gateway.at_rest()


async def test_it_is_found_where_it_was_made(gateway: Gateway) -> None:
    made = await make(gateway, messages=[SYSTEM], cache_salt="s")
    assert (await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}))[0] == 200
    assert (await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}, cache_salt="s"))[0] == 200
    create, *used = gateway.engine.requests
    assert {request.namespace for request in used} == {create.namespace}
    status, body = await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}, cache_salt="t")
    assert (status, body["error"]["param"]) == (400, "cache_salt")


async def test_with_isolated_keys_it_is_found_under_its_own(start: Start) -> None:
    gateway = await start(tenants="default: {prompt_cache_key: isolate}")
    made = await make(gateway, messages=[SYSTEM], prompt_cache_key="k")
    assert (await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}))[0] == 200
    create, used = gateway.engine.requests
    assert used.namespace == create.namespace
    status, body = await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]}, prompt_cache_key="l")
    assert (status, body["error"]["param"]) == (400, "prompt_cache_key")


async def test_in_explicit_mode_its_end_is_a_breakpoint(gateway: Gateway) -> None:
    made = await make(gateway, messages=[SYSTEM])
    options = {"mode": "explicit", "ttl": "5m"}
    status, _ = await ask(
        gateway, CHAT, messages=[USER], cache={"id": made["id"]}, prompt_cache_options=options
    )
    assert status == 200
    policy = gateway.engine.requests[-1].cache
    assert (policy.read, policy.write, policy.write_tokens) == (True, True, made["tokens"])
    assert [entry.entry_id for entry in policy.entries] == [made["id"]]


async def test_breakpoints_count_from_the_requests_own_messages(gateway: Gateway) -> None:
    made = await make(gateway, messages=[SYSTEM])
    part = {"type": "text", "text": "word. ", "prompt_cache_breakpoint": {"mode": "explicit"}}
    more = {"type": "text", "text": "more"}
    await ask(gateway, CHAT, messages=[{"role": "user", "content": [part, more]}], cache={"id": made["id"]})
    request = gateway.engine.requests[-1]
    _, entry, _ = request.cache.entries
    assert bytes(request.prompt[entry.tokens - 4 : entry.tokens]) == b"word"


async def test_a_lookup_begins_with_it_too_and_uses_nothing(start: Start) -> None:
    engine = FakeEngine()
    gateway = await start(engine)
    made = await make(gateway, messages=[SYSTEM])
    status, _ = await gateway.post(
        "/v1/caches/lookup", {"model": MODEL, "messages": [USER], "cache": {"id": made["id"]}}
    )
    assert status == 200
    await ask(gateway, CHAT, messages=[USER], cache={"id": made["id"]})
    assert engine.looked_up == [(engine.requests[-1].namespace, engine.requests[-1].prompt)]

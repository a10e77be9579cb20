"""/v1/caches on the wire, over an engine that answers as told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from msgspec import structs

from cache.lease import Lease
from cache.memory_store import MemoryStore
from cache.store import StoreError
from engine.errors import PinsExhausted, RequestFailure
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start

SYSTEM = {"role": "system", "content": "You are kind."}
BODY: dict[str, Any] = {"model": MODEL, "messages": [SYSTEM]}
RENDERED = "<|im_start|>system\nYou are kind.<|im_end|>\n"
KEYS = {"api_keys": ("sk-a", "sk-b"), "admin_key": "sk-root"}


def bearer(key: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {key}"}}


async def send(
    gateway: Gateway, method: str, path: str, body: object = None, **kwargs: Any
) -> tuple[int, Any]:
    async with gateway.client.request(
        method, gateway.url + path, **({} if body is None else {"json": body}), **kwargs
    ) as response:
        return response.status, await response.json()


async def make(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    status, made = await gateway.post("/v1/caches", {**BODY, **fields})
    assert status == 200, made
    return made


async def refused(
    gateway: Gateway, method: str, path: str, body: object = None, **kwargs: Any
) -> tuple[Any, ...]:
    status, answer = await send(gateway, method, path, body, **kwargs)
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["param"], error["code"]


async def test_a_cache_is_a_prompt_in_the_cache(gateway: Gateway) -> None:
    before = int(time.time())
    made = await make(gateway, name="kind", ttl="5m", tag="team", priority=70)
    (request,) = gateway.engine.requests
    assert (request.sampling.max_tokens, request.n, request.grammar) == (0, 1, None)
    assert (await gateway.post("/detokenize", {"tokens": request.prompt}))[1]["prompt"] == RENDERED
    (entry,) = request.cache.entries
    assert entry.entry_id == made["id"]
    assert entry.tokens == made["tokens"] == len(request.prompt)
    assert entry.lease == Lease(ttl=300, priority=70, tag="team")
    assert made == {
        "id": made["id"],
        "object": "cache",
        "name": "kind",
        "model": MODEL,
        "created_at": made["created_at"],
        "updated_at": made["created_at"],
        "last_used_at": made["created_at"],
        "expires_at": made["expires_at"],
        "ttl": "5m",
        "pin": "none",
        "priority": 70,
        "tag": "team",
        "lowest": "disk",
        "tokens": len(request.prompt),
        "status": "active",
        "cause": None,
        "tier": "device",
        "tiers": {"device": len(request.prompt), "host": 0, "disk": 0},
        "hits": 0,
        "saved_ms": 0.0,
        "usage": {
            "prompt_tokens": len(request.prompt),
            "completion_tokens": 0,
            "total_tokens": len(request.prompt),
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": len(request.prompt)},
        },
    }
    assert before <= made["created_at"] <= time.time()
    assert 300 <= made["expires_at"] - before <= 302
    status, got = await gateway.get(f"/v1/caches/{made['id']}")
    assert (status, got) == (200, {name: value for name, value in made.items() if name != "usage"})
    await gateway.at_rest()


async def test_a_request_begins_with_what_was_cached(gateway: Gateway) -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    ]
    await make(gateway, tools=tools)
    await gateway.post(
        "/v1/chat/completions",
        {**BODY, "tools": tools, "messages": [SYSTEM, {"role": "user", "content": "hi"}], "max_tokens": 1},
    )
    made, asked = gateway.engine.requests
    assert asked.prompt[: len(made.prompt)] == made.prompt
    assert (asked.namespace, asked.tenant) == (made.namespace, made.tenant)


@pytest.mark.parametrize(("prompt", "ids"), [("abc", [97, 98, 99]), ([1, 2, 3], [1, 2, 3])])
async def test_a_text_or_token_ids(gateway: Gateway, prompt: object, ids: list[int]) -> None:
    status, made = await gateway.post("/v1/caches", {"model": "toy", "prompt": prompt})
    assert (status, made["tokens"], made["model"]) == (200, 3, MODEL)
    assert gateway.engine.requests[0].prompt == ids


async def test_a_salt_and_a_key_are_those_of_the_requests(gateway: Gateway) -> None:
    await make(gateway, cache_salt="s", prompt_cache_key="k")
    await gateway.post("/v1/completions", {"model": MODEL, "prompt": "x", "cache_salt": "s", "max_tokens": 1})
    made, asked = gateway.engine.requests
    assert made.namespace == asked.namespace
    assert made.cache.group != b""


async def test_the_same_name_and_content_is_the_same_object_renewed(gateway: Gateway) -> None:
    first = await make(gateway, name="n", ttl="5m")
    again = await make(gateway, name="n", ttl="1h", pin="soft")
    assert (again["id"], again["created_at"]) == (first["id"], first["created_at"])
    assert (again["ttl"], again["pin"]) == ("1h", "soft")
    assert [entry.lease for r in gateway.engine.requests for entry in r.cache.entries] == [
        Lease(ttl=300),
        Lease(ttl=3600, pin="soft"),
    ]
    assert await refused(
        gateway, "POST", "/v1/caches", {**BODY, "name": "n", "messages": [{"role": "user", "content": "no"}]}
    ) == (409, "name", "cache_name_taken")
    assert len((await gateway.get("/v1/caches"))[1]["data"]) == 1
    assert (await make(gateway))["id"] != first["id"]


async def test_more_pins_than_there_may_be_leave_nothing_behind(start: Start) -> None:
    engine = FakeEngine()
    engine.die(PinsExhausted("Nothing more can be pinned."))
    gateway = await start(engine)
    assert await refused(gateway, "POST", "/v1/caches", {**BODY, "pin": "hard"}) == (
        409,
        "pin",
        "pin_quota_exceeded",
    )
    assert (await gateway.get("/v1/caches"))[1]["data"] == []
    assert engine.entries == {}
    await gateway.at_rest()


@pytest.mark.parametrize("failure", ["engine", "flushed meanwhile", "gone"])
async def test_a_create_that_fails_leaves_nothing_behind(start: Start, failure: str) -> None:
    engine = FakeEngine()
    gateway = await start(engine)
    if failure == "engine":
        engine.die(RequestFailure("broken"))
        assert (await refused(gateway, "POST", "/v1/caches", BODY))[0] == 500
    elif failure == "flushed meanwhile":
        engine.keeps_entries = False
        assert await refused(gateway, "POST", "/v1/caches", BODY) == (503, None, "overloaded")
    else:
        engine.token_delay = 5.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await gateway.post("/v1/caches", BODY)
    async with asyncio.timeout(2):
        while engine.entries or engine.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await gateway.get("/v1/caches"))[1]["data"] == []


async def test_lists_page_like_openai_s(gateway: Gateway) -> None:
    ids = [(await make(gateway, tag="even" if i % 2 == 0 else "odd"))["id"] for i in range(5)]
    _, page = await gateway.get("/v1/caches?limit=2")
    assert [each["id"] for each in page["data"]] == [ids[4], ids[3]]
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == (
        "list",
        ids[4],
        ids[3],
        True,
    )
    _, page = await gateway.get(f"/v1/caches?limit=3&after={ids[3]}")
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([ids[2], ids[1], ids[0]], False)
    _, page = await gateway.get("/v1/caches?order=asc&tag=odd")
    assert [each["id"] for each in page["data"]] == [ids[1], ids[3]]
    assert (await gateway.get("/v1/caches?name=none"))[1]["data"] == []
    for query, param in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("what=1", "what"),
    ]:
        assert (await refused(gateway, "GET", f"/v1/caches?{query}"))[:2] == (400, param)
    assert await refused(gateway, "GET", "/v1/caches?after=cache_x") == (404, "after", "cache_not_found")


async def test_what_the_engine_holds_is_what_is_shown(gateway: Gateway) -> None:
    made = await make(gateway)
    entry = gateway.engine.entries[made["id"]]
    tokens = made["tokens"]

    async def shown() -> tuple[str, object, object]:
        _, got = await gateway.get(f"/v1/caches/{made['id']}")
        _, listed = await gateway.get("/v1/caches")
        assert listed["data"] == [got]
        return got["status"], got["cause"], got["tiers"]

    gateway.engine.entries[made["id"]] = structs.replace(entry, device=5, host=tokens - 9, disk=4)
    assert await shown() == ("active", None, {"device": 5, "host": tokens - 9, "disk": 4})
    gateway.engine.entries[made["id"]] = structs.replace(entry, device=5, status="broken", cause="pressure")
    assert await shown() == ("broken", "pressure", {"device": 5, "host": 0, "disk": 0})
    for missing, status in ((15, "active"), (16, "broken")):
        gateway.engine.entries[made["id"]] = structs.replace(
            entry, device=0, host=tokens - missing, status="broken", cause="pressure"
        )
        assert (await shown())[0] == status
    gateway.engine.entries.clear()  # as an engine that was started again
    assert await shown() == ("cold", None, {"device": 0, "host": 0, "disk": 0})
    gateway.engine.status = "restarting"
    assert await shown() == ("unknown", None, None)


async def test_warming_brings_it_back(gateway: Gateway) -> None:
    made = await make(gateway, ttl="5m", tag="t")
    gateway.engine.entries.clear()
    status, warmed = await gateway.post(f"/v1/caches/{made['id']}/warm", {})
    assert (status, warmed["status"], warmed["usage"]["prompt_tokens"]) == (200, "active", made["tokens"])
    first, second = gateway.engine.requests
    assert (first.prompt, first.cache, first.namespace) == (second.prompt, second.cache, second.namespace)
    assert warmed["expires_at"] >= made["expires_at"]
    async with gateway.client.post(f"{gateway.url}/v1/caches/{made['id']}/warm") as response:
        assert response.status == 200
    assert await refused(gateway, "POST", f"/v1/caches/{made['id']}/warm", {"ttl": "5m"}) == (
        400,
        "ttl",
        "unknown_parameter",
    )


async def test_changes(gateway: Gateway) -> None:
    made = await make(gateway, ttl="5m", tag="old")
    path = f"/v1/caches/{made['id']}"
    status, changed = await send(
        gateway, "PATCH", path, {"ttl": "90s", "priority": 1, "pin": "soft", "tag": ""}
    )
    assert status == 200
    assert (changed["ttl"], changed["priority"], changed["pin"], changed["tag"]) == ("90s", 1, "soft", None)
    assert gateway.engine.entries[made["id"]].lease == Lease(ttl=90, priority=1, pin="soft")
    end = int(time.time()) + 1000
    _, changed = await send(gateway, "PATCH", path, {"expires_at": end})
    assert (changed["ttl"], changed["expires_at"], changed["priority"]) == (None, end, 1)
    assert 990 < gateway.engine.entries[made["id"]].lease.ttl <= 1000
    gateway.engine.entry_error = ("pins_exhausted", "Nothing more can be pinned.")
    assert await refused(gateway, "PATCH", path, {"pin": "hard"}) == (409, "pin", "pin_quota_exceeded")
    gateway.engine.entry_error = None
    assert (await gateway.get(path))[1]["pin"] == "soft"


async def test_deleting_ends_the_promise(gateway: Gateway) -> None:
    made = await make(gateway)
    path = f"/v1/caches/{made['id']}"
    assert await send(gateway, "DELETE", path) == (
        200,
        {"id": made["id"], "object": "cache.deleted", "deleted": True},
    )
    assert gateway.engine.entries == {}
    for method, tail, body in [
        ("GET", "", None),
        ("DELETE", "", None),
        ("PATCH", "", {}),
        ("POST", "/warm", {}),
    ]:
        assert await refused(gateway, method, path + tail, body) == (404, "id", "cache_not_found")


async def test_a_request_that_ends_later_brings_no_entry_back(gateway: Gateway) -> None:
    """It began with the cache before that was deleted, and knows its lease: a hard pin, say."""
    made = await make(gateway, pin="hard")
    gateway.engine.prefill_delay = 0.3
    ask = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "cache": {"id": made["id"]},
        "max_tokens": 1,
    }
    late = asyncio.create_task(gateway.post("/v1/chat/completions", ask))
    await asyncio.sleep(0.1)
    await send(gateway, "DELETE", f"/v1/caches/{made['id']}")
    assert gateway.engine.entries == {}
    assert (await late)[0] == 200
    assert gateway.engine.entries.keys() == {made["id"]}
    async with asyncio.timeout(5.0):
        while gateway.engine.entries:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)


async def test_moves(gateway: Gateway) -> None:
    made = await make(gateway, lowest="host")
    path = f"/v1/caches/{made['id']}"
    tokens = made["tokens"]
    status, moved = await gateway.post(f"{path}/demote", {})
    assert (status, moved["tiers"]) == (200, {"device": 0, "host": tokens, "disk": 0})
    assert (made["tier"], moved["tier"]) == ("device", "host")
    assert (await gateway.get(path))[1]["tier"] == "host"
    assert (await gateway.post(f"{path}/promote", {}))[1]["tiers"]["device"] == tokens
    assert await refused(gateway, "POST", f"{path}/demote", {"to": "disk"}) == (400, "to", "invalid_value")
    assert await refused(gateway, "POST", f"{path}/demote", {"to": "device"}) == (400, "to", "invalid_value")
    assert await refused(gateway, "POST", f"{path}/promote", {"to": "tape"}) == (400, "to", "invalid_value")
    gateway.engine.entry_error = ("bad_request", "There is no such tier here.")
    assert await refused(gateway, "POST", f"{path}/demote", {}) == (409, None, "cache_not_movable")
    gateway.engine.entry_error = None
    gateway.engine.entries.clear()
    assert await refused(gateway, "POST", f"{path}/promote", {}) == (409, "id", "cache_cold")


async def test_its_time_is_over(gateway: Gateway) -> None:
    made = await make(gateway, ttl="1s", name="n")
    path = f"/v1/caches/{made['id']}"
    async with asyncio.timeout(5):
        while gateway.engine.entries:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the engine is told within a second or two
    _, got = await gateway.get(path)
    assert (got["status"], got["tiers"]) == ("expired", {"device": 0, "host": 0, "disk": 0})
    for method, tail in [("PATCH", ""), ("POST", "/warm"), ("POST", "/demote"), ("POST", "/export")]:
        assert await refused(gateway, method, path + tail, {}) == (410, "id", "cache_gone")
    assert (await gateway.get("/v1/caches"))[1]["data"] == []
    assert (await make(gateway, name="n"))["id"] != made["id"]


async def test_one_tenant_s_caches_are_not_there_for_another(start: Start) -> None:
    gateway = await start(http=KEYS)
    _, made = await gateway.post("/v1/caches", {**BODY, "name": "n"}, **bearer("sk-a"))
    path = f"/v1/caches/{made['id']}"
    for method, tail, body in [
        ("GET", "", None),
        ("PATCH", "", {"ttl": "5m"}),
        ("DELETE", "", None),
        ("POST", "/warm", {}),
        ("POST", "/demote", {}),
        ("POST", "/promote", {}),
        ("POST", "/export", {}),
    ]:
        theirs = await send(gateway, method, path + tail, body, **bearer("sk-b"))
        nobody = await send(gateway, method, "/v1/caches/cache_0" + tail, body, **bearer("sk-b"))
        assert theirs[0] == nobody[0] == 404
        assert str(theirs).replace(made["id"], "cache_0") == str(nobody)
    assert (await gateway.get("/v1/caches", **bearer("sk-b")))[1]["data"] == []
    assert await refused(gateway, "GET", f"/v1/caches?after={made['id']}", **bearer("sk-b")) == (
        404,
        "after",
        "cache_not_found",
    )
    _, theirs = await gateway.post("/v1/caches", {**BODY, "name": "n"}, **bearer("sk-b"))
    assert theirs["id"] != made["id"]
    assert (await gateway.get(path, **bearer("sk-a")))[0] == 200


async def test_a_tenant_may_have_so_many(start: Start) -> None:
    gateway = await start(limits={"max_caches": 2})
    for _ in range(2):
        await make(gateway)
    assert await refused(gateway, "POST", "/v1/caches", BODY) == (409, None, "too_many_caches")


async def test_records_that_cannot_be_kept_are_said_and_leave_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def put(*args: Any, **kwargs: Any) -> None:
        raise StoreError("/var/lib/records: no space left")

    gateway = await start()
    monkeypatch.setattr(MemoryStore, "put", put)
    assert await refused(gateway, "POST", "/v1/caches", BODY) == (503, None, "store_unavailable")
    assert gateway.engine.entries == {}
    assert "no space left" in caplog.text


@pytest.mark.parametrize("levels", [100, 252, 253])
async def test_what_a_chat_may_be_rendered_with_a_cache_may_too(gateway: Gateway, levels: int) -> None:
    """To the last level of nesting."""
    value: object = "x"
    for _ in range(levels):
        value = {"a": value}
    body = {**BODY, "chat_template_kwargs": {"x": value}}
    assert (await send(gateway, "POST", "/v1/caches", body))[0] == 200


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "model", "missing_required_parameter"),
        ({"model": MODEL}, "messages", "invalid_value"),
        ({**BODY, "prompt": "x"}, "messages", "invalid_value"),
        ({**BODY, "messages": []}, "messages", "empty_array"),
        ({**BODY, "messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"model": MODEL, "prompt": ["a", "b"]}, "prompt", "invalid_type"),
        ({"model": MODEL, "prompt": ""}, "prompt", "invalid_value"),
        ({"model": MODEL, "prompt": [9999]}, "prompt", "invalid_value"),
        ({"model": MODEL, "prompt": "x", "tools": []}, "tools", "invalid_value"),
        (
            {"model": MODEL, "prompt": "x", "chat_template_kwargs": {}},
            "chat_template_kwargs",
            "invalid_value",
        ),
        ({**BODY, "tools": {}}, "tools", "invalid_type"),
        ({**BODY, "tools": [{"type": "x"}]}, "tools[0].type", "invalid_value"),
        ({**BODY, "ttl": "5 m"}, "ttl", "invalid_value"),
        ({**BODY, "ttl": "0s"}, "ttl", "invalid_value"),
        ({**BODY, "ttl": "99999999s"}, "ttl", "invalid_value"),
        ({**BODY, "ttl": 300}, "ttl", "invalid_type"),
        ({**BODY, "ttl": "5m", "expires_at": 2e9}, "expires_at", "conflicting_parameters"),
        ({**BODY, "expires_at": 1}, "expires_at", "invalid_value"),
        ({**BODY, "expires_at": 9e12}, "expires_at", "invalid_value"),
        ({**BODY, "pin": "forever"}, "pin", "invalid_value"),
        ({**BODY, "priority": 101}, "priority", "integer_above_max_value"),
        ({**BODY, "priority": -1}, "priority", "integer_below_min_value"),
        ({**BODY, "lowest": "tape"}, "lowest", "invalid_value"),
        ({**BODY, "name": ""}, "name", "invalid_value"),
        ({**BODY, "name": "x" * 600}, "name", "string_above_max_length"),
        ({**BODY, "name": "cache_" + "0" * 32}, "name", "invalid_value"),
        ({**BODY, "prompt_cache_key": "k" * 257}, "prompt_cache_key", "string_above_max_length"),
        ({**BODY, "tag": "x" * 600}, "tag", "string_above_max_length"),
        ({**BODY, "cache_salt": ""}, "cache_salt", "invalid_value"),
        ({**BODY, "temperature": 1}, "temperature", "unknown_parameter"),
        ({**BODY, "id": "cache_1"}, "id", "unknown_parameter"),
    ],
)
async def test_what_is_wrong_is_named(gateway: Gateway, body: dict[str, Any], param: str, code: str) -> None:
    assert await refused(gateway, "POST", "/v1/caches", body) == (400, param, code)
    assert gateway.engine.requests == []


async def test_other_models_and_prompts_that_do_not_fit(gateway: Gateway) -> None:
    assert await refused(gateway, "POST", "/v1/caches", {**BODY, "model": "other"}) == (
        404,
        "model",
        "model_not_found",
    )
    assert await refused(gateway, "POST", "/v1/caches", {"model": MODEL, "prompt": "x" * 3000}) == (
        400,
        "prompt",
        "context_length_exceeded",
    )
    gateway.engine.status = "restarting"
    assert (await refused(gateway, "POST", "/v1/caches", BODY))[0] == 503

"""POST /v1/caches/flush over an engine that answers as told: who may, what goes, and what becomes of objects."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cache.lease import FlushScope
from tests.gateway.live import MODEL, Gateway, Start

KEYS: dict[str, Any] = {"api_keys": ("sk-a", "sk-b"), "admin_key": "sk-root"}
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "system", "content": "Be kind."}]}
ASK: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 1}


def bearer(key: str | None) -> dict[str, Any]:
    return {} if key is None else {"headers": {"Authorization": f"Bearer {key}"}}


async def flush(
    gateway: Gateway, scope: dict[str, Any], key: str | None = None, **fields: Any
) -> tuple[int, dict[str, Any]]:
    return await gateway.post("/v1/caches/flush", {"scope": scope, **fields}, **bearer(key))


async def make(gateway: Gateway, key: str | None = None, **fields: Any) -> str:
    status, made = await gateway.post("/v1/caches", {**BODY, **fields}, **bearer(key))
    assert status == 200, made
    return str(made["id"])


async def status_of(gateway: Gateway, cache_id: str, key: str | None = None) -> str:
    return str((await gateway.get(f"/v1/caches/{cache_id}", **bearer(key)))[1]["status"])


async def tenant_of(gateway: Gateway, key: str) -> tuple[str, bytes]:
    """The name and the namespace of a key now."""
    await gateway.post("/v1/completions", ASK, **bearer(key))
    request = gateway.engine.requests[-1]
    return request.tenant, request.namespace


async def test_a_tenant_flushes_itself_and_nobody_else(start: Start) -> None:
    gateway = await start(http=KEYS)
    mine, other = await make(gateway, "sk-a"), await make(gateway, "sk-b")
    (a, before), (b, theirs) = await tenant_of(gateway, "sk-a"), await tenant_of(gateway, "sk-b")
    assert await flush(gateway, {"tenant": a}, "sk-a") == (
        200,
        {
            "object": "cache.flush",
            "dry_run": False,
            "pages": {"device": 3, "host": 0, "disk": 0},
            "tokens": {"device": 48, "host": 0, "disk": 0},
            "bytes": {"device": 48, "host": 0, "disk": 0},
            "entries": 0,
            "in_use": 0,
            "kept": 0,
        },
    )
    assert gateway.engine.flushed == [(FlushScope(tenant=a), False)]
    assert (await tenant_of(gateway, "sk-a"))[1] != before
    assert (await tenant_of(gateway, "sk-b"))[1] == theirs
    assert await status_of(gateway, mine, "sk-a") == "flushed"
    assert await status_of(gateway, other, "sk-b") == "active"
    status, answer = await gateway.post(f"/v1/caches/{mine}/warm", {}, **bearer("sk-a"))
    assert (status, answer["error"]["code"]) == (410, "cache_gone")
    assert b != a


async def test_only_the_admin_flushes_others_and_all(start: Start) -> None:
    gateway = await start(http=KEYS)
    mine, other = await make(gateway, "sk-a"), await make(gateway, "sk-b")
    b, _ = await tenant_of(gateway, "sk-b")
    for scope in ({"tenant": b}, {"all": True}, {"tenant": "nobody"}, {"all": True, "tag": "x"}):
        for dry_run in (False, True):
            status, answer = await flush(gateway, scope, "sk-a", dry_run=dry_run)
            assert (status, answer["error"]["code"]) == (403, "admin_key_required"), scope
    assert gateway.engine.flushed == []
    assert (await flush(gateway, {"tenant": b}, "sk-root"))[0] == 200
    assert await status_of(gateway, mine, "sk-a") == "active"
    assert await status_of(gateway, other, "sk-b") == "flushed"
    assert (await flush(gateway, {"all": True}, "sk-root"))[0] == 200
    assert gateway.engine.flushed == [(FlushScope(tenant=b), False), (FlushScope(), False)]
    assert await status_of(gateway, mine, "sk-a") == "flushed"


async def test_the_operator_s_flush_is_one_of_all(start: Start) -> None:
    gateway = await start(http=KEYS)
    mine = await make(gateway, "sk-a")
    assert (await gateway.post("/admin/flush", {}, **bearer("sk-root")))[0] == 200
    assert gateway.engine.flushed == [(FlushScope(), False)]
    assert await status_of(gateway, mine, "sk-a") == "flushed"


async def test_a_server_without_keys_is_its_user_s(gateway: Gateway) -> None:
    made = await make(gateway)
    assert (await flush(gateway, {"tenant": "local"}))[0] == 200
    assert (await flush(gateway, {"all": True}))[0] == 200
    assert await status_of(gateway, made) == "flushed"


async def test_narrower_scopes(gateway: Gateway) -> None:
    ids = {
        "plain": await make(gateway),
        "tagged": await make(gateway, tag="t"),
        "salted": await make(gateway, cache_salt="s"),
        "keyed": await make(gateway, prompt_cache_key="k"),
    }
    requests = dict(zip(ids, gateway.engine.requests, strict=True))
    for name, scope, asked in [
        ("tagged", {"tag": "t"}, FlushScope(tenant="local", tag="t")),
        (
            "salted",
            {"cache_salt": "s"},
            FlushScope(tenant="local", namespaces=(requests["salted"].namespace,)),
        ),
        (
            "keyed",
            {"prompt_cache_key": "k"},
            FlushScope(tenant="local", group=requests["keyed"].cache.group),
        ),
        ("plain", {"cache_id": ids["plain"]}, FlushScope(tenant="local", entry_id=ids["plain"])),
    ]:
        assert (await flush(gateway, scope, dry_run=True))[1]["dry_run"]
        assert gateway.engine.flushed[-1] == (asked, True)
        assert await status_of(gateway, ids[name]) == "active"
        assert (await flush(gateway, scope))[0] == 200
        assert gateway.engine.flushed[-1] == (asked, False)
        assert await status_of(gateway, ids[name]) == "flushed"
        del ids[name]
        assert {await status_of(gateway, each) for each in ids.values()} <= {"active"}


async def test_scopes_narrow_together(gateway: Gateway) -> None:
    both = await make(gateway, tag="t", cache_salt="s")
    one = await make(gateway, tag="t")
    await flush(gateway, {"tag": "t", "cache_salt": "s", "model": "toy"})
    (scope, _) = gateway.engine.flushed[0]
    assert (scope.tag, scope.adapter) == ("t", b"")
    assert scope.namespaces == (gateway.engine.requests[0].namespace,)
    assert (await status_of(gateway, both), await status_of(gateway, one)) == ("flushed", "active")


async def test_what_was_not_used_for_long(gateway: Gateway) -> None:
    made = await make(gateway)
    await flush(gateway, {"older_than": "1h"})
    assert gateway.engine.flushed == [(FlushScope(tenant="local", idle_for=3600.0), False)]
    assert await status_of(gateway, made) == "active"
    await asyncio.sleep(1.05)
    await flush(gateway, {"older_than": "1s"})
    assert await status_of(gateway, made) == "flushed"


async def test_what_others_hold_of_a_flushed_cache_is_not_held_for_it(gateway: Gateway) -> None:
    """The engine keeps pages that others need, or have just used; a hard pin on them would be nobody's."""
    made = await make(gateway, pin="hard", ttl="5m")
    other = await make(gateway, pin="hard", cache_salt="s")
    await flush(gateway, {"cache_id": made}, dry_run=True)
    await flush(gateway, {"cache_id": made}, tiers=["disk"])
    assert gateway.engine.entries.keys() == {made, other}
    await flush(gateway, {"cache_id": made})
    assert gateway.engine.entries.keys() == {other}


async def test_a_tier_is_not_the_whole(gateway: Gateway) -> None:
    made = await make(gateway)
    assert (await flush(gateway, {"cache_id": made}, tiers=["disk", "host"]))[0] == 200
    assert gateway.engine.flushed == [
        (FlushScope(tenant="local", entry_id=made, tiers=("host", "disk")), False)
    ]
    namespace = gateway.engine.requests[-1].namespace
    await flush(gateway, {"tenant": "local"}, tiers=["device"])
    await gateway.post("/v1/completions", ASK)
    assert gateway.engine.requests[-1].namespace == namespace  # what lies in the other tiers is still found
    assert await status_of(gateway, made) == "active"


async def test_without_an_engine_nothing_is_half_done(gateway: Gateway) -> None:
    made = await make(gateway)
    gateway.engine.status = "restarting"
    assert (await flush(gateway, {"tenant": "local"}))[0] == 503
    gateway.engine.status = "ready"
    assert await status_of(gateway, made) == "active"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "scope"),
        ({"scope": {}}, "scope"),
        ({"scope": {"all": False}}, "scope"),
        ({"scope": {"all": True, "tenant": "t"}}, "scope.all"),
        ({"scope": {"all": True, "cache_salt": "s"}}, "scope.tenant"),
        ({"scope": {"user": "t"}}, "scope.user"),
        ({"scope": {"tag": ""}}, "scope.tag"),
        ({"scope": {"tag": 1}}, "scope.tag"),
        ({"scope": {"older_than": "1 day"}}, "scope.older_than"),
        ({"scope": {"tag": "t"}, "tiers": []}, "tiers"),
        ({"scope": {"tag": "t"}, "tiers": ["tape"]}, "tiers[0]"),
        ({"scope": {"tag": "t"}, "dry_run": "no"}, "dry_run"),
        ({"scope": {"tag": "t"}, "force": True}, "force"),
    ],
)
async def test_what_is_wrong_is_named(gateway: Gateway, body: dict[str, Any], param: str) -> None:
    status, answer = await gateway.post("/v1/caches/flush", body)
    assert (status, answer["error"]["param"]) == (400, param)
    assert gateway.engine.flushed == []


async def test_what_is_not_there_is_named(start: Start) -> None:
    gateway = await start(http=KEYS)
    made = await make(gateway, "sk-a")
    for scope, code in [
        ({"cache_id": made}, "cache_not_found"),
        ({"cache_id": "cache_0"}, "cache_not_found"),
        ({"model": "other"}, "model_not_found"),
    ]:
        status, answer = await flush(gateway, scope, "sk-b")
        assert (status, answer["error"]["code"]) == (404, code)


async def test_a_thousand_objects_are_flushed_at_once(start: Start) -> None:
    """By a generation, not one by one."""
    gateway = await start(http=KEYS, limits={"max_tenant_queued": 1000, "max_queued_requests": 1000})
    ids = [await make(gateway, "sk-a", name=None, tag=str(i)) for i in range(300)]
    other = await make(gateway, "sk-b")
    a, _ = await tenant_of(gateway, "sk-a")
    began = time.perf_counter()
    assert (await flush(gateway, {"tenant": a}, "sk-a"))[0] == 200
    assert time.perf_counter() - began < 0.05
    assert await status_of(gateway, ids[0], "sk-a") == await status_of(gateway, ids[-1], "sk-a") == "flushed"
    assert await status_of(gateway, other, "sk-b") == "active"

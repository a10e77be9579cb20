"""GET /v1/caches/stats: whose the cache is, and who may know."""

from __future__ import annotations

from typing import Any

import pytest

from engine.request import TenantCache
from tests.gateway.live import MODEL, Gateway, Start

KEYS: dict[str, Any] = {"api_keys": ("sk-a", "sk-b"), "admin_key": "sk-root"}
ASK: dict[str, Any] = {"model": MODEL, "prompt": "0123456789", "max_tokens": 1}


def bearer(key: str | None) -> dict[str, Any]:
    return {} if key is None else {"headers": {"Authorization": f"Bearer {key}"}}


async def stats(gateway: Gateway, query: str = "", key: str | None = None) -> list[dict[str, Any]]:
    status, answer = await gateway.get(f"/v1/caches/stats{query}", **bearer(key))
    assert (status, answer["object"]) == (200, "cache.stats"), answer
    tenants: list[dict[str, Any]] = answer["tenants"]
    return tenants


async def test_what_is_cached_and_what_it_was_good_for(gateway: Gateway) -> None:
    gateway.engine.tenants = (
        TenantCache(
            tenant="local",
            bytes={"device": 64, "disk": 32},
            pinned_pages=1,
            evictions={"pressure": 2},
            broken_leases=3,
        ),
    )
    made = (await gateway.post("/v1/caches", {"model": MODEL, "prompt": "01234", "name": "n"}))[1]
    gateway.engine.cached_tokens = 4
    await gateway.post("/v1/completions", {**ASK, "prompt_cache_key": "k"})
    for name in (made["id"], "n"):
        await gateway.post("/v1/completions", {**ASK, "prompt": "56789", "cache": {"id": name}})
    await gateway.at_rest()
    (local,) = await stats(gateway)
    assert (local["tenant"], local["bytes"]) == ("local", {"device": 64, "host": 0, "disk": 32})
    assert (local["entries"], local["pinned_pages"], local["broken_leases"]) == (1, 1, 3)
    assert local["evictions"] == {"pressure": 2}
    usage = local["usage"]
    assert (usage["requests"], usage["prompt_tokens"]) == (4, 35)
    assert usage["tokens"] == {"computed": 23, "device": 12, "host": 0, "disk": 0}
    assert sum(usage["reasons"].values()) == 4
    assert [(key["name"], key["requests"]) for key in usage["keys"]] == [("k", 1)]
    (cache,) = usage["objects"]
    assert (cache["id"], cache["name"], cache["requests"]) == (made["id"], "n", 3)
    got = (await gateway.get(f"/v1/caches/{made['id']}"))[1]
    assert got["saved_ms"] == cache["saved_seconds"] * 1000


async def test_a_tenant_sees_itself_and_the_admin_all(start: Start) -> None:
    gateway = await start(http=KEYS)
    for key in ("sk-a", "sk-b"):
        await gateway.post("/v1/completions", ASK, **bearer(key))
    a, b = (request.tenant for request in gateway.engine.requests)
    gateway.engine.tenants = tuple(
        TenantCache(tenant=name, bytes={"device": 1}, pinned_pages=0, evictions={}, broken_leases=0)
        for name in (a, b)
    )
    await gateway.at_rest()
    assert [each["tenant"] for each in await stats(gateway, key="sk-a")] == [a]
    assert [each["tenant"] for each in await stats(gateway, f"?tenant={a}", key="sk-a")] == [a]
    assert [each["tenant"] for each in await stats(gateway, f"?tenant={b}", key="sk-root")] == [b]
    assert [each["tenant"] for each in await stats(gateway, "?all=true", key="sk-root")] == sorted([a, b])
    for query in (f"?tenant={b}", "?all=true", "?tenant=nobody"):
        status, answer = await gateway.get(f"/v1/caches/stats{query}", **bearer("sk-a"))
        assert (status, answer["error"]["code"]) == (403, "admin_key_required")


@pytest.mark.parametrize(("query", "param"), [("?what=1", "what"), ("?all=yes", "all")])
async def test_what_is_wrong_is_named(gateway: Gateway, query: str, param: str) -> None:
    status, answer = await gateway.get(f"/v1/caches/stats{query}")
    assert (status, answer["error"]["param"]) == (400, param)

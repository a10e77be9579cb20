"""Caches as resources, with an engine behind them: what they promise is what requests find."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serve
from .server import Server, alive, wait_for
from .traffic import MODEL, Ask, chat, check_all, fetch, http, problem, words

OPENING = 16  # tokens that any two chats of one tenant may share: the template's first words
KEYS = ("--api-key", "sk-alpha", "--api-key", "sk-beta", "--admin-key", "sk-root")


def system(seed: int, length: int = 1000) -> str:
    return words(random.Random(seed), length)


def make(server: Server, text: str, *, key: str | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "system", "content": text}], **fields}
    reply = server.post("/v1/caches", body, key=key)
    assert reply.status == 200, reply.body
    made: dict[str, Any] = reply.json()
    return made


def shown(server: Server, made: dict[str, Any], *, key: str | None = None) -> dict[str, Any]:
    reply = server.get(f"/v1/caches/{made['id']}", key=key)
    assert reply.status == 200, reply.body
    got: dict[str, Any] = reply.json()
    return got


def looked_up(server: Server, ask: Ask, *, key: str | None = None) -> dict[str, Any]:
    reply = server.post("/v1/caches/lookup", ask.body, key=key)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json()
    return found


def flush(server: Server, scope: dict[str, Any], *, key: str | None = None, **fields: Any) -> dict[str, Any]:
    reply = server.post("/v1/caches/flush", {"scope": scope, **fields}, key=key)
    assert reply.status == 200, reply.body
    said: dict[str, Any] = reply.json()
    return said


async def test_what_was_cached_is_found_to_the_token(server: Server) -> None:
    text = system(1)
    made = make(server, text, ttl="5m")
    assert made["status"] == "active"
    assert made["tiers"]["device"] == made["tokens"]
    assert made["usage"]["prompt_tokens_details"]["cache_write_tokens"] >= made["tokens"] - OPENING
    ask = chat("what is it?", system=text)
    before = looked_up(server, ask)
    assert before == looked_up(server, ask)  # a look leaves no trace
    assert before["hit_tokens"] >= made["tokens"]
    (got,) = await check_all(server, [ask])
    assert got.cached == before["hit_tokens"]
    again = make(server, text, ttl="5m")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == made["tokens"] - 1
    for each in (made, again):
        server.request("DELETE", f"/v1/caches/{each['id']}")


@pytest.fixture
def keyed(serve: Serve) -> Server:
    return serve(*KEYS, "--pages", "2000", "--hash-step-delay", "0.002", "--test-mode", key="sk-root")


async def test_a_flush_touches_one_tenant_and_nothing_of_it_comes_back(keyed: Server) -> None:
    """Also not what a request in flight has still to write; it ends as it would have."""
    text = system(2, 3000)
    mine, other = make(keyed, text, key="sk-alpha"), make(keyed, text, key="sk-beta")
    running = chat("tell me more", system=text + system(3, 3000), max_tokens=400, stream=True)
    later = [chat("and now?", system=text), chat("and now?", system=text + system(3, 3000))]
    async with http("sk-alpha") as session:
        begun = asyncio.Event()
        task = asyncio.create_task(_checked_from(session, keyed, running, begun))
        await asyncio.wait(
            [task, asyncio.create_task(begun.wait())], timeout=20, return_when=asyncio.FIRST_COMPLETED
        )
        tenant = await asyncio.to_thread(_tenant, keyed, "sk-alpha")
        said = await asyncio.to_thread(flush, keyed, {"tenant": tenant}, key="sk-alpha")
        assert said["entries"] >= 1
        assert said["in_use"] > 0
        assert not task.done(), "the request was to be in flight"
        got = await task
    assert got.cached > 0
    for ask in later:
        assert looked_up(keyed, ask, key="sk-alpha")["hit_tokens"] == 0
    assert looked_up(keyed, running, key="sk-alpha")["hit_tokens"] == 0
    assert shown(keyed, mine, key="sk-alpha")["status"] == "flushed"
    assert shown(keyed, other, key="sk-beta")["status"] == "active"
    (theirs,) = await check_all(keyed, [later[0]], key="sk-beta")
    assert theirs.cached >= other["tokens"]
    keyed.settled()


async def _checked_from(session: Any, server: Server, ask: Ask, begun: asyncio.Event) -> Any:
    got = await fetch(session, server, ask, on_event=lambda _: begun.set())
    assert problem(ask, got) is None, problem(ask, got)
    return got


def _tenant(server: Server, key: str) -> str:
    reply = server.get("/v1/caches/stats", key=key)
    assert reply.status == 200, reply.body
    (tenant,) = reply.json()["tenants"]
    name: str = tenant["tenant"]
    return name


async def test_narrow_flushes_keep_what_others_use(keyed: Server) -> None:
    shared, own = system(4, 500), system(5, 500)
    tagged = make(keyed, shared + own, key="sk-alpha", tag="t")
    plain = make(keyed, shared, key="sk-alpha")
    said = flush(keyed, {"tag": "t"}, key="sk-alpha", dry_run=True)
    assert flush(keyed, {"tag": "t"}, key="sk-alpha") == {**said, "dry_run": False}
    assert shown(keyed, tagged, key="sk-alpha")["status"] == "flushed"
    assert shown(keyed, plain, key="sk-alpha")["status"] == "active"
    ask = chat("?", system=shared + own)
    found = looked_up(keyed, ask, key="sk-alpha")["hit_tokens"]
    assert OPENING < found <= plain["tokens"]


async def test_an_engine_that_was_started_again_is_warmed(serve: Serve) -> None:
    server = serve("--test-mode")
    text = system(6)
    made = make(server, text, name="kind")
    before = server.engine_pid()
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: shown(server, made)["status"] == "cold", 20.0, "another engine, which knows nothing")
    assert not alive(before)
    ask = chat("?", system=text)
    assert looked_up(server, ask)["hit_tokens"] == 0
    warmed = server.post(f"/v1/caches/{made['id']}/warm", {}).json()
    assert (warmed["id"], warmed["status"]) == (made["id"], "active")
    (got,) = await check_all(server, [ask])
    assert got.cached >= made["tokens"]


async def test_hard_pins_have_a_share_and_requests_go_on(serve: Serve) -> None:
    """A fifth of the pages by default: what is over it is refused, and the longest request still fits."""
    server = serve("--pages", "200", "--max-model-len", "2000")
    pinned = []
    for seed in range(10, 20):
        body = {
            "model": MODEL,
            "messages": [{"role": "system", "content": system(seed, 300)}],
            "pin": "hard",
        }
        reply = server.post("/v1/caches", body)
        if reply.status != 200:
            break
        pinned.append(reply.json())
    assert pinned
    assert (reply.status, reply.error["code"], reply.error["param"]) == (409, "pin_quota_exceeded", "pin")
    listed = server.get("/v1/caches").json()["data"]
    assert len(listed) == len(pinned)
    long = chat("x", system=system(21, 1800), max_tokens=32)
    await check_all(server, [long])
    assert {each["status"] for each in server.get("/v1/caches").json()["data"]} == {"active"}
    soft = server.request("PATCH", f"/v1/caches/{pinned[0]['id']}", {"pin": "none"})
    assert soft.status == 200
    assert server.post("/v1/caches", body).status == 200


async def test_a_thousand_caches_of_one_tenant_are_flushed_at_once(serve: Serve) -> None:
    server = serve(*KEYS, "--pages", "20000", "--max-tenant-queued", "64", key="sk-root")
    text = system(30)
    other = make(server, text, key="sk-beta")

    def one(seed: int) -> dict[str, Any]:
        return make(server, system(1000 + seed, 100), key="sk-alpha")

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(1000)))
    tenant = _tenant(server, "sk-alpha")
    began = time.perf_counter()
    said = flush(server, {"tenant": tenant}, key="sk-alpha")
    took = time.perf_counter() - began
    assert said["entries"] == 1000
    assert took < 0.25, took
    assert shown(server, made[0], key="sk-alpha")["status"] == "flushed"
    assert looked_up(server, chat("?", system=system(1000, 100)), key="sk-alpha")["hit_tokens"] == 0
    (theirs,) = await check_all(server, [chat("?", system=text)], key="sk-beta")
    assert theirs.cached >= other["tokens"]


async def test_caches_outlive_the_server(serve: Serve, tmp_path: Path) -> None:
    flags = ("--cache-dir", str(tmp_path / "cache"))
    text = system(60)
    first = serve(*flags)
    made, flushed = make(first, text, name="kind", ttl="1h"), make(first, system(61), name="gone")
    flush(first, {"cache_id": flushed["id"]})
    first.stop()
    second = serve(*flags)
    got = shown(second, made)
    assert (got["name"], got["ttl"], got["tokens"]) == ("kind", "1h", made["tokens"])
    assert got["status"] in {"cold", "active"}
    assert shown(second, flushed)["status"] == "flushed"
    warmed = second.post(f"/v1/caches/{made['id']}/warm", {}).json()
    assert warmed["status"] == "active"
    # what a stop in order has written to disk is read again instead of being computed
    assert warmed["usage"]["prompt_tokens_details"]["cached_tokens"] >= made["tokens"] // 16 * 16
    again = make(second, text, name="kind")
    assert again["id"] == made["id"]


async def test_a_request_that_names_a_cache_begins_with_it_or_is_told(server: Server) -> None:
    text = system(70)
    made = make(server, text, ttl="5m")
    whole = chat("what is it?", system=text)
    named = Ask(
        whole.path,
        {**whole.body, "messages": whole.body["messages"][1:], "cache": {"id": made["id"]}},
        whole.prompt,
        whole.choices,
    )
    (got,) = await check_all(server, [named])
    assert got.cached >= made["tokens"]
    assert shown(server, made)["hits"] >= 1
    flush(server, {"cache_id": made["id"]})
    refused = server.post(named.path, named.body)
    assert (refused.status, refused.error["code"]) == (410, "cache_gone")
    (got,) = await check_all(server, [whole])
    assert got.cached < made["tokens"]


async def test_of_all_ways_to_end_none_leaves_a_promise_behind(serve: Serve) -> None:
    """Deleted, expired and flushed objects: their pages can go like any others, and pins are given back."""
    server = serve("--pages", "200", "--max-model-len", "2000")
    for seed in range(80, 86):
        made = make(server, system(seed, 400), pin="hard", ttl="1s")
        if seed % 3 == 0:
            server.request("DELETE", f"/v1/caches/{made['id']}")
        elif seed % 3 == 1:
            flush(server, {"cache_id": made["id"]})
        else:
            wait_for(lambda: _pinned(server) == 0, 10.0, "the end of a pin")
        assert _pinned(server) == 0
    assert server.get("/v1/caches").json()["data"] == []


def _pinned(server: Server) -> int:
    tenants = server.get("/v1/caches/stats").json()["tenants"]
    return sum(each["pinned_pages"] for each in tenants)


async def test_files_go_from_server_to_server(serve: Serve) -> None:
    first, second = serve(), serve(*KEYS, key="sk-root")
    text = system(40)
    made = make(first, text, name="kind")
    exported = first.post(f"/v1/caches/{made['id']}/export", {})
    assert exported.status == 200
    headers = {"Content-Type": "application/octet-stream"}
    taken = second.post("/v1/caches/import?ttl=5m", exported.body, key="sk-alpha", headers=headers)
    assert taken.status == 200, taken.body
    assert taken.json()["status"] == "active"
    ask = chat("what is it?", system=text)
    (got,) = await check_all(second, [ask], key="sk-alpha")
    assert got.cached >= made["tokens"]
    (theirs,) = await check_all(second, [ask], key="sk-beta")
    assert theirs.cached <= OPENING
    for spoiled in (exported.body[:-1], exported.body[:-20] + bytes(20), exported.body + b"x"):
        refused = second.post("/v1/caches/import", spoiled, key="sk-beta", headers=headers)
        assert (refused.status, refused.error["code"]) == (400, "invalid_cache_file")
    (theirs,) = await check_all(second, [chat("so?", system=text)], key="sk-beta")


async def test_tiers_are_moved_between(serve: Serve) -> None:
    server = serve("--host-cache", "64MiB")
    text = system(50)
    made = make(server, text)
    tokens = made["tokens"]
    down = server.post(f"/v1/caches/{made['id']}/demote", {}).json()
    full = tokens // 16 * 16  # of a page that is not full nothing goes down
    assert down["tiers"] == {"device": 0, "host": full, "disk": 0}
    assert (down["status"], down["tier"], down["cause"]) == ("active", "host", None)
    assert shown(server, made)["tier"] == "host"
    ask = chat("?", system=text)
    assert looked_up(server, ask)["hit_tokens_by_tier"] == {"device": 0, "host": full, "disk": 0}
    up = server.post(f"/v1/caches/{made['id']}/promote", {}).json()
    assert up["tiers"]["device"] == full
    (got,) = await check_all(server, [ask])
    assert got.cached == full

"""Two servers on one Redis: what is made, changed, ended and flushed through one is so for the other, within a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.redis_server import RedisServer

from .conftest import Serve
from .server import Server, wait_for
from .traffic import MODEL, chat, check_all, words

WITHIN = 1.0
KEYS = ("--api-key", "sk-alpha", "--api-key", "sk-beta", "--admin-key", "sk-root")
ALPHA, BETA, ROOT = "sk-alpha", "sk-beta", "sk-root"


@pytest.fixture
def two(serve: Serve, redis_server: RedisServer) -> tuple[Server, Server]:
    one, other = (serve(*KEYS, "--max-caches", "3", "--redis", redis_server.url) for _ in range(2))
    return one, other


def make(server: Server, seed: int, **fields: Any) -> Any:
    text = words(random.Random(seed), 300)
    body = {"model": MODEL, "messages": [{"role": "system", "content": text}], "ttl": "1h", **fields}
    return server.post("/v1/caches", body, key=ALPHA)


def status(server: Server, made: str, key: str = ALPHA) -> int:
    return server.get(f"/v1/caches/{made}", key=key).status


async def test_a_cache_is_the_same_through_both(two: tuple[Server, Server]) -> None:
    one, other = two
    made = make(one, 1, name="rules").json()["id"]
    assert status(other, made) == 200
    assert status(other, "rules") == 200
    assert status(other, made, BETA) == 404
    changed = other.request("PATCH", f"/v1/caches/{made}", {"tag": "new"}, key=ALPHA)
    assert changed.status == 200, changed
    assert one.get(f"/v1/caches/{made}", key=ALPHA).json()["tag"] == "new"
    body = {
        "model": MODEL,
        "max_tokens": 4,
        "messages": [{"role": "user", "content": "x"}],
        "cache": {"id": made},
    }
    for server in (one, other):
        assert server.post("/v1/chat/completions", body, key=ALPHA).status == 200
    assert other.request("DELETE", f"/v1/caches/{made}", key=ALPHA).status == 200
    assert status(one, made) == 404
    assert one.post("/v1/chat/completions", body, key=ALPHA).status == 404


async def test_a_pin_that_is_undone_through_one_is_undone_for_the_other(two: tuple[Server, Server]) -> None:
    """Its engine would keep the pages for good."""
    one, other = two

    def pinned() -> int:
        tenants = other.get("/v1/caches/stats", key=ALPHA).json()["tenants"]
        return sum(each["pinned_pages"] for each in tenants)

    for undo in ("delete", "change"):
        made = make(one, 6, name=undo, pin="hard", ttl=None).json()["id"]
        body = {
            "model": MODEL,
            "max_tokens": 2,
            "messages": [{"role": "user", "content": "x"}],
            "cache": {"id": made},
        }
        assert other.post("/v1/chat/completions", body, key=ALPHA).status == 200
        assert pinned() > 0
        if undo == "delete":
            reply = one.request("DELETE", f"/v1/caches/{made}", key=ALPHA)
        else:
            reply = one.request("PATCH", f"/v1/caches/{made}", {"pin": "none", "ttl": "5m"}, key=ALPHA)
        assert reply.status == 200, reply
        wait_for(lambda: not pinned(), WITHIN, "the other's engine to let go")


async def test_the_limit_counts_over_both(two: tuple[Server, Server]) -> None:
    one, other = two
    made = [make(server, seed).status for seed, server in enumerate((one, other, one, other, one))]
    assert made == [200, 200, 200, 409, 409]
    shown = other.get("/v1/caches", key=ALPHA).json()["data"]
    assert len(shown) == 3


@pytest.mark.parametrize("scope", [{"tenant": "own"}, {"all": True}])
async def test_a_flush_through_one_holds_for_the_other(
    two: tuple[Server, Server], scope: dict[str, Any]
) -> None:
    """Its pages are not found there, its engine is rid of them, and its caches are gone; others' are as they were."""
    one, other = two
    rng = random.Random(3)
    ours = chat("q", system=words(rng, 600), max_tokens=4)
    theirs = chat("q", system=words(rng, 600), max_tokens=4)
    made = make(one, 4).json()["id"]
    for server in two:
        await check_all(server, [ours], key=ALPHA)
        await check_all(server, [theirs], key=BETA)
        (again,) = await check_all(server, [ours], key=ALPHA)
        assert again.cached > 500
    tenant = other.get("/v1/caches/stats", key=ALPHA).json()["tenants"][0]["tenant"]
    asked = {"tenant": tenant} if "tenant" in scope else scope
    flushed = one.post("/v1/caches/flush", {"scope": asked}, key=ROOT)
    assert flushed.status == 200, flushed
    assert "pending" not in flushed.json()

    def ended() -> bool:
        return bool(other.get(f"/v1/caches/{made}", key=ALPHA).json()["status"] == "flushed")

    wait_for(ended, WITHIN, "the other to know")

    def cleared() -> bool:
        tenants = other.get("/v1/caches/stats?all=true", key=ROOT).json()["tenants"]
        return not any(each["bytes"]["device"] for each in tenants if each["tenant"] == tenant)

    wait_for(cleared, WITHIN, "the other's engine to be rid of it")
    (after,) = await check_all(other, [ours], key=ALPHA)
    assert after.cached < 50
    (kept,) = await check_all(other, [theirs], key=BETA)
    assert (kept.cached > 500) == ("tenant" in scope)


async def test_what_was_flushed_while_a_server_was_away_is_not_found_on_its_disk(
    serve: Serve, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Nor when Redis is away as it starts, which is when nobody can tell it."""
    one = serve(*KEYS, "--redis", redis_server.url)
    disk = ("--cache-dir", str(tmp_path / "cache"), "--host-cache", "1MiB", "--disk-cache", "16MiB")
    other = serve(*KEYS, "--redis", redis_server.url, *disk)
    ask = chat("q", system=words(random.Random(5), 600), max_tokens=4)
    await check_all(other, [ask], key=ALPHA)
    await check_all(other, [ask], key=ALPHA)
    other.stop()
    other = serve(*KEYS, "--redis", redis_server.url, *disk)
    (found,) = await check_all(other, [ask], key=ALPHA)
    assert found.cached > 500, "the restart lost it"
    other.stop()
    blind = serve(*KEYS, "--redis", "redis://127.0.0.1:1", *disk)
    (found,) = await check_all(blind, [ask], key=ALPHA)
    assert found.cached < 50
    blind.stop()
    assert one.post("/v1/caches/flush", {"scope": {"all": True}}, key=ROOT).status == 200
    other = serve(*KEYS, "--redis", redis_server.url, *disk)
    (found,) = await check_all(other, [ask], key=ALPHA)
    assert found.cached < 50


def respond(server: Server, text: str, *, key: str = ALPHA, **fields: Any) -> Any:
    body = {"model": MODEL, "input": text, "max_output_tokens": 8, "temperature": 0, **fields}
    return server.post("/v1/responses", body, key=key)


async def test_a_response_goes_on_through_the_other(two: tuple[Server, Server]) -> None:
    """With the tokens it had: the prompt of the next turn is the same whichever server makes it."""
    one, other = two
    first = respond(one, "Name a river.").json()
    turns = [respond(server, "Another.", previous_response_id=first["id"]) for server in two]
    assert [turn.status for turn in turns] == [200, 200]
    here, there = (turn.json() for turn in turns)
    assert here["usage"]["input_tokens"] == there["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert [item["content"][0]["text"] for item in here["output"] if item["type"] == "message"] == [
        item["content"][0]["text"] for item in there["output"] if item["type"] == "message"
    ]
    theirs = respond(other, "x", previous_response_id=first["id"], key=BETA)
    assert theirs.error["code"] == "previous_response_not_found"
    assert other.request("DELETE", f"/v1/responses/{first['id']}", key=ALPHA).status == 200
    assert one.get(f"/v1/responses/{first['id']}", key=ALPHA).status == 404
    assert one.get(f"/v1/responses/{there['id']}", key=ALPHA).status == 200, "a child lost its parent"

"""Whatever happens to Redis under load: requests that keep nothing do not notice, and the others are told so."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.redis_server import RedisServer, require_redis
from tests.slow_proxy import SlowProxy

from .server import Reply, Server
from .traffic import MODEL, chat, check, eventually, http, words

CLIENTS = 4
BEFORE, DURING, AFTER = 0.4, 1.6, 0.3
"""Seconds of load without the event, with it, and when all is well again."""
ADDED = 0.25
"""Seconds that an event may add, once to each client."""
MOST_LINES = 5
PATIENCE = 15.0


@dataclass
class Scene:
    """A Redis behind a proxy, and a server that uses it."""

    redis: RedisServer
    proxy: SlowProxy
    server: Server
    directory: Path
    more: list[RedisServer] = field(default_factory=list)

    def made(self) -> str:
        """A new cache object's id."""
        messages = [{"role": "system", "content": words(random.Random(), 200)}]
        reply = self.server.post("/v1/caches", {"model": MODEL, "messages": messages, "ttl": "1h"})
        assert reply.status == 200, reply
        made: str = reply.json()["id"]
        return made

    def degraded(self) -> bool:
        reply = self.server.get("/health")
        assert reply.status == 200, reply
        return bool(reply.json().get("degraded"))

    def lines(self) -> list[str]:
        return [line for line in self.server.log().splitlines() if "headwater.fault" in line]

    def counted(self, name: str) -> float:
        lines = self.server.get("/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    require_redis()
    directory = tmp_path_factory.mktemp("faults")
    store = RedisServer(directory / "redis")
    proxy = SlowProxy(store.port)
    server = Server(
        directory, "--drain-delay", "0", "--test-mode", "--redis", f"redis://127.0.0.1:{proxy.port}"
    )
    scene = Scene(store, proxy, server, directory)
    yield scene
    server.stop()
    proxy.close()
    for each in (scene.redis, *scene.more):
        each.thaw()
        each.kill()


@pytest.fixture
def scene(stage: Scene) -> Scene:
    stage.redis.ask("FLUSHALL")
    return stage


@dataclass
class Load:
    """Chats that keep nothing, and questions that need the store, for as long as it runs."""

    scene: Scene
    made: str
    chats: list[tuple[float, float]] = field(default_factory=list)
    """When each began, and what it took."""
    asked: list[tuple[float, float, Reply]] = field(default_factory=list)

    async def run(self, until: Callable[[], bool]) -> None:
        async with http() as session, asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(self._chat(session, number, until))
            group.create_task(self._ask(until))

    async def _chat(self, session: Any, number: int, until: Callable[[], bool]) -> None:
        rng = random.Random(number)
        while not until():
            got = await check(session, self.scene.server, chat(words(rng, 60), max_tokens=4))
            self.chats.append((got.began, got.took))

    async def _ask(self, until: Callable[[], bool]) -> None:
        while not until():
            began = time.monotonic()
            reply = await asyncio.to_thread(self.scene.server.get, f"/v1/caches/{self.made}")
            self.asked.append((began, time.monotonic() - began, reply))
            await asyncio.sleep(0.02)


async def under_load(
    scene: Scene, begin: Callable[[], object], end: Callable[[], object], *, attempts: int = 2
) -> Load:
    """Load before, during and after an event. Every chat is right, and each client waits for it at most once: where the
    machine had other things to do, the event comes again."""
    for left in reversed(range(attempts)):
        load, late = await _under_load(scene, begin, end)
        if len(late) <= CLIENTS:
            break
        assert left, late
    return load


async def _under_load(
    scene: Scene, begin: Callable[[], object], end: Callable[[], object]
) -> tuple[Load, list[float]]:
    """And what the chats took that took longer than they may."""
    load = Load(scene, await asyncio.to_thread(scene.made))
    lines = len(scene.lines())
    over = False
    task = asyncio.create_task(load.run(lambda: over))
    await asyncio.sleep(BEFORE)
    began = time.monotonic()
    await asyncio.to_thread(begin)
    await asyncio.sleep(DURING)
    await asyncio.to_thread(end)
    await eventually(lambda: not scene.degraded(), PATIENCE, "Redis to be used again")
    await asyncio.sleep(AFTER)
    over = True
    await task
    usual = max(took for at, took in load.chats if at + took < began)
    late = [took for at, took in load.chats if at + took >= began and took > usual + ADDED]
    assert len(load.chats) > 10 * CLIENTS
    assert len(scene.lines()) - lines <= MOST_LINES, scene.lines()[lines:]
    for _, took, reply in load.asked:
        assert reply.status in (200, 404, 503), reply
        assert took < 1.0, took
        if reply.status == 503:
            assert reply.error["code"] == "store_unavailable"
            assert int(reply.headers["retry-after"]) >= 1
    return load, late


def statuses(load: Load) -> set[int]:
    return {reply.status for *_, reply in load.asked}


async def test_killed_and_empty_when_it_is_back(scene: Scene) -> None:
    load = await under_load(scene, scene.redis.kill, scene.redis.start)
    assert statuses(load) == {200, 404, 503}
    firsts = [reply.status for *_, reply in load.asked]
    assert firsts.index(503) < firsts.index(404), "what is not known is not gone"
    assert scene.counted("headwater_store_breaker_opens_total") >= 1


async def test_frozen(scene: Scene) -> None:
    load = await under_load(scene, scene.redis.freeze, scene.redis.thaw)
    assert statuses(load) == {200, 503}
    waited = [took for *_, took, reply in load.asked if reply.status == 503 and took > 0.15]
    assert len(waited) <= 6, waited  # until the breaker opens; after that nobody waits


async def test_emptied(scene: Scene) -> None:
    load = await under_load(scene, lambda: scene.redis.ask("FLUSHALL"), lambda: None)
    assert statuses(load) == {200, 404}


async def test_slow(scene: Scene) -> None:
    def slow() -> None:
        scene.proxy.delay = 0.4

    def fast() -> None:
        scene.proxy.delay = 0.0

    load = await under_load(scene, slow, fast)
    assert statuses(load) == {200, 503}


async def test_full(scene: Scene) -> None:
    """What is there can still be read; more cannot be kept."""
    refused: list[Reply] = []

    def fill() -> None:
        scene.redis.ask("CONFIG", "SET", "maxmemory", 1)
        body = {"model": MODEL, "messages": [{"role": "system", "content": "x"}]}
        refused.extend(scene.server.post("/v1/caches", body) for _ in range(5))

    load = await under_load(scene, fill, lambda: scene.redis.ask("CONFIG", "SET", "maxmemory", 0))
    assert sum(reply.status != 200 for *_, reply in load.asked) <= 2  # a busy machine may take its 200 ms
    assert {reply.status for reply in refused} == {503}
    assert await asyncio.to_thread(scene.made)


async def test_junk(scene: Scene) -> None:
    def spoil() -> None:
        for number, key in enumerate(scene.redis.ask("KEYS", "hw:*")):
            if number % 3:
                scene.redis.ask("SET", key, bytes([number % 256]) * 100)
            else:
                scene.redis.ask("DEL", key)
                scene.redis.ask("LPUSH", key, "junk")

    load = await under_load(scene, spoil, lambda: scene.redis.ask("FLUSHALL"))
    assert 503 in statuses(load)


async def test_a_password_that_has_changed(scene: Scene) -> None:
    def lock() -> None:
        scene.redis.ask("CONFIG", "SET", "requirepass", "other")
        scene.redis.password = "other"
        scene.redis.ask("CLIENT", "KILL", "TYPE", "normal")

    def unlock() -> None:
        scene.redis.ask("CONFIG", "SET", "requirepass", "")
        scene.redis.password = None

    load = await under_load(scene, lock, unlock)
    assert statuses(load) == {200, 503}
    assert scene.counted('headwater_store_errors_total{kind="refused"}') >= 1


async def test_too_many_clients(scene: Scene) -> None:
    holding: list[redis.Redis] = []

    def crowd() -> None:
        holder = redis.Redis(unix_socket_path=str(scene.redis.socket), single_connection_client=True)
        holder.config_set("maxclients", 1)
        holder.client_kill_filter(_type="normal", skipme=True)
        holding.append(holder)

    def leave() -> None:
        holding[0].config_set("maxclients", 1000)
        holding[0].close()

    load = await under_load(scene, crowd, leave)
    assert statuses(load) == {200, 503}
    assert scene.counted('headwater_store_errors_total{kind="limit"}') >= 1


async def test_it_reads_its_data(scene: Scene) -> None:
    """Started again with so much of it that it answers LOADING for a while."""

    def restart() -> None:
        with redis.Redis(unix_socket_path=str(scene.redis.socket)) as client:
            client.mset({f"other:{number}": "x" for number in range(2000)})
            client.save()
        scene.redis.kill()
        slow = ("--key-load-delay", "1500", "--loading-process-events-interval-bytes", "1024")
        scene.redis.flags = slow
        scene.redis.start(wait=False)

    def wait() -> None:
        scene.redis.flags = ()
        scene.redis.until(lambda: scene.redis.ask("PING"))

    load = await under_load(scene, restart, wait)
    assert statuses(load) == {200, 503}
    assert 200 in {reply.status for *_, reply in load.asked[-5:]}
    assert scene.counted('headwater_store_errors_total{kind="loading"}') >= 1


async def test_failed_over(scene: Scene) -> None:
    """The replica is promoted and the old master follows it: whoever still writes there is told to look again."""
    old = scene.redis
    new = RedisServer(scene.directory / "replica", "--replicaof", f"127.0.0.1 {old.port}")
    new.until(lambda: b"master_link_status:up" in new.ask("INFO", "replication"))

    def promote() -> None:
        new.ask("REPLICAOF", "NO", "ONE")
        new.flags = ()
        old.ask("REPLICAOF", "127.0.0.1", new.port)
        deadline = threading.Event()
        for _ in range(5):
            body = {"model": MODEL, "messages": [{"role": "system", "content": "x"}]}
            scene.server.post("/v1/caches", body)
            deadline.wait(0.05)

    def point() -> None:
        scene.proxy.target = new.port

    scene.redis = new
    scene.more.append(old)
    load = await under_load(scene, promote, point, attempts=1)
    assert 404 not in statuses(load)
    assert 200 in {reply.status for *_, reply in load.asked[-5:]}
    assert await asyncio.to_thread(scene.made)
    assert scene.counted('headwater_store_errors_total{kind="readonly"}') >= 1


async def test_a_server_that_starts_without_redis(scene: Scene, serve: Callable[..., Server]) -> None:
    """It serves; what was flushed stays so; and when Redis is there it is used."""
    await asyncio.to_thread(scene.redis.kill)
    server = serve("--redis", scene.redis.url)
    health = server.get("/health/ready").json()
    assert health == {"status": "ready", "degraded": ["redis"]}
    async with http() as session:
        await check(session, server, chat("hello", max_tokens=4))
    assert server.get("/v1/caches").status == 503
    flushed = server.post("/v1/caches/flush", {"scope": {"all": True}})
    assert (flushed.status, flushed.json()["pending"]) == (200, ["redis"])
    await asyncio.to_thread(scene.redis.start)
    await eventually(
        lambda: server.get("/health").json() == {"status": "ready"}, PATIENCE, "Redis to be used"
    )
    assert server.get("/v1/caches").status == 200


def respond(server: Server, text: str, **fields: Any) -> Reply:
    return server.post("/v1/responses", {"model": MODEL, "input": text, "max_output_tokens": 8, **fields})


async def test_conversations_go_on_through_an_outage(scene: Scene, serve: Callable[..., Server]) -> None:
    """What passed through this server goes on; what it has never seen is 503 and not 404; what was said meanwhile is there for
    every server afterwards."""
    other = serve("--redis", scene.redis.url)
    first = respond(scene.server, "Name a river.").json()["id"]
    elsewhere = respond(other, "Name a lake.").json()["id"]
    await asyncio.to_thread(scene.redis.freeze)
    second = respond(scene.server, "Another.", previous_response_id=first)
    third = respond(scene.server, "And another.", previous_response_id=second.json()["id"])
    assert (second.status, third.status) == (200, 200)
    assert scene.server.get(f"/v1/responses/{third.json()['id']}").status == 200
    for reply in (
        respond(scene.server, "x", previous_response_id=elsewhere),
        scene.server.get(f"/v1/responses/{elsewhere}"),
        scene.server.request("DELETE", f"/v1/responses/{elsewhere}"),
    ):
        assert (reply.status, reply.error["code"]) == (503, "session_store_unavailable")
        assert int(reply.headers["retry-after"]) >= 1
    assert scene.server.request("DELETE", f"/v1/responses/{first}").status == 200
    assert scene.server.get(f"/v1/responses/{first}").status == 404
    await asyncio.to_thread(scene.redis.thaw)
    for server in (scene.server, other):
        await eventually(
            lambda server=server: "degraded" not in server.get("/health").json(), PATIENCE, "Redis to be used"
        )
        assert server.get(f"/v1/responses/{third.json()['id']}").status == 200
        assert server.get(f"/v1/responses/{elsewhere}").status == 200
        assert server.get(f"/v1/responses/{first}").status == 404
    assert respond(other, "Go on.", previous_response_id=third.json()["id"]).status == 200


async def test_a_store_that_fails_at_any_moment_fails_nothing_else(scene: Scene) -> None:
    """The Nth thing that is asked of it, for N from 1 until none is left: each turn is right, or refused and can be made again."""
    server = scene.server
    first = respond(server, "Name a river.")
    expected = respond(server, "Another.", previous_response_id=first.json()["id"]).json()["usage"]
    for failing in range(1, 6):
        server.post("/admin/failpoints", {"spec": f"store_fails={failing}"})
        turn = respond(server, "Another.", previous_response_id=first.json()["id"])
        assert turn.status in (200, 503), turn
        server.post("/admin/failpoints", {"spec": "off"})
        again = respond(server, "Another.", previous_response_id=first.json()["id"])
        assert again.json()["usage"]["input_tokens"] == expected["input_tokens"]


async def test_a_wrong_url_or_password_file_is_one_line(tmp_path: Path) -> None:
    for flags, line in (
        (("--redis", "http://:secret@x"), "redis: a Redis url begins with"),
        (("--redis-password-file", "x"), "redis_password_file needs --redis"),
    ):
        with pytest.raises(AssertionError, match=line) as caught:
            await asyncio.to_thread(Server, tmp_path, *flags)
        assert "secret" not in str(caught.value)

"""What only Redis can do to a store: keys, lists of names, values that are not ours, and every shape of installation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cache.redis_address import RedisAddress
from cache.redis_link import PROBE_INTERVAL, RedisLink
from cache.redis_store import PAGE, RedisStore
from cache.store import Record, StoreError, StoreUnavailable
from tests.redis_server import RedisServer, free_port, require_redis

KEY = "hw:{@t}:record:k:x"


@asynccontextmanager
async def opened(url: str, *, said: list[str] | None = None) -> AsyncIterator[RedisStore]:
    lines = [] if said is None else said
    store = RedisStore(RedisLink(RedisAddress.parse(url), timeout=5.0, tell=lines.append))
    try:
        yield store
    finally:
        await store.close()


async def test_what_has_an_end_leaves_no_key_behind(redis_server: RedisServer) -> None:
    """The lists of names end with the last record that does, and with a record that does not, they stay."""
    async with opened(redis_server.socket_url) as store:
        await store.put("k", "t", "short", b"1", ttl=0.05)
        await store.put("k", "t", "long", b"1", ttl=0.4)
        await store.put("other", "t", "kept", b"1")
        assert 0.05 < redis_server.ask("PTTL", "hw:{@t}:names:k") / 1000 <= 0.4
        await asyncio.sleep(0.1)
        assert await store.get("k", "t", "short") is None
        assert [record.name for record in await store.list("k", "t")] == ["long"]
        await store.put("k", "t", "again", b"1", ttl=0.1)
        assert redis_server.ask("ZRANGE", "hw:{@t}:names:k", 0, -1) == [b"again", b"long"]
        assert redis_server.ask("ZCARD", "hw:{@t}:ends:k") == 2
        await store.put("k", "t", "for ever", b"1")
        assert redis_server.ask("PTTL", "hw:{@t}:names:k") == redis_server.ask("PTTL", "hw:{@t}:ends:k") == -1
        await store.delete("k", "t", "for ever")
        await asyncio.sleep(0.5)
        assert sorted(redis_server.ask("KEYS", "*")) == [
            b"hw:{@t}:ends:other",
            b"hw:{@t}:names:other",
            b"hw:{@t}:record:other:kept",
        ]


async def test_a_list_is_longer_than_a_page_and_skips_what_is_over(redis_server: RedisServer) -> None:
    async with opened(redis_server.socket_url) as store:
        names = [f"{number:04}" for number in range(2 * PAGE + 5)]
        for name in names:
            await store.put("k", "t", name, name.encode(), ttl=60)
        assert [record.name for record in await store.list("k", "t")] == names
        for name in names[: PAGE + 3]:
            redis_server.ask("DEL", f"hw:{{@t}}:record:k:{name}")  # as Redis drops what it wants to be rid of
        assert [record.name for record in await store.list("k", "t", limit=2)] == names[PAGE + 3 : PAGE + 5]
        assert [record.name for record in await store.list("k", "t", reverse=True)] == names[: PAGE + 2 : -1]


@pytest.mark.parametrize(
    "spoil",
    [
        ("SET", KEY, b""),
        ("SET", KEY, b"junk"),
        ("SET", KEY, b"\x00" * 100),
        ("SETRANGE", KEY, 0, b"HWR2"),
        ("SETRANGE", KEY, 8, b"!"),
        ("SETRANGE", KEY, 30, b"!"),
        ("SETRANGE", KEY, 52, b"\xff\xff"),
        ("APPEND", KEY, b"!"),
        ("COPY", "hw:{@t}:record:k:y", KEY, "REPLACE"),
        ("COPY", "hw:{@u}:record:k:x", KEY, "REPLACE"),
        ("COPY", "hw:{@t}:record:other:x", KEY, "REPLACE"),
    ],
    ids=lambda command: " ".join(map(str, command[::2])),
)
async def test_a_value_that_is_not_ours_is_an_error_and_can_be_replaced(
    spoil: tuple[str | bytes | int, ...], redis_server: RedisServer
) -> None:
    """Also another record's, whole as it is: what is read was written under that key."""
    said: list[str] = []
    async with opened(redis_server.socket_url, said=said) as store:
        for kind, tenant, name in (("k", "t", "x"), ("k", "t", "y"), ("k", "u", "x"), ("other", "t", "x")):
            await store.put(kind, tenant, name, b"value of another")
        redis_server.ask(*spoil)
        for look in (store.get("k", "t", "x"), store.list("k", "t"), store.get("k", "t", "x")):
            with pytest.raises(StoreError, match=r"damaged or another's.*record:k:x") as caught:
                await look
            assert not isinstance(caught.value, StoreUnavailable)
        assert len(said) == 1
        assert store.link.counts.faults["damaged"] == 3
        assert await store.get("k", "t", "y") is not None
        made = await store.put("k", "t", "x", b"new")
        assert await store.get("k", "t", "x") == made
        redis_server.ask(*spoil)
        assert await store.delete("k", "t", "x")


async def test_a_key_of_another_type_is_an_error_and_can_be_replaced(redis_server: RedisServer) -> None:
    async with opened(redis_server.socket_url) as store:
        redis_server.ask("LPUSH", KEY, "a")
        for look in (store.get("k", "t", "x"), store.put("k", "t", "x", b"1", expected="0" * 16)):
            with pytest.raises(StoreError, match=r"WRONGTYPE.*record:k:x"):
                await look
        await store.put("k", "t", "x", b"1")
        assert await store.get("k", "t", "x") is not None


async def test_scripts_that_the_server_has_forgotten_are_sent_again(redis_server: RedisServer) -> None:
    async with opened(redis_server.socket_url) as store:
        await store.put("k", "t", "x", b"1")
        redis_server.ask("SCRIPT", "FLUSH")
        await store.put("k", "t", "x", b"2")
        redis_server.ask("SCRIPT", "FLUSH")
        assert await store.delete("k", "t", "x")


async def test_names_cannot_leave_their_tenant(redis_server: RedisServer) -> None:
    """Whatever is in them: braces, colons, line ends and other tenants' keys."""
    hostile = ("t", "}t", "{t}", "t}:record:k:x", "", "@", "*", "\r\nFLUSHALL\r\n", "é", "t:names")
    async with opened(redis_server.socket_url) as store:
        for tenant in hostile:
            for name in hostile:
                await store.put("k", tenant, name, f"{tenant}/{name}".encode(), ttl=60)
        for tenant in hostile:
            found = await store.list("k", tenant)
            assert {record.name: record.value for record in found} == {
                name: f"{tenant}/{name}".encode() for name in hostile
            }
        assert redis_server.ask("DBSIZE") == len(hostile) * (len(hostile) + 2)
        with pytest.raises(StoreError, match="too long"):
            await store.get("k", "t", "x" * 2000)


async def test_ten_thousand_cancelled_commands_mix_up_nothing(redis_server: RedisServer) -> None:
    """Cancelled at any moment, among others that are not: whoever gets a reply gets that to his own question, and nothing
    of what was begun is left undone."""
    rng = random.Random(7)
    async with opened(redis_server.socket_url) as store:
        names = [f"{number:03}" for number in range(50)]
        for name in names:
            await store.put("k", "t", name, name.encode() * 500)

        async def ask(name: str) -> Record | None:
            if rng.random() < 0.2:
                return await store.put("k", "t", name, name.encode() * 500)
            return await store.get("k", "t", name)

        answered = cancelled = busy = 0
        while cancelled < 10_000:
            asked = [(name, asyncio.create_task(ask(name))) for name in rng.choices(names, k=60)]
            doomed = [task for _, task in asked if rng.random() < 0.8]
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            for task in doomed:
                cancelled += task.cancel()
            outcomes = await asyncio.gather(*(task for _, task in asked), return_exceptions=True)
            for (name, _), outcome in zip(asked, outcomes, strict=True):
                if isinstance(outcome, Record):
                    answered += 1
                    assert (outcome.name, outcome.value) == (name, name.encode() * 500)
                else:
                    busy += isinstance(outcome, StoreUnavailable)
                    assert isinstance(outcome, StoreUnavailable | asyncio.CancelledError), outcome
        assert answered > 1000
        assert busy < answered / 10
        assert redis_server.ask("CLIENT", "LIST").count(b"id=") <= 18  # its connections, this one and a spare
        for name in names:
            found = await store.get("k", "t", name)
            assert found is not None
            assert found.value == name.encode() * 500


async def test_a_change_goes_on_without_its_caller(redis_server: RedisServer) -> None:
    async with opened(redis_server.socket_url) as store:
        asked = [asyncio.create_task(store.put("k", "t", str(number), b"1")) for number in range(30)]
        await asyncio.sleep(0)
        for task in asked:
            task.cancel()
    assert redis_server.ask("ZCARD", "hw:{@t}:names:k") == 30


async def test_a_cluster(tmp_path: Path) -> None:
    """Of one node, which has all slots: it refuses keys of different slots in a script like any other."""
    require_redis()
    server = RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    try:
        server.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        server.until(lambda: b"cluster_state:ok" in server.ask("CLUSTER", "INFO"))
        async with opened(f"redis+cluster://127.0.0.1:{server.port}") as store:
            for tenant in ("", "a", "b{}"):
                await store.put("k", tenant, "x", tenant.encode(), ttl=60)
                assert [each.value for each in await store.list("k", tenant)] == [tenant.encode()]
                assert await store.delete("k", tenant, "x")
    finally:
        server.kill()


async def test_a_failover_that_sentinels_decide(tmp_path: Path) -> None:
    """The master is killed: what was written to it and reached the replica is found there."""
    require_redis()
    servers = [RedisServer(tmp_path / "one")]
    try:
        master = servers[0]
        servers.append(RedisServer(tmp_path / "two", "--replicaof", f"127.0.0.1 {master.port}"))
        replica = servers[1]
        replica.until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        watched = (
            f"sentinel monitor main 127.0.0.1 {master.port} 1\nsentinel down-after-milliseconds main 300\n"
        )
        servers.append(RedisServer(tmp_path / "sentinel", sentinel=watched))
        sentinel = servers[2]
        sentinel.until(lambda: b"slaves=1" in sentinel.ask("INFO", "sentinel"))
        dead = free_port()
        url = f"redis+sentinel://127.0.0.1:{dead},127.0.0.1:{sentinel.port}/main"
        said: list[str] = []
        async with opened(url, said=said) as store:
            before = await store.put("k", "t", "x", b"1", ttl=60)
            assert master.ask("WAIT", 1, 2000) == 1
            master.kill()
            servers.remove(master)
            async with asyncio.timeout(20):
                while True:
                    try:
                        assert await store.get("k", "t", "x") == before
                        await store.put("k", "t", "x", b"2", ttl=60)
                        break
                    except StoreUnavailable:
                        await asyncio.sleep(PROBE_INTERVAL / 4)
            assert len(said) <= 4, said
        assert replica.ask("EXISTS", KEY) == 1
    finally:
        for server in servers:
            server.kill()

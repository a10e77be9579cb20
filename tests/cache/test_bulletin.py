"""Notes between servers: each is heard once in order, also after an outage, and whoever may have missed some is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from cache.bulletin import KEY, MOST_NOTES, Bulletin
from cache.redis_address import RedisAddress
from cache.redis_link import RedisLink
from cache.store import StoreUnavailable
from tests.redis_server import RedisServer


@dataclass
class Reader:
    bulletin: Bulletin
    heard: list[bytes] = field(default_factory=list)
    missed: int = 0

    def miss(self) -> None:
        self.missed += 1

    async def until(self, condition: Callable[[], bool], within: float = 10.0) -> None:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@asynccontextmanager
async def reading(server: RedisServer) -> AsyncIterator[Reader]:
    link = RedisLink(RedisAddress.parse(server.url), timeout=2.0)
    reader = Reader(Bulletin(link))
    reader.bulletin.follow("t", reader.heard.append)
    reader.bulletin.when_missed(reader.miss)
    task = asyncio.create_task(reader.bulletin.run())
    try:
        await reader.until(lambda: reader.bulletin.up)
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()


async def test_others_hear_what_is_posted_in_order_and_at_once(redis_server: RedisServer) -> None:
    async with reading(redis_server) as one, reading(redis_server) as two:
        assert (one.missed, two.missed) == (1, 1)  # at the beginning, before the first
        notes = [str(number).encode() for number in range(250)]
        for note in notes:
            await one.bulletin.post("t", note)
        one.bulletin.tell("t", b"last")
        one.bulletin.tell("other", b"nobody follows that")
        await two.until(lambda: len(two.heard) == 251, within=1.0)
        assert two.heard == [*notes, b"last"]
        assert one.heard == []
        assert (one.missed, two.missed) == (1, 1)
    assert redis_server.ask("PTTL", KEY) > 0


async def test_the_stream_is_bounded(redis_server: RedisServer) -> None:
    async with reading(redis_server) as one:
        redis_server.ask(
            "EVAL", f"for i = 1, {MOST_NOTES} do redis.call('XADD', KEYS[1], '*', 'a', i) end", 1, KEY
        )
        for _ in range(300):
            await one.bulletin.post("t", b"x")
        assert redis_server.ask("XLEN", KEY) < MOST_NOTES + 200


async def test_whoever_was_cut_off_reads_on_and_is_told(redis_server: RedisServer) -> None:
    async with reading(redis_server) as one, reading(redis_server) as two:
        await one.bulletin.post("t", b"1")
        await two.until(lambda: two.heard == [b"1"])
        redis_server.ask("CLIENT", "KILL", "TYPE", "normal")
        one.bulletin.tell("t", b"2")
        await two.until(lambda: two.heard == [b"1", b"2"])
        assert two.missed == 2


@pytest.mark.parametrize("junk", [False, True])
async def test_notes_that_redis_has_lost_are_noticed(junk: bool, redis_server: RedisServer) -> None:
    """While everybody is connected, too; and what comes after that is heard."""
    async with reading(redis_server) as one, reading(redis_server) as two:
        await one.bulletin.post("t", b"1")
        await two.until(lambda: two.heard == [b"1"])
        redis_server.ask("FLUSHALL")
        if junk:
            redis_server.ask("SET", KEY, "junk")
        else:
            await two.until(lambda: two.missed == 2)
        await one.bulletin.post("t", b"2")
        await two.until(lambda: two.heard == [b"1", b"2"])


async def test_notes_of_nobody_are_passed_over(redis_server: RedisServer) -> None:
    async with reading(redis_server) as one:
        redis_server.ask("XADD", KEY, "*", "some", "thing")
        redis_server.ask("XADD", KEY, "*", "topic", "t", "from", "x", "body", b"\xff")
        await one.until(lambda: one.heard == [b"\xff"])


async def test_an_outage_and_a_beginning_without_redis(own_redis: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(reading(own_redis))
        two = await stack.enter_async_context(reading(own_redis))
        own_redis.kill()
        await two.until(lambda: not two.bulletin.up)
        for _ in range(4):
            with pytest.raises(StoreUnavailable):
                await one.bulletin.post("t", b"x")
        one.bulletin.tell("t", b"later")
        own_redis.start()
        await two.until(lambda: two.heard == [b"later"])
        assert two.missed >= 2

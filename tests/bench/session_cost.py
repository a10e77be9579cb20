"""What a session costs a turn, with Redis on loopback: `python -m tests.bench.session_cost [TURNS]`.

Reads a transcript and writes the next one, as a turn that goes on from an earlier response does: messages of four characters a
token and the ids of all tokens, in msgpack. Prints the two together, of TURNS turns one after another, beside a PING of the same client,
which is what a command costs without anything in it. Needs `redis-server`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import uvloop

from cache.redis_address import RedisAddress
from cache.redis_link import RedisLink
from cache.redis_store import RedisStore
from gateway.sessions.sessions import Sessions
from tests.redis_server import RedisServer

TOKENS = (2000, 20_000)
MESSAGE = 200
"""Tokens of each."""
TTL = 600.0


def transcript(tokens: int) -> bytes:
    rng = random.Random(tokens)
    letters = "abcdefghijklmnopqrstuvwxyz      "
    messages = [
        {"role": ("user", "assistant")[i % 2], "content": "".join(rng.choices(letters, k=4 * MESSAGE))}
        for i in range(tokens // MESSAGE)
    ]
    return msgspec.msgpack.encode({"messages": messages, "ids": rng.choices(range(50_000), k=tokens)})


async def timed(turns: int, turn: Callable[[int], Awaitable[None]]) -> list[float]:
    """Milliseconds of each, in order of size."""
    took = []
    for number in range(-turns // 10, turns):
        began = time.perf_counter()
        await turn(number)
        if number >= 0:
            took.append((time.perf_counter() - began) * 1e3)
    return sorted(took)


def shown(name: str, took: list[float]) -> str:
    at = {share: took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.9, 0.99)}
    return f"{name:<32} p50 {at[0.5]:6.2f} ms   p90 {at[0.9]:6.2f} ms   p99 {at[0.99]:6.2f} ms"


async def measure(server: RedisServer, turns: int) -> None:
    link = RedisLink(RedisAddress.parse(server.url))
    sessions = Sessions(RedisStore(link), ttl=TTL, most_bytes=64 * 2**20)

    async def ping(_: int) -> None:
        await link.run("PING")

    print(shown("PING", await timed(turns, ping)))
    for tokens in TOKENS:
        value = transcript(tokens)
        await sessions.put("bench", "t", "-1", value)

        async def turn(number: int, value: bytes = value) -> None:
            found = await sessions.get("bench", "t", "-1")
            assert found is not None
            assert len(found.value) == len(value)
            assert (await sessions.put("bench", "t", str(number % 100), value)).where == "store"

        print(shown(f"{tokens:,} tokens, {len(value) / 1024:.0f} KiB", await timed(turns, turn)))
    await link.close()


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(Path(directory))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(measure(server, turns))
        finally:
            server.kill()


if __name__ == "__main__":
    main()

"""An engine killed while it writes its cache to disk: the next one starts clean, and what it finds there is right."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

from .conftest import Serve
from .server import Server, wait_for
from .traffic import Ask, check_all, completion, fetch, http

KINDS = 12
PREFIX = 160
"""Tokens, ten pages: all kinds together are twice what the device holds."""


def ask(kind: int, last: int) -> Ask:
    draw = random.Random(kind)
    return completion([*(draw.randrange(32, 127) for _ in range(PREFIX)), 32 + last, 40], max_tokens=4)


async def keep_asking(server: Server) -> None:
    """Whatever comes of it: the same prefixes again and again, which are written to disk."""
    async with http() as session:
        for number in range(10_000):
            try:
                await fetch(session, server, ask(number % KINDS, number % 50))
            except OSError:
                await asyncio.sleep(0.05)


async def test_a_kill_at_any_moment_leaves_a_clean_start(serve: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    server = await asyncio.to_thread(
        serve,
        *("--test-mode", "--pages", "64", "--max-model-len", "512", "--hash-token-delay", "0.0005"),
        *("--host-cache", "16KiB", "--cache-dir", str(directory), "--disk-cache", "4MiB"),
    )
    found = 0
    for delay in (0.1, 0.37, 0.7):
        asking = asyncio.create_task(keep_asking(server))
        await asyncio.sleep(delay)
        os.kill(server.engine_pid(), signal.SIGKILL)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.to_thread(wait_for, lambda: not server.is_ready(), 5.0, "the death to be noticed")
        await asyncio.to_thread(wait_for, server.is_ready, 20.0, "the next engine")
        assert not list((directory / "new").iterdir()), "a page half written is left"
        await check_all(server, [ask(kind, 60) for kind in range(KINDS)])
        disk = (await asyncio.to_thread(server.engine))["cache"]["disk"]
        assert disk["failed"] == 0, "a page was damaged"
        found += disk["hit_tokens"]
    assert found > 0, "nothing was ever found on disk"

"""What must hold of the tiers whatever happens, at a whole server: a kill while pages are written, and what may not be written."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serve
from .server import Server, alive, wait_for
from .traffic import Ask, chat, check_all, words

SMALL = ("--hash-token-delay", "0.0005", "--pages", "120", "--max-model-len", "640", "--host-cache", "1MiB")
OPENING = 16
LEASED = {"cache": {"ttl": "1h"}}
"""Worth a file as soon as it is there."""


def pages_in(directory: Path) -> list[Path]:
    """Whatever there is besides what the server needs itself."""
    return [path for path in directory.rglob("*") if path.is_file() and "pages" in path.parts]


@pytest.mark.parametrize("count", [1, 5, 25])
async def test_a_kill_while_pages_are_written_costs_pages_and_nothing_else(
    serve: Serve, tmp_path: Path, count: int
) -> None:
    """Gateway and engine at once, as soon as there are so many files. What the next server finds is right, to the token."""
    cache = tmp_path / "cache"
    flags = (*SMALL, "--cache-dir", str(cache))
    server = serve(*flags)
    noise = random.Random(count)
    asks = [chat(words(noise, 300), max_tokens=4, **LEASED) for _ in range(8)]
    traffic = asyncio.create_task(_until_the_end(server, asks))
    await asyncio.to_thread(wait_for, lambda: len(pages_in(cache)) >= count, 20.0, "files")
    engine = server.engine_pid()
    for pid in (engine, server.pid):
        os.kill(pid, signal.SIGKILL)
    server.process.wait()
    await traffic
    await asyncio.to_thread(wait_for, lambda: not alive(engine), 5.0, "the end of the engine")
    server = serve(*flags)
    await check_all(server, asks)
    assert server.engine()["cache"]["disk"]["hit_tokens"] > 0
    server.settled(5.0)


async def _until_the_end(server: Server, asks: list[Ask]) -> None:
    try:
        await check_all(server, asks)
    except Exception:  # noqa: BLE001 - the server is killed meanwhile; how requests see that is shown elsewhere
        return


@pytest.mark.parametrize(("retention", "written"), [("in_memory", False), ("24h", True)])
async def test_what_is_to_stay_in_memory_is_never_in_a_file(
    serve: Serve, tmp_path: Path, retention: str, written: bool
) -> None:
    """However often it is used, however long it is leased, when it has to go and when the server goes."""
    cache = tmp_path / "cache"
    server = serve(*SMALL, "--cache-dir", str(cache))
    text = words(random.Random(7), 300)

    def found(question: str) -> dict[str, int]:
        body = {"model": "hash", "messages": _say(text + question), "max_tokens": 1, **LEASED}
        reply = server.post("/v1/chat/completions", {**body, "prompt_cache_retention": retention})
        assert reply.status == 200, reply
        tiers: dict[str, int] = reply.json()["x_cache"]["hit_tokens"]
        return tiers

    for number in range(4):
        found(f" {number}?")
    for number in range(8):  # others, whose promises are stronger and who leave nothing below the device
        body = {"model": "hash", "messages": _say(words(random.Random(100 + number), 400)), "max_tokens": 1}
        server.post("/v1/chat/completions", {**body, "cache": {"lowest": "device", "pin": "soft"}})
    last = found(" and?")
    assert last["host"] > OPENING, last
    server.terminate()
    assert server.wait() == 0
    assert bool(pages_in(cache)) is written
    tokens = b"".join(letter.to_bytes(4, "little") for letter in text[40:60].encode())
    for path in cache.rglob("*"):
        if path.is_file() and not written:
            content = path.read_bytes()
            assert text[40:60].encode() not in content
            assert tokens not in content


def _say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]

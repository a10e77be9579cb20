"""The gateway's table of bad requests against a real engine: cheap to refuse, and nobody else notices."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from collections.abc import Iterator

import aiohttp
import pytest

from tests.gateway.live import MODEL
from tests.gateway.test_bad_requests import BAD_BODIES, CASES, ENDPOINTS

from .server import Server
from .traffic import Ask, chat, check, completion, http, words

QUICK = 0.1
TRIES = 3  # of which the best counts: other processes share this machine
GOOD = 60


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The model, by name and context, that the table was made for."""
    flags = ("--model-id", MODEL, "--extra-name", "hash", "--max-model-len", "2048", "--max-body", str(2**20))
    started = Server(tmp_path_factory.mktemp("toy"), "--drain-delay", "0", *flags)
    yield started
    started.stop()


def bad_requests() -> list[tuple[str, bytes, dict[str, str]]]:
    """Path, body and headers of all that the server must refuse, whatever is wrong with it."""
    fields = [(path, json.dumps({**ENDPOINTS[path], **change}).encode(), {}) for path, change, _, _ in CASES]
    paths = ("/v1/chat/completions", "/v1/completions", "/tokenize")
    bodies = [(path, body, headers) for path in paths for body, headers, _, _ in BAD_BODIES]
    return [*fields, *bodies]


async def _refusal(
    session: aiohttp.ClientSession, server: Server, bad: tuple[str, bytes, dict[str, str]]
) -> str | None:
    """What is wrong with how a bad request was refused, None if nothing is."""
    path, body, headers = bad
    headers = {"Content-Type": "application/json", **headers}
    async with session.post(server.root + path, data=io.BytesIO(body), headers=headers) as response:
        answer = await response.read()
    if response.status not in (400, 413, 415):
        return f"{path} {body[:60]!r}: HTTP {response.status} {answer[:100]!r}"
    leaks = [hint for hint in (b"Traceback", b'File "', b"/usr/", b"/home/", b"0x7f") if hint in answer]
    return f"{path} {body[:60]!r} leaks {leaks}" if leaks else None


async def test_one_by_one(toy: Server) -> None:
    """Each within a tenth of a second on an idle server."""
    pid = toy.engine_pid()
    slow, wrong = [], []
    async with http() as session:
        for bad in bad_requests():
            took = []
            for _ in range(TRIES):
                began = time.perf_counter()
                fault = await _refusal(session, toy, bad)
                took.append(time.perf_counter() - began)
                if took[-1] < QUICK:
                    break
            if min(took) >= QUICK:
                slow.append((bad[0], bad[1][:60], min(took)))
            if fault:
                wrong.append(fault)
    assert wrong == []
    assert slow == []
    assert toy.engine_pid() == pid
    assert toy.engine()["prompt_tokens"] == 0, "one of them reached the engine"


async def test_among_good_ones(toy: Server) -> None:
    """Eight clients with good requests see nothing of two that send bad ones."""
    pid = toy.engine_pid()
    rng = random.Random(8)
    bads = bad_requests()
    rng.shuffle(bads)
    asks: list[Ask] = []
    for k in range(GOOD):
        make = chat if k % 2 else completion
        asks.append(make(words(rng, 200), max_tokens=30, stream=k % 3 == 0, n=1 + k % 2))
    wrong: list[str] = []

    async def bad_client(part: list[tuple[str, bytes, dict[str, str]]]) -> None:
        async with http() as session:
            wrong.extend(filter(None, [await _refusal(session, toy, bad) for bad in part]))

    async def good_client(part: list[Ask]) -> None:
        async with http() as session:
            for ask in part:
                await check(session, toy, ask)

    async with asyncio.TaskGroup() as group:
        for k in range(2):
            group.create_task(bad_client(bads[k::2]))
        for k in range(8):
            group.create_task(good_client(asks[k::8]))
    assert wrong == []
    assert toy.engine_pid() == pid
    await asyncio.to_thread(toy.settled)
    assert "Traceback" not in toy.log()

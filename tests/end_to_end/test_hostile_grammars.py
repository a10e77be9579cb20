"""What is made to hang or kill a server gets an answer, and its neighbours notice little of it."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.conformance.hostile import ANSWERED_WITHIN, HARMLESS, Hostile, hostile

from .chats import CHAT, model_of
from .server import Server
from .traffic import http

AT_ONCE = 2
MARGIN = 5.0
"""Seconds that a busy machine may add, with so many of them at once. `tests.bench.hostile_grammars` measures them alone."""
LONGEST_GAP = 2.0
"""Between two tokens of somebody else's stream: one that hangs as long as the worst of these takes would show."""


@asynccontextmanager
async def _neighbour(
    session: aiohttp.ClientSession, server: Server, model: str
) -> AsyncIterator[list[float]]:
    """Streams for as long as this is open; the times between its events."""
    gaps: list[float] = []

    async def stream() -> None:
        for seed in itertools.count():
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "Tell a story."}],
                "max_tokens": 1000,
                "ignore_eos": True,
                "seed": seed,
                "stream": True,
            }
            last = time.monotonic()
            async with session.post(server.root + CHAT, json=body) as response:
                assert response.status == 200
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        assert b'"error"' not in line[:20], line
                        now = time.monotonic()
                        gaps.append(now - last)
                        last = now

    task = asyncio.create_task(stream())
    try:
        yield gaps
        assert not task.done(), "the neighbour's stream ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _payload(one: Hostile, model: str) -> aiohttp.BytesIOPayload:
    text = json.dumps(one.body(model, chat_template_kwargs={"enable_thinking": False})).encode()
    return aiohttp.BytesIOPayload(io.BytesIO(text), content_type="application/json")


@pytest.mark.timeout(180)
async def test_hostile_input_is_answered_and_harms_nobody(thinker_server: Server) -> None:
    server, model = thinker_server, model_of(thinker_server)
    pid = server.engine_pid()
    turn = asyncio.Semaphore(AT_ONCE)

    async with http() as session:

        async def ask(one: Hostile) -> tuple[str, int, str | None, float]:
            async with turn:
                began = time.monotonic()
                async with session.post(server.root + CHAT, data=_payload(one, model)) as response:
                    answer = await response.json()
                took = time.monotonic() - began
            error = answer.get("error")
            if error is not None:
                assert set(error) == {"message", "type", "param", "code"}
                assert len(error["message"]) < 2000
            return one.name, response.status, error and error["code"], took

        await ask(HARMLESS)
        async with _neighbour(session, server, model) as gaps:
            asked = hostile()
            answers = await asyncio.gather(*[ask(one) for one in asked])

    for one, (name, status, code, took) in zip(asked, answers, strict=True):
        assert status in ((400,) if one.refused else (200, 400)), (name, status, code)
        assert took < ANSWERED_WITHIN + MARGIN, (name, took)
    assert max(gaps[1:]) < LONGEST_GAP, sorted(gaps)[-5:]
    assert server.engine_pid() == pid
    assert server.get("/health/ready").status == 200
    await asyncio.to_thread(server.settled, 5)

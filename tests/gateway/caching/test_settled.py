"""One set of numbers of a request, whoever knew what when it ended."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import RequestStream
from engine.errors import DeadlineExceeded, EngineDied
from engine.request import (
    GenerationRequest,
    PromptCached,
    RequestEnded,
    RequestStarted,
    SamplingParams,
    SequenceDelta,
)
from gateway.caching.settled import Settled, settle
from gateway.generation import Generation
from gateway.pieces import TextOptions
from gateway.tokenizer import Tokenizer

ACCOUNT = RequestEnded("r", started=True, cached=6, written=4, computed=9, generated=5, saved=0.5, entries=())


async def heard(*, tokens: int, finish: bool, start: bool = True) -> Generation:
    """A request of ten tokens of which its reader has heard so much."""
    request = GenerationRequest(request_id="r", prompt=list(range(10)), sampling=SamplingParams(max_tokens=9))
    stream = RequestStream(request, lambda *_: None)
    generation = Generation(stream, Tokenizer.hash(), TextOptions())
    if start:
        stream.push(RequestStarted("r", 6, 0.1, host_tokens=2, disk_tokens=1, saved=0.25))
        stream.push(PromptCached("r", 3))
    for i in range(tokens):
        stream.push(SequenceDelta("r", 0, (65,), "length" if finish and i == tokens - 1 else None))
    if tokens:
        await generation.read()
    elif start:
        generation._take(stream._events)
    return generation


def told(settled: Settled) -> tuple[object, ...]:
    return (settled.status, settled.error, settled.cached, settled.written, settled.completion, settled.saved)


@pytest.mark.parametrize(
    ("tokens", "finish", "error", "account", "expected"),
    [
        (2, True, None, ACCOUNT, ("ok", None, 6, 4, 2, 0.5)),  # a stop string ends what is charged, not what is generated
        (2, True, asyncio.CancelledError(), ACCOUNT, ("ok", None, 6, 4, 2, 0.5)),
        (2, False, asyncio.CancelledError(), ACCOUNT, ("aborted", None, 6, 4, 5, 0.5)),
        (2, False, ConnectionResetError(), ACCOUNT, ("aborted", None, 6, 4, 5, 0.5)),
        (2, False, None, ACCOUNT, ("aborted", None, 6, 4, 5, 0.5)),
        (2, False, DeadlineExceeded("late"), ACCOUNT, ("failed", "deadline_exceeded", 6, 4, 5, 0.5)),
        (2, False, EngineDied("gone"), None, ("failed", "engine_restarting", 6, 3, 2, 0.25)),
        (2, False, RuntimeError("a bug"), ACCOUNT, ("failed", "internal_error", 6, 4, 5, 0.5)),
        (0, False, asyncio.CancelledError(), None, ("aborted", None, 6, 3, 0, 0.25)),
    ],
)  # fmt: skip
async def test_who_knows_best(
    tokens: int, finish: bool, error: BaseException | None, account: RequestEnded | None, expected: object
) -> None:
    generation = await heard(tokens=tokens, finish=finish)
    generation.close(error)
    settled = settle(generation, account)
    assert told(settled) == expected
    assert (settled.computed, settled.device, settled.host, settled.disk) == (4, 3, 2, 1)


async def test_what_never_started_was_not_computed() -> None:
    generation = await heard(tokens=0, finish=False, start=False)
    generation.close(DeadlineExceeded("late"))
    never = RequestEnded("r", started=False, cached=0, written=0, computed=0, generated=0, saved=0.0)
    for account in (never, None):
        settled = settle(generation, account)
        assert (settled.computed, settled.cached, settled.saved) == (0, 0, 0.0)


async def test_what_was_saved_is_never_negative() -> None:
    generation = await heard(tokens=2, finish=True)
    account = RequestEnded("r", started=True, cached=6, written=4, computed=9, generated=5, saved=-1.0)
    assert settle(generation, account).saved == 0.0

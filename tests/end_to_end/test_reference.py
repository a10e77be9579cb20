"""Whatever else goes on: every answer is the one that the hash model's documented function gives."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.bench import hash_trace

from .conftest import Serve
from .server import Server
from .traffic import Ask, chat, check_all, completion, sdk, words

FEW_PAGES = ("--pages", "300", "--max-model-len", "4096")


async def test_a_mixed_trace_is_exact_while_pages_are_short(serve: Serve) -> None:
    """Evictions, preemptions, shared prefixes and clients that leave change no answer, and leave nothing behind."""
    server = serve(*FEW_PAGES)
    tally = await hash_trace.run(server.url, requests=160, concurrency=24, seed=7)
    assert tally.wrong == []
    assert tally.equal.total() == 160
    assert tally.cached_tokens > tally.prompt_tokens // 4
    await asyncio.to_thread(server.settled, 5.0)
    engine = await asyncio.to_thread(server.engine)
    print(
        {name: engine[name] for name in ("steps", "preemptions", "evicted_pages", "aborted", "cached_tokens")}
    )
    assert engine["preemptions"] > 0
    assert engine["evicted_pages"] > 0
    assert engine["aborted"] > 0
    assert engine["failed_checks"] == 0
    assert engine["restarts"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_the_official_client_reads_the_reference(server: Server, stream: bool) -> None:
    """Chat and completions, both as whole objects and as streams, through `openai`."""
    talk = chat("tell me", system="be brief", n=2, temperature=0.8, seed=11, max_tokens=40)
    ids = completion([104, 101, 108, 108, 111], max_tokens=24)
    async with sdk(server) as client:
        for ask in (talk, ids):
            own = {"ignore_eos": ask.body["ignore_eos"]}
            known = {name: value for name, value in ask.body.items() if name not in own}
            create = client.chat.completions.create if "messages" in known else client.completions.create
            answer = await create(**known, stream=stream, extra_body=own)
            assert await _texts(answer, stream) == dict(enumerate(ask.texts()))


async def _texts(answer: object, stream: bool) -> dict[int, str]:
    texts: dict[int, str] = {}
    parts = [part async for part in answer] if stream else [answer]  # type: ignore[attr-defined]
    for part in parts:
        for choice in part.choices:
            of = getattr(choice, "delta", None) or getattr(choice, "message", None)
            text = choice.text if of is None else of.content
            texts[choice.index] = texts.get(choice.index, "") + (text or "")
    return texts


async def test_a_shared_prefix_is_computed_once(server: Server) -> None:
    rng = random.Random(5)
    system = words(rng, 900)
    asks: list[Ask] = [chat(words(rng, 20), system=system, stream=k % 2 == 0) for k in range(12)]
    first, *rest = asks
    (cold,) = await check_all(server, [first])
    warm = await check_all(server, rest)
    assert cold.cached < 16  # the template's opening words, if another test said them before
    assert all(got.cached >= 900 for got in warm)
    (again,) = await check_all(server, [first])
    assert again.cached == len(first.prompt) - 1


async def test_an_answer_does_not_depend_on_its_batch(server: Server) -> None:
    ask = chat("alone or not", temperature=1.0, seed=3, n=4, max_tokens=60)
    crowd = [chat(f"other {k}", temperature=1.0, seed=k, max_tokens=60, stream=True) for k in range(24)]
    await check_all(server, [ask])
    await check_all(server, [ask, *crowd])

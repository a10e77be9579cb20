"""More work than fits: what is refused is refused at once and politely, what is taken is answered right."""

from __future__ import annotations

import asyncio
import random
import statistics

from .conftest import Serve
from .server import Server
from .traffic import Ask, Got, chat, check_all, completion, fetch, http, problem, sdk, words

QUEUE = 16
RUNNING = 4


async def _flood(server: Server, asks: list[Ask], keys: list[str] | None = None) -> list[tuple[Ask, Got]]:
    """All at once, each with its key, on connections that are open before."""

    async def one(ask: Ask, key: str | None) -> tuple[Ask, Got]:
        async with http(key) as session:
            (await session.get(f"{server.root}/health/live")).release()
            await everybody.wait()
            return ask, await fetch(session, server, ask)

    everybody = asyncio.Barrier(len(asks))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(ask, keys[k % len(keys)] if keys else None)) for k, ask in enumerate(asks)
        ]
    return [task.result() for task in tasks]


def _refused(answers: list[tuple[Ask, Got]], status: int, code: str) -> list[Got]:
    """Those that were; everybody else must have the right answer."""
    refused = [got for _, got in answers if got.status != 200]
    for got in refused:
        assert got.status == status, got
        assert got.error is not None
        assert got.error["code"] == code
        assert int(got.headers["retry-after"]) >= 1
        assert int(got.headers["retry-after-ms"]) >= 1
    for ask, got in answers:
        if got.status == 200:
            assert problem(ask, got) is None, problem(ask, got)
    return refused


async def test_four_times_the_queue(serve: Serve) -> None:
    server = serve(
        *("--max-queued-requests", str(QUEUE), "--max-running", str(RUNNING), "--hash-step-delay", "0.005")
    )
    asks = [chat(f"crowd {k}", max_tokens=30, stream=k % 2 == 0) for k in range(4 * QUEUE)]
    answers = await _flood(server, asks)
    refused = _refused(answers, 503, "overloaded")
    median = statistics.median(int(got.headers["openai-processing-ms"]) for got in refused)
    print(
        f"\n{len(refused)} of {len(asks)} refused, in {median:.0f} ms at the median of the server's own time"
    )
    taken = len(asks) - len(refused)
    assert QUEUE <= taken <= QUEUE + 3 * RUNNING + QUEUE  # some end while others still arrive
    assert len(refused) >= QUEUE
    assert median <= 20
    state = await asyncio.to_thread(server.settled)
    assert state["gateway"]["rejected"] == {"queue_requests": len(refused)}
    await check_all(server, asks[:4])


async def test_the_queue_is_bounded_by_tokens_too(serve: Serve) -> None:
    server = serve("--max-queued-tokens", "3000", "--max-running", "1", "--hash-step-delay", "0.005")
    rng = random.Random(1)
    answers = await _flood(server, [completion(words(rng, 1000), max_tokens=20) for _ in range(8)])
    refused = _refused(answers, 503, "overloaded")
    assert 3 <= len(refused) <= 6
    await asyncio.to_thread(server.settled)


async def test_one_key_cannot_take_the_whole_queue(serve: Serve) -> None:
    server = serve(
        *("--api-key", "greedy", "--api-key", "modest", "--max-tenant-queued", "4"),
        *("--max-running", "1", "--hash-step-delay", "0.003"),
        key="modest",
    )
    greedy = [chat(f"greedy {k}", max_tokens=20) for k in range(12)]
    modest = [chat(f"modest {k}", max_tokens=20) for k in range(3)]
    both = await asyncio.gather(_flood(server, greedy, ["greedy"]), _flood(server, modest, ["modest"]))
    refused = _refused(both[0], 429, "rate_limit_exceeded")
    assert len(refused) >= 6
    assert _refused(both[1], 429, "rate_limit_exceeded") == []


async def test_the_official_client_waits_and_tries_again(serve: Serve) -> None:
    """What `Retry-After` is for: with its default of two retries nobody is left without an answer."""
    server = serve("--max-queued-requests", "2", "--max-running", "2", "--hash-step-delay", "0.01")
    asks = [chat(f"patient {k}", max_tokens=20) for k in range(5)]
    async with sdk(server) as client:
        patient = client.with_options(max_retries=4)

        async def one(ask: Ask) -> str | None:
            own = {"ignore_eos": True}
            known = {name: value for name, value in ask.body.items() if name not in own}
            answer = await patient.chat.completions.create(**known, extra_body=own)
            text: str | None = answer.choices[0].message.content
            return text

        texts = await asyncio.gather(*(one(ask) for ask in asks))
    assert texts == [ask.choices[0].text for ask in asks]
    assert server.state()["gateway"]["rejected"]["queue_requests"] > 0


async def test_a_request_past_its_deadline_ends(server: Server) -> None:
    """Whole or streamed, the client's own limit ends it, and a library must not try again."""
    endless = completion("endless", max_tokens=20000)
    async with http() as session:
        session.headers["X-Request-Timeout"] = "0.3"
        whole = await fetch(session, server, endless)
        streamed = await fetch(session, server, completion("endless", max_tokens=20000, stream=True))
    assert whole.status == 504
    assert whole.headers["x-should-retry"] == "false"
    assert streamed.status == 200
    for got in (whole, streamed):
        assert got.error is not None
        assert got.error["code"] == "deadline_exceeded"
        assert got.took < 2
    await asyncio.to_thread(server.settled)

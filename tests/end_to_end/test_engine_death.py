"""An engine that dies or freezes takes the requests in it along, and nothing else, and not for long."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from .conftest import Serve
from .server import Server, alive, wait_for
from .traffic import Got, chat, check_all, fetch, http

TOLD_WITHIN = 2.0
UNREADY_WITHIN = 0.5
BACK_WITHIN = 10.0
STEP = "0.02"  # 400 tokens take 8 s: everything is under way when the engine dies


@dataclass(slots=True)
class Watch:
    """What /health said, with the times. Asked all the while."""

    live_failures: int = 0
    ready: list[tuple[float, int]] = field(default_factory=list)

    def first(self, status: int, after: float) -> float:
        return next(when for when, seen in self.ready if seen == status and when >= after)

    def since(self, when: float) -> set[int]:
        return {status for at, status in self.ready if at >= when}


@asynccontextmanager
async def watching(server: Server) -> AsyncIterator[Watch]:
    watch = Watch()

    async def look() -> None:
        async with http() as session:
            while True:
                async with session.get(f"{server.root}/health/live") as live:
                    watch.live_failures += live.status != 200
                async with session.get(f"{server.root}/health/ready") as ready:
                    watch.ready.append((time.monotonic(), ready.status))
                await asyncio.sleep(0.01)

    task = asyncio.create_task(look())
    try:
        yield watch
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert watch.live_failures == 0


@dataclass(slots=True)
class Ended:
    at: float
    got: Got


async def _under_way(
    server: Server, streams: int, wholes: int, group: asyncio.TaskGroup
) -> list[asyncio.Task[Ended]]:
    async def one(k: int) -> Ended:
        ask = chat(f"long {k} {time.monotonic()}", max_tokens=400, stream=k < streams)
        async with http() as session:
            got = await fetch(session, server, ask)
        return Ended(time.monotonic(), got)

    # five tokens each: every stream has its headers
    enough = (await asyncio.to_thread(server.engine))["generated_tokens"] + 5 * (streams + wholes)
    tasks = [group.create_task(one(k)) for k in range(streams + wholes)]
    await asyncio.to_thread(
        wait_for,
        lambda: server.engine()["generated_tokens"] > enough,
        5,
        "all to be under way",
    )
    return tasks


def _judge(ended: list[Ended], died: float, *, streams: int) -> tuple[float, float]:
    """When the last stream and the last of the others were told, in seconds after the death."""
    streamed = [one for one in ended if one.got.headers["content-type"].startswith("text/event-stream")]
    whole = [one for one in ended if one not in streamed]
    assert len(streamed) == streams
    for one in streamed:
        assert one.got.status == 200
        assert one.got.error is not None, "a stream ended without an error event"
        assert one.got.error["code"] == "engine_restarting", one.got.error
        assert not one.got.done, "an error event followed by [DONE]"
    for one in whole:
        assert one.got.status == 503, one.got
        assert one.got.error is not None
        assert int(one.got.headers["retry-after"]) >= 1
        assert one.got.headers["content-type"].startswith("application/json")
    return max(one.at - died for one in streamed), max(one.at - died for one in whole)


async def test_killed_twice_under_load(serve: Serve) -> None:
    server = serve("--hash-step-delay", STEP)
    for strike in (1, 2):
        async with watching(server) as watch, asyncio.TaskGroup() as group:
            tasks = await _under_way(server, 8, 4, group)
            pid = server.engine_pid()
            died = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            ended = [await task for task in tasks]
            refused = await asyncio.to_thread(
                server.post, "/v1/completions", {"model": "hash", "prompt": "now"}
            )
            await asyncio.to_thread(wait_for, server.is_ready, BACK_WITHIN, "a new engine")
            back = time.monotonic() - died
            await asyncio.sleep(0.05)
        streams_told, others_told = _judge(ended, died, streams=8)
        unready = watch.first(503, died) - died
        print(
            f"\nkill -9 no. {strike}: streams told after {streams_told * 1000:.0f} ms, others {others_told * 1000:.0f} ms; "
            f"ready 503 after {unready * 1000:.0f} ms; ready again after {back:.2f} s"
        )
        assert max(streams_told, others_told) < TOLD_WITHIN
        assert unready < UNREADY_WITHIN
        assert back < BACK_WITHIN
        assert refused.status in (200, 503)  # 200 if the new engine was quicker than this test
        assert not alive(pid)
        assert server.engine_pid() != pid
        assert server.engine()["restarts"] == strike
        got = await check_all(server, [chat(f"after {strike} {k}", stream=k % 2 == 0) for k in range(20)])
        assert len(got) == 20
    await asyncio.to_thread(server.settled)


def test_what_is_pinned_comes_back(serve: Serve) -> None:
    server = serve("--hash-token-delay", "0.001")
    messages = [{"role": "system", "content": "Be kind. " * 40}]
    made = server.post("/v1/caches", {"model": "hash", "messages": messages, "pin": "hard"}).json()
    os.kill(server.engine_pid(), signal.SIGKILL)
    wait_for(lambda: not server.is_ready(), TOLD_WITHIN, "the death")
    wait_for(server.is_ready, BACK_WITHIN, "a new engine")
    seen: list[str] = []

    def is_back() -> bool:
        seen.append(server.get(f"/v1/caches/{made['id']}").json()["status"])
        return seen[-1] == "active"

    wait_for(is_back, 10.0, "the cache")
    assert set(seen) <= {"warming", "active"}
    body = {
        "model": "hash",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "cache": {"id": made["id"]},
    }
    usage = server.post("/v1/chat/completions", body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= made["tokens"]


async def test_frozen(serve: Serve) -> None:
    server = serve("--hash-step-delay", STEP)
    async with watching(server) as watch, asyncio.TaskGroup() as group:
        tasks = await _under_way(server, 4, 2, group)
        pid = server.engine_pid()
        froze = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        ended = [await task for task in tasks]
        await asyncio.to_thread(wait_for, server.is_ready, BACK_WITHIN, "a new engine")
        back = time.monotonic() - froze
        await asyncio.sleep(0.05)
    told = max(_judge(ended, froze, streams=4))
    unready = watch.first(503, froze) - froze
    print(
        f"\nSIGSTOP: ready 503 after {unready:.2f} s; all told after {told:.2f} s; ready again after {back:.2f} s"
    )
    assert unready < 3.0
    assert back < BACK_WITHIN
    assert not alive(pid)
    await check_all(server, [chat(f"after the ice {k}") for k in range(8)])
    await asyncio.to_thread(server.settled)


async def test_a_long_step_is_no_frozen_engine(serve: Serve) -> None:
    """As a long prefill on a slow machine: one step that takes longer than a frozen engine is given (3.5 s)."""
    server = serve("--test-mode", "--failpoint", "slow_step=3:4.5")
    pid = server.engine_pid()
    began = time.monotonic()
    async with watching(server) as watch:
        await check_all(
            server, [chat("a long one", max_tokens=8, stream=True), chat("and another", max_tokens=8)]
        )
    assert time.monotonic() - began > 4.5
    assert watch.since(began) == {200}
    assert server.engine_pid() == pid
    assert server.engine()["restarts"] == 0

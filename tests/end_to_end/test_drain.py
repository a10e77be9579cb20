"""Leaving: SIGTERM drops nobody who can be served in time, and no way of ending leaves anything behind."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from . import wire
from .conftest import Serve
from .server import Server, alive, wait_for
from .traffic import Got, chat, fetch, http, problem

SLOW = ("--hash-step-delay", "0.01")


def left_behind(server: Server, engine_pid: int) -> list[str]:
    """Processes and files of a server that is gone."""
    processes = [f"engine {engine_pid}"] if alive(engine_pid) else []
    return processes + [str(path) for path in server.temporary.rglob("*")]


async def _streams(
    server: Server, count: int, group: asyncio.TaskGroup, **options: int
) -> list[asyncio.Task[Got]]:
    """Streams that have begun."""
    begun: set[int] = set()

    async def one(k: int) -> Got:
        ask = chat(f"stream {k}", stream=True, **options)
        async with http() as session:
            got = await fetch(session, server, ask, on_event=lambda _: begun.add(k))
        if got.error is None:
            assert problem(ask, got) is None, problem(ask, got)
        return got

    tasks = [group.create_task(one(k)) for k in range(count)]
    async with asyncio.timeout(5):
        while len(begun) < count:  # noqa: ASYNC110 - told by a dozen tasks, and only at the start
            await asyncio.sleep(0.005)
    return tasks


async def test_sigterm_lets_streams_finish(serve: Serve) -> None:
    server = serve("--drain-delay", "0.3", *SLOW)
    engine_pid = server.engine_pid()
    ask = {"model": "hash", "prompt": "late", "max_tokens": 2}
    async with asyncio.TaskGroup() as group:
        tasks = await _streams(server, 12, group, max_tokens=150)
        server.terminate()
        sent = time.monotonic()
        await asyncio.to_thread(wait_for, lambda: server.get("/health/ready").status == 503, 1, "unready")
        assert server.get("/health/ready").json() == {"status": "draining"}
        taken = await asyncio.to_thread(server.post, "/v1/completions", ask)
        await asyncio.sleep(max(0.0, sent + 0.5 - time.monotonic()))
        refused = await asyncio.to_thread(server.post, "/v1/completions", ask)
        live = await asyncio.to_thread(server.get, "/health/live")
    status = await asyncio.to_thread(server.wait)
    got = [task.result() for task in tasks]
    print(
        f"\nSIGTERM: 12 of {len(got)} complete; ended {time.monotonic() - sent:.2f} s later, status {status}"
    )
    assert all(one.done and one.error is None for one in got)
    assert taken.status == 200  # balancers had not been told yet
    assert refused.status == 503
    assert refused.error["code"] == "server_shutting_down"
    assert refused.headers["connection"].lower() == "close"
    assert int(refused.headers["retry-after"]) >= 1
    assert live.status == 200
    assert status == 0
    assert left_behind(server, engine_pid) == []
    assert "Traceback" not in server.log()


async def test_a_stream_longer_than_the_drain_is_told(serve: Serve) -> None:
    server = serve("--drain-timeout", "0.4", *SLOW)
    engine_pid = server.engine_pid()
    async with asyncio.TaskGroup() as group:
        tasks = await _streams(server, 4, group, max_tokens=2000)
        server.terminate()
        sent = time.monotonic()
    took = time.monotonic() - sent
    for task in tasks:
        got = task.result()
        assert got.error is not None
        assert got.error["code"] == "server_shutting_down"
        assert not got.done
    assert 0.3 < took < 3
    assert await asyncio.to_thread(server.wait) == 0
    assert left_behind(server, engine_pid) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_hurries(serve: Serve, number: signal.Signals) -> None:
    server = serve("--drain-delay", "20", "--drain-timeout", "20", *SLOW)
    engine_pid = server.engine_pid()
    async with asyncio.TaskGroup() as group:
        (task,) = await _streams(server, 1, group, max_tokens=2000)
        server.process.send_signal(number)
        await asyncio.to_thread(wait_for, lambda: server.get("/health/ready").status == 503, 1, "unready")
        server.process.send_signal(number)
        sent = time.monotonic()
    status = await asyncio.to_thread(server.wait)
    assert time.monotonic() - sent < 3
    assert status == 0
    assert task.result().error is not None
    assert left_behind(server, engine_pid) == []


def test_an_idle_server_ends_at_once(serve: Serve) -> None:
    server = serve()
    engine_pid = server.engine_pid()
    server.terminate()
    began = time.monotonic()
    assert server.wait() == 0
    assert time.monotonic() - began < 2
    assert left_behind(server, engine_pid) == []


@pytest.mark.parametrize("state", ["running", "frozen"])
def test_a_killed_gateway_takes_its_engine_along(serve: Serve, state: str) -> None:
    """And the same port serves again at once, and tidies up."""
    server = serve(*SLOW)
    engine_pid = server.engine_pid()
    with wire.connected(server) as sock:
        sock.sendall(wire.asking(chat("for long", max_tokens=2000, stream=True)))
        wire.read_until(sock, b"data: ")
        if state == "frozen":
            server.process.send_signal(signal.SIGSTOP)
        server.kill()
    killed = time.monotonic()
    wait_for(lambda: not alive(engine_pid), 2.0, "the engine to go")
    print(f"\ngateway kill -9: engine gone after {(time.monotonic() - killed) * 1000:.0f} ms")
    orphans = list(server.temporary.iterdir())
    assert len(orphans) == 1, "nobody was left to remove it"
    again = serve(port=server.port, temporary=server.temporary)
    assert again.post("/v1/completions", {"model": "hash", "prompt": "again"}).status == 200
    assert not orphans[0].exists(), "the next engine removes what a killed one left"

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from rich.console import Console

from gateway.bench import Distribution, LoadOptions, LoadReport, _distribution, _Flight, render, run_load
from tests.gateway.scripted_server import Plan, ScriptedServer

USAGE = {"prompt_tokens": 10, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}


async def load(answer: Callable[[dict[str, Any]], Plan], **options: Any) -> tuple[LoadReport, ScriptedServer]:
    server = ScriptedServer(answer)
    async with TestServer(server.app()) as running:
        return await run_load(LoadOptions(url=str(running.make_url("/v1")), **options)), server


@pytest.mark.parametrize("spaced", [False, True])
async def test_closed_loop(spaced: bool) -> None:
    plan = Plan(["one", ' "two\n', '"content":"x"', "four"], pause=0.02, usage=USAGE, spaced=spaced)
    report, server = await load(lambda _: plan, requests=6, concurrency=2, out_tokens=8)
    assert (report.succeeded, report.failed, report.mode, report.model) == (6, 0, "closed", "toy")
    assert (report.prompt_tokens, report.cached_tokens, report.output_tokens) == (60, 24, 48)
    assert report.ttft is not None
    assert report.tpot is not None
    assert report.gap is not None
    assert report.e2e is not None
    assert report.ttft.count == report.e2e.count == report.tpot.count == 6
    assert report.gap.count == 6 * 3
    assert 19 < report.ttft.p50 < report.e2e.p50
    assert report.e2e.p50 > 79
    assert 3 * 20 / 7 - 1 < report.tpot.p50 < report.e2e.p50 / 7
    assert report.wall > 3 * 0.079
    assert report.output_rate == pytest.approx(48 / report.wall)
    assert {body["max_tokens"] for body in server.bodies} == {8}


async def test_closed_loop_keeps_its_concurrency() -> None:
    running = peak = 0

    def answer(_: dict[str, Any]) -> Plan:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        asyncio.get_running_loop().call_later(0.019, done)
        return Plan(["x"], delay=0.02)

    def done() -> None:
        nonlocal running
        running -= 1

    await load(answer, requests=12, concurrency=3)
    assert peak == 3


async def test_open_loop_counts_from_the_time_due() -> None:
    """A server that answers one request after another makes later ones wait, and that must show."""
    lock_until = 0.0

    def answer(_: dict[str, Any]) -> Plan:
        nonlocal lock_until
        now = asyncio.get_running_loop().time()
        lock_until = max(now, lock_until) + 0.03
        return Plan(["x"], delay=lock_until - now)

    report, _ = await load(answer, requests=20, rate=1000.0)
    assert report.mode == "open"
    assert report.e2e is not None
    assert report.e2e.max > 500
    assert report.e2e.p50 > 200


async def test_open_loop_arrives_at_its_rate() -> None:
    report, _ = await load(lambda _: Plan(["x"]), requests=40, rate=200.0, seed=3)
    assert 0.1 < report.wall < 2.0


async def test_without_streaming() -> None:
    report, _ = await load(lambda _: Plan(["x"], usage=USAGE), requests=3, stream=False)
    assert report.output_tokens == 24
    assert report.e2e is not None
    assert report.ttft is report.tpot is report.gap is None


async def test_errors_by_kind() -> None:
    plans = iter(
        [
            Plan(status=503),
            Plan(["x"], end=""),
            Plan(["x"], end='data: {"error": {"message": "engine died"}}\n\n'),
            Plan(["x"], delay=5.0),
            Plan(["x"]),
        ]
    )
    report, _ = await load(lambda _: next(plans), requests=5, timeout=1.5)
    assert report.succeeded == 1
    assert report.errors == {
        "HTTP 503: no room": 1,
        "stream cut off": 1,
        "in the stream: engine died": 1,
        "timeout": 1,
    }
    report = await run_load(LoadOptions(url="http://127.0.0.1:9", model="m", requests=2))
    assert report.errors == {"connection: Connection refused (127.0.0.1:9)": 2}
    assert (report.succeeded, report.output_rate) == (0, 0.0)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render(report))
    assert "Connection refused" in capture.get()
    assert "p99" not in capture.get()


async def test_prompts() -> None:
    report, one = await load(
        lambda _: Plan(["x"]), requests=4, prompt_words=5, shared_words=7, seed=1, extra={"a": 1}
    )
    _, same = await load(
        lambda _: Plan(["x"]), requests=4, prompt_words=5, shared_words=7, seed=1, extra={"a": 1}
    )
    _, other = await load(lambda _: Plan(["x"]), requests=4, prompt_words=5, shared_words=7, seed=2)
    assert one.bodies == same.bodies
    texts = [[[m["content"] for m in body["messages"]] for body in server.bodies] for server in (one, other)]
    users = {user for bodies in texts for _, user in bodies}
    systems = {system for bodies in texts for system, _ in bodies}
    assert len(users) == 8
    assert len(systems) == 1
    assert len(next(iter(systems)).split()) == 7
    assert one.bodies[0]["a"] == 1
    assert report.output_tokens == 4  # counted from events, where the server sends no usage


@pytest.mark.parametrize(
    "options",
    [{"rate": 1.0, "concurrency": 2}, {"rate": 0.0}, {"rate": float("nan")}, {"requests": 0}, {"concurrency": 0},
     {"out_tokens": 0}, {"prompt_words": -1}],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must|cannot|does not"):
        LoadOptions(url="x", **options)


def test_scan_counts_only_text_events() -> None:
    lines = [
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}',
        b'data: {"choices":[{"delta":{"content":null}}]}',
        b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}',
        rb'data: {"choices":[{"delta":{"content":"\"content\":\"b\" \"error\":"}}]}',
        b'data: {"choices":[{"delta":{"reasoning_content":"c"}}]}',
        b'data: {"choices":[{"text": "d"}]}',
        b'data: {"choices":[],"usage":{"completion_tokens":9}}',
        b"data: [DONE]",
    ]
    flight = _Flight()
    flight.scan(b"\n\n".join(lines) + b"\n\n", 1.0)
    assert (flight.events, flight.tokens, flight.done) == (4, 9, True)
    assert list(flight.gaps) == [0.0, 0.0, 0.0]


def test_distribution_is_by_nearest_rank() -> None:
    from array import array

    values = array("d", [i / 1000 for i in range(1, 101)])
    got = _distribution(values)
    assert got is not None
    assert [round(v, 6) for v in (got.p50, got.p90, got.p95, got.p99, got.max, got.mean)] == [
        50,
        90,
        95,
        99,
        100,
        50.5,
    ]
    assert _distribution(array("d", [0.007])) == Distribution(1, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0)


async def test_report_as_table_and_as_json() -> None:
    report, _ = await load(lambda _: Plan(["x", "y"], usage=USAGE), requests=2)
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(render(report))
    assert "time to first token" in capture.get()
    assert "20 in (8 cached), 16 out" in capture.get()
    assert json.loads(report.to_json())["ttft"]["count"] == 2

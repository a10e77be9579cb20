"""Faults inside the engine, on purpose: each touches the requests it concerns, and the engine goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from .conftest import Serve
from .server import Server, wait_for
from .traffic import Ask, Got, chat, completion, fetch, http, problem


@pytest.fixture
def armed(server: Server) -> Iterator[Server]:
    """The shared server; whatever a test arms is disarmed after it, and the engine must have lived through it."""
    pid = server.engine_pid()
    yield server
    assert server.post("/admin/failpoints", {"spec": "off"}).status == 200
    assert server.engine_pid() == pid
    assert server.engine()["failed_checks"] == 0
    server.settled()


def _arm(server: Server, spec: str) -> None:
    assert server.post("/admin/failpoints", {"spec": spec}).status == 200
    assert server.engine()["report"]["failpoints"] == [spec]


async def _crowd(server: Server, count: int, tag: str) -> list[tuple[Ask, Got]]:
    asks = [chat(f"{tag} {k}", max_tokens=40, stream=k % 2 == 0) for k in range(count)]
    async with http() as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch(session, server, ask)) for ask in asks]
    return list(zip(asks, (task.result() for task in tasks), strict=True))


def _failed(answers: list[tuple[Ask, Got]]) -> list[Got]:
    """Those that failed, with the documented error: 500 when whole, an event when streamed. The others must be right."""
    failed = [got for _, got in answers if got.error is not None]
    for got in failed:
        assert got.error is not None
        assert (got.error["type"], got.error["code"]) == ("server_error", "engine_error")
        assert "Injected" not in got.error["message"]
        assert got.status in (200, 500)
        assert not got.done
    for ask, got in answers:
        if got.error is None:
            assert problem(ask, got) is None, problem(ask, got)
    return failed


@pytest.mark.parametrize("spec", ["row_raises=20", "nan_logits=20"])
async def test_a_fault_of_one_row_fails_one_request(armed: Server, spec: str) -> None:
    _arm(armed, spec)
    assert len(_failed(await _crowd(armed, 8, spec))) == 1
    assert _failed(await _crowd(armed, 8, f"{spec} after")) == []


async def test_a_step_that_raises_fails_its_batch(armed: Server) -> None:
    """However the rows are run, nothing comes of this step; who came before or after it has its answer."""
    _arm(armed, "forward_raises=20")
    failed = _failed(await _crowd(armed, 8, "lost step"))
    assert 1 <= len(failed) <= 8
    assert _failed(await _crowd(armed, 8, "after it")) == []


async def test_whole_answers_fail_with_a_status(armed: Server) -> None:
    _arm(armed, "forward_raises=3")
    async with http() as session:
        got = await fetch(session, armed, completion("whole", max_tokens=20))
    assert got.status == 500
    assert got.error is not None
    assert got.error["code"] == "engine_error"


async def test_denied_pages_delay_and_change_nothing(armed: Server) -> None:
    """An allocation that fails looks like a full pool: requests wait or are computed again, and come out right."""
    assert armed.post("/admin/failpoints", {"spec": "alloc_fails=40"}).status == 200
    assert _failed(await _crowd(armed, 12, "denied")) == []


async def test_faults_all_the_time_spare_somebody(armed: Server) -> None:
    """Every tenth step loses a row. Those that were not hit are exact."""
    _arm(armed, "row_raises=10:every")
    answers = await _crowd(armed, 24, "stormy")
    failed = _failed(answers)
    assert 0 < len(failed) < 24


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("row_raises", "not NAME=NUMBER"),
        ("row_raises=0", "not NAME=NUMBER"),
        ("explode=1", "no failpoint"),
        ("slow_step=1:-1", "needs seconds"),
        ("", "not NAME=NUMBER"),
    ],
)
def test_a_failpoint_that_is_none(server: Server, spec: str, said: str) -> None:
    refused = server.post("/admin/failpoints", {"spec": spec})
    assert refused.status == 400
    assert said in refused.error["message"]


def test_outside_test_mode_there_are_none(serve: Serve) -> None:
    server = serve()
    refused = server.post("/admin/failpoints", {"spec": "crash=1"})
    assert refused.status == 404
    assert server.state()["test_mode"] is False
    assert server.post("/v1/completions", {"model": "hash", "prompt": "well?"}).status == 200


async def test_an_engine_that_aborts_is_replaced(serve: Serve) -> None:
    """A crash from inside, as by a fault in native code: its requests are told, the next ones are served."""
    server = serve("--test-mode")
    pid = server.engine_pid()
    _arm(server, "crash=4")
    codes = {got.error["code"] for _, got in await _crowd(server, 4, "doomed") if got.error is not None}
    # one that comes when the engine is dead and nobody has noticed finds it not reading
    assert codes - {"engine_behind"} == {"engine_restarting"}
    await asyncio.to_thread(wait_for, server.is_ready, 10, "a new engine")
    assert server.engine_pid() != pid
    assert _failed(await _crowd(server, 4, "after it")) == []

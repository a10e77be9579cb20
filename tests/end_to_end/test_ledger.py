"""The ledger of a real server: every request has its line, also when the engine dies, the client leaves or the server goes."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serve
from .server import Server, wait_for

CHAT = {"model": "hash", "messages": [{"role": "user", "content": "hello"}]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def leave_in_the_middle(server: Server) -> None:
    """Ask for a long stream, read a little and close."""
    body = json.dumps({**CHAT, "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.recv(100)


def test_every_request_has_a_line(serve: Serve, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    server = serve("--ledger", str(ledger), "--hash-token-delay", "0.002")
    first = server.post("/v1/chat/completions", {**CHAT, "max_tokens": 3})
    again = server.post("/v1/chat/completions", {**CHAT, "max_tokens": 3})
    wait_for(lambda: len(lines(ledger)) == 2, 2, "two lines")
    for reply, line in zip((first, again), lines(ledger), strict=True):
        usage = reply.json()["usage"]
        assert line["request_id"] == reply.headers["x-request-id"]
        assert (line["status"], line["completion_tokens"]) == ("ok", usage["completion_tokens"])
        assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert line["written_tokens"] == usage["prompt_tokens_details"]["cache_write_tokens"]
    assert lines(ledger)[1]["cached_tokens"] > 0
    leave_in_the_middle(server)
    wait_for(lambda: len(lines(ledger)) == 3, 5, "a line for the client that left")
    assert lines(ledger)[2]["status"] == "aborted"
    assert 0 < lines(ledger)[2]["completion_tokens"] < 2000


def test_the_death_of_the_engine_loses_no_line(serve: Serve, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    server = serve("--test-mode", "--ledger", str(ledger), "--failpoint", "crash=12")
    reply = server.post("/v1/chat/completions", {**CHAT, "max_tokens": 500, "ignore_eos": True})
    assert reply.status == 503
    wait_for(lambda: len(lines(ledger)) == 1, 5, "a line")
    (line,) = lines(ledger)
    assert (line["status"], line["error"], line["computed_tokens"]) == ("failed", "engine_restarting", None)


def test_what_runs_at_a_stop_has_a_line_before_the_server_is_gone(serve: Serve, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    server = serve("--ledger", str(ledger), "--drain-timeout", "0.2", "--hash-step-delay", "0.01")
    body = json.dumps({**CHAT, "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.recv(100)
        server.terminate()
        assert server.wait() == 0
    (line,) = lines(ledger)
    assert (line["status"], line["error"]) == ("failed", "server_shutting_down")
    assert line["completion_tokens"] > 0


def test_a_kill_leaves_a_ledger_that_can_be_read_and_goes_on(serve: Serve, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    server = serve("--ledger", str(ledger))
    for _ in range(5):
        server.post("/v1/chat/completions", {**CHAT, "max_tokens": 2})
    wait_for(lambda: len(lines(ledger)) == 5, 2, "five lines")
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    with ledger.open("ab") as file:
        file.write(b'{"time": 17')
    server = serve("--ledger", str(ledger))
    server.post("/v1/chat/completions", {**CHAT, "max_tokens": 2})
    wait_for(lambda: len(lines(ledger)) == 6, 2, "a sixth line")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_fails_no_request(serve: Serve, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    server = serve("--ledger", str(ledger))
    ledger.unlink()
    ledger.symlink_to("/dev/full")
    for _ in range(3):
        assert server.post("/v1/chat/completions", {**CHAT, "max_tokens": 2}).status == 200
    lost = b'headwater_ledger_dropped_lines_total{model_name="hash"} 3.0'
    wait_for(lambda: lost in server.get("/metrics").body, 2, "three lost lines")
    assert server.log().count("loses lines") == 1

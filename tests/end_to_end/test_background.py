"""Responses in the background over two servers on one Redis: seen, cancelled, and given up for lost when their server dies."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.responses.background import LIFE
from tests.redis_server import RedisServer

from .conftest import Serve
from .server import Server, wait_for
from .traffic import MODEL

KEYS = ("--api-key", "sk-alpha", "--api-key", "sk-beta", "--admin-key", "sk-root", "--test-mode")
ALPHA, BETA, ROOT = "sk-alpha", "sk-beta", "sk-root"
AT = "/v1/responses"


@pytest.fixture
def two(serve: Serve, redis_server: RedisServer) -> tuple[Server, Server]:
    one, other = (serve(*KEYS, "--redis", redis_server.url) for _ in range(2))
    return one, other


def begin(server: Server, *, slow: float) -> str:
    """The id of a response that takes so many seconds."""
    armed = server.post("/admin/failpoints", {"spec": f"slow_step=1:{slow}"}, key=ROOT)
    assert armed.status == 200, armed
    body = {"model": MODEL, "input": "Name a river.", "background": True, "max_output_tokens": 4}
    made = server.post(AT, body, key=ALPHA)
    assert (made.status, made.json()["status"]) == (200, "queued")
    return str(made.json()["id"])


def status(server: Server, response_id: str) -> str:
    reply = server.get(f"{AT}/{response_id}", key=ALPHA)
    assert reply.status == 200, reply
    return str(reply.json()["status"])


def test_one_is_made_by_one_server_and_found_through_the_other(two: tuple[Server, Server]) -> None:
    one, other = two
    response_id = begin(one, slow=0.5)
    assert status(other, response_id) in ("queued", "in_progress")
    wait_for(lambda: status(other, response_id) == "incomplete", 5.0, "its end")
    found: Any = [server.get(f"{AT}/{response_id}", key=ALPHA).json() for server in two]
    assert found[0] == found[1]
    assert other.get(f"{AT}/{response_id}", key=BETA).status == 404


def test_one_is_cancelled_through_the_other_server(two: tuple[Server, Server]) -> None:
    one, other = two
    response_id = begin(one, slow=4.0)
    began = time.monotonic()
    assert other.post(f"{AT}/{response_id}/cancel", {}, key=BETA).status == 404
    for server in (other, one, other):
        reply = server.post(f"{AT}/{response_id}/cancel", {}, key=ALPHA)
        assert (reply.status, reply.json()["status"]) == (200, "cancelled")
    assert time.monotonic() - began < 3.0


def test_one_whose_server_was_killed_has_failed(two: tuple[Server, Server]) -> None:
    one, other = two
    response_id = begin(one, slow=60.0)
    assert status(other, response_id) in ("queued", "in_progress")
    one.kill()
    wait_for(lambda: status(other, response_id) == "failed", LIFE + 3.0, "it to be given up")
    assert other.post(f"{AT}/{response_id}/cancel", {}, key=ALPHA).json()["status"] == "failed"
    follow = {"model": MODEL, "input": "And?", "previous_response_id": response_id}
    assert other.post(AT, follow, key=ALPHA).error["param"] == "previous_response_id"

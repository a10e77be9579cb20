"""Bytes that no client library sends, and clients that take their time. Limits are short here, so that they bite soon."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import wire
from .server import Server, wait_for
from .traffic import completion

HEADER, BODY, WRITE = 0.5, 0.6, 0.5
MiB = 2**20


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--header-timeout", str(HEADER), "--body-timeout", str(BODY), "--write-timeout", str(WRITE))
    started = Server(
        tmp_path_factory.mktemp("strict"), "--drain-delay", "0", "--max-connections", "300", *flags
    )
    yield started
    assert started.engine()["restarts"] == 0
    started.settled()
    started.stop()


def resident(server: Server) -> int:
    """Bytes of the gateway's memory."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


def works(server: Server) -> bool:
    ask = completion("still there?")
    reply = server.post(ask.path, ask.body)
    return reply.status == 200 and reply.json()["choices"][0]["text"] == ask.choices[0].text


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/chat/comp", b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Half: "]
)
def test_half_a_header(strict: Server, sent: bytes) -> None:
    with wire.connected(strict) as sock:
        sock.sendall(sent)
        assert works(strict)
        assert HEADER / 2 < wire.seconds_until_closed(sock) < HEADER + 2


def test_half_a_body(strict: Server) -> None:
    body = b'{"model": "hash", "prompt": "'
    with wire.connected(strict) as sock:
        sock.sendall(
            wire.message("POST", "/v1/completions", headers={"Content-Length": "1000"}, length=False) + body
        )
        began = time.monotonic()
        assert wire.read_until(sock, b"request_timeout").startswith(b"HTTP/1.1 408 ")
        assert BODY / 2 < time.monotonic() - began < BODY + 1
    assert works(strict)


def test_a_reader_that_stalls_is_given_up(strict: Server) -> None:
    """The engine stops for it, though its connection is open and its kernel still acknowledges."""
    aborted = strict.engine()["aborted"]
    with wire.connected(strict, receive_buffer=4096) as sock:
        sock.sendall(wire.asking(completion("a long story", max_tokens=30000, stream=True)))
        wire.read_until(sock, b"data: ")
        wait_for(lambda: strict.engine()["aborted"] == aborted + 1, 15, "the request to be aborted")
    strict.settled()
    assert works(strict)


def test_many_half_open_connections(strict: Server) -> None:
    """Two hundred connections that say nothing disturb nobody, and are gone when their time is up."""
    socks = []
    try:
        for _ in range(200):
            context = wire.connected(strict)
            socks.append((context, context.__enter__()))
            socks[-1][1].sendall(b"POST /v1/completions HTTP/1.1\r\n")
        assert works(strict)
        began = time.monotonic()
        for _, sock in socks:
            wire.seconds_until_closed(sock)
        assert time.monotonic() - began < HEADER + 3
    finally:
        for context, _ in socks:
            context.__exit__(None, None, None)


def test_more_connections_than_allowed(strict: Server) -> None:
    contexts = [wire.connected(strict) for _ in range(300)]
    socks = [context.__enter__() for context in contexts]
    try:
        (reply,) = wire.exchange(strict, wire.message("GET", "/health/live"))
        assert reply.status == 503
        assert reply.error["code"] == "overloaded"
        assert reply.headers["retry-after"] == "1"
    finally:
        for context in contexts:
            context.__exit__(None, None, None)
    assert len(socks) == 300
    wait_for(lambda: works(strict), 5, "room for connections")


LAST = wire.message("GET", "/health/live", headers={"Connection": "close"})
BODY_TEXT = json.dumps({"model": "hash", "prompt": "x", "max_tokens": 1}).encode()
LENGTH = f"Content-Length: {len(BODY_TEXT)}\r\n"


@pytest.mark.parametrize(
    "head",
    [
        f"{LENGTH}Transfer-Encoding: chunked\r\n",
        f"{LENGTH}Content-Length: 5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +2\r\n",
        "Content-Length: 0x10\r\n",
        f"{LENGTH}X-Folded: a\r\n b\r\n",
        f"{LENGTH}Bad Name: x\r\n",
        f"{LENGTH}X-Nul: a\0b\r\n",
        f"{LENGTH}X-Long: {'a' * 9000}\r\n",
        LENGTH + "".join(f"X-{k}: {'v' * 100}\r\n" for k in range(5000)),
    ],
    ids=lambda head: head.replace("\r\n", " ")[:40],
)
def test_smuggled_and_swollen_headers(strict: Server, head: str) -> None:
    """400 and a closed connection: what follows on it is never read as another request."""
    second = wire.message("GET", "/health/live")
    data = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\n".encode() + BODY_TEXT + second
    replies = wire.exchange(strict, data)
    assert [reply.status for reply in replies] == [400]
    assert replies[0].error["type"] == "invalid_request_error"
    assert works(strict)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"hello there\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
def test_no_http_at_all(strict: Server, data: bytes) -> None:
    replies = wire.exchange(strict, data)
    assert [reply.status for reply in replies] == [400]
    assert replies[0].error["code"] == "invalid_http"


def test_thousands_of_pipelined_requests(strict: Server) -> None:
    """Answered one after the other; they are not all held at once."""
    before = resident(strict)
    replies = wire.exchange(strict, wire.message("GET", "/health/live") * 5000 + LAST)
    assert len(replies) == 5001
    assert {reply.status for reply in replies} == {200}
    assert resident(strict) - before < 50 * MiB
    assert works(strict)


def test_a_body_in_a_hundred_thousand_pieces(strict: Server) -> None:
    """Each byte a chunk of its own: linear work, little memory."""
    body = BODY_TEXT + b" " * (100_000 - len(BODY_TEXT))
    head = wire.message(
        "POST",
        "/v1/completions",
        headers={"Transfer-Encoding": "chunked", "Connection": "close"},
        length=False,
    )
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    before = resident(strict)
    began = time.monotonic()
    (reply,) = wire.exchange(strict, head + chunks)
    assert reply.status in (200, 408)  # 408 on a machine too busy for a body in 0.6 s
    assert time.monotonic() - began < 5
    assert resident(strict) - before < 50 * MiB


def test_a_body_too_large_is_refused_before_it_has_come(strict: Server) -> None:
    head = wire.message("POST", "/v1/completions", headers={"Content-Length": str(2**40)}, length=False)
    with wire.connected(strict) as sock:
        sock.sendall(head)
        began = time.monotonic()
        wire.read_until(sock, b"request_too_large")
        assert time.monotonic() - began < BODY


def test_expect_continue(strict: Server) -> None:
    """A client that asks first whether it may send its body, as curl does with large ones."""
    head = wire.message(
        "POST",
        "/v1/completions",
        headers={"Content-Length": str(len(BODY_TEXT)), "Expect": "100-continue"},
        length=False,
    )
    with wire.connected(strict) as sock:
        sock.sendall(head)
        wire.read_until(sock, b"100 Continue\r\n\r\n")
        sock.sendall(BODY_TEXT)
        assert b" 200 OK" in wire.read_until(sock, b'"usage"')

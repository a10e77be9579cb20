"""HTTP by hand, for what no client library would do: half a request, ten thousand at once, a reset in the middle."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .server import Reply, Server
from .traffic import Ask

_CHUNK = 65536


def message(
    method: str,
    path: str,
    body: bytes = b"",
    *,
    headers: Mapping[str, str] | None = None,
    length: bool = True,
) -> bytes:
    """The bytes of a request; without `length` nothing says where its body ends."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def asking(ask: Ask) -> bytes:
    return message(
        "POST", ask.path, json.dumps(ask.body).encode(), headers={"Content-Type": "application/json"}
    )


@contextmanager
def connected(server: Server, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    sock = socket.socket()
    try:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", server.port))
        yield sock
    finally:
        sock.close()


def leave(sock: socket.socket, how: str) -> None:
    """Close with FIN, as a polite client does, or with RST, as a crashed one."""
    if how == "RST":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def read_until(sock: socket.socket, marker: bytes, seen: bytes = b"") -> bytes:
    """Everything up to some point after the marker. Fails if the server closes before."""
    while marker not in seen:
        data = sock.recv(_CHUNK)
        assert data, f"closed before {marker!r}; got {seen[-300:]!r}"
        seen += data
    return seen


def read_to_end(sock: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as closing."""
    seen = b""
    while True:
        try:
            data = sock.recv(_CHUNK)
        except ConnectionError:
            return seen
        if not data:
            return seen
        seen += data


def exchange(server: Server, data: bytes) -> list[Reply]:
    """Send these bytes; what is answered until the server closes, as it must at the end of them."""
    with connected(server) as sock:
        # A server that has refused already may have closed; what it said can still be read.
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        return parse(read_to_end(sock))


def parse(data: bytes) -> list[Reply]:
    """The responses in it. They must have a Content-Length."""
    replies = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        replies.append(Reply(int(first.split()[1]), headers, rest[:length]))
        data = rest[length:]
    return replies


def seconds_until_closed(sock: socket.socket) -> float:
    began = time.monotonic()
    read_to_end(sock)
    return time.monotonic() - began

"""A stream whose reader does not read, without a kernel in between."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from gateway.sse import EventStream, ReaderStalled


class Socket:
    """The three parts of a request that a stream writes through."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False
        self.full = False
        self.drained = asyncio.Event()

    def request(self) -> web.Request:
        return cast("web.Request", SimpleNamespace(writer=self, protocol=self, transport=self))

    @property
    def writing_paused(self) -> bool:
        return self.full

    async def write(self, data: bytes, *, drain: bool) -> None:
        assert not drain  # aiohttp would wait without a limit
        self.written.append(data)

    async def drain(self) -> None:
        await self.drained.wait()

    def abort(self) -> None:
        self.aborted = True


def stream(socket: Socket, **changes: Any) -> EventStream:
    return EventStream(socket.request(), **{"silence": 10.0, "patience": 0.05, **changes})


async def test_a_reader_that_keeps_up_is_not_waited_for() -> None:
    socket = Socket()
    await stream(socket).send(b"data: 1\n\n")
    assert socket.written == [b"data: 1\n\n"]


async def test_a_full_buffer_is_waited_for() -> None:
    socket = Socket()
    socket.full = True
    sending = asyncio.create_task(stream(socket, patience=5.0).send(b"x"))
    await asyncio.sleep(0.01)
    assert not sending.done()
    socket.drained.set()
    await sending
    assert not socket.aborted


async def test_a_buffer_that_stays_full_ends_the_connection() -> None:
    socket = Socket()
    socket.full = True
    with pytest.raises(ReaderStalled):
        await stream(socket).send(b"x")
    assert socket.aborted

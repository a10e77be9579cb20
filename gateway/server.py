"""Running the application: sockets, time limits of connections, and leaving without dropping anybody.

At SIGTERM or SIGINT readiness turns to 503 while the listener stays open (`drain_delay`); then new work is refused and
what runs may finish (`drain_timeout`); what is left by then is told so in its stream. A second signal skips the waits.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from engine.errors import StartError

from .app import DESK, LIFECYCLE
from .auth import is_loopback
from .config import Http, Limits
from .connection import Connection, Refusal
from .errors import ServerStopping
from .lifecycle import Phase

KEEP_ALIVE = 75.0
"""Idle seconds before a connection closes; longer than client pools keep theirs, so that the client closes first."""

SEND_BUFFER = 128 * 1024
"""Bytes the kernel may hold for a reader (it doubles this): with its default of megabytes a stalled reader would not be
noticed before its answer was complete."""

LINGER = 2.0
"""Seconds an unread rest of a body is swallowed, so that a client still sending gets to see why it was refused."""

FAREWELL = 2.0
"""Seconds that streams have to write their last event at the end of a drain."""

BACKLOG = 1024


def check_exposed(http: Http) -> None:
    """Raises StartError for settings that would let strangers in."""
    if http.api_keys or http.key_store is not None:
        return
    if not is_loopback(http.host):
        raise StartError(f"refusing to listen on {http.host} without an API key: set one, or use 127.0.0.1")
    if "*" in http.cors_origins:
        raise StartError("cors_origins '*' needs an API key: without one any web page could use this server")


def spare_the_collector() -> None:
    """To be called once everything is loaded, by the process that serves and does nothing else.

    What is alive now lives as long as the process: the cyclic collector need not look at it again and again. Nor need
    it look often: a token allocates a dozen containers, hardly any of them in a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@dataclass(slots=True)
class Stop:
    """The wish to stop, and the wish to stop now: the first and the second signal."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self) -> None:
        (self.hurried if self.asked.is_set() else self.asked).set()

    def now(self) -> None:
        """Both at once: there is nothing left to wait for."""
        self.asked.set()
        self.hurried.set()


async def run(
    app: web.Application,
    http: Http,
    limits: Limits,
    *,
    started: Callable[[str, int], None] | None = None,
    stop: Stop | None = None,
) -> None:
    """Serve until asked to stop, then drain. `started` is told host and port. Raises StartError."""
    check_exposed(http)
    stop = stop or Stop()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.ask)
    listener = _bind(http, limits)
    try:
        async with _serving(app, limits, listener):
            if started is not None:
                started(*listener.getsockname()[:2])
            await stop.asked.wait()
            await drain(app, http, stop.hurried)
    finally:
        listener.close()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(name)


@asynccontextmanager
async def _serving(app: web.Application, limits: Limits, listener: socket.socket) -> AsyncIterator[None]:
    """The application on a socket. On the way out connections are closed, then its cleanup contexts run."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        server = await asyncio.get_running_loop().create_server(
            _connections(runner.server, limits), sock=listener, backlog=BACKLOG
        )
        try:
            yield
        finally:
            server.close()
    finally:
        await runner.cleanup()


async def drain(app: web.Application, http: Http, hurried: asyncio.Event) -> None:
    """Until nothing is being worked on, or the time for it is up."""
    lifecycle = app[LIFECYCLE]
    lifecycle.phase = Phase.LEAVING
    await _within(http.drain_delay, hurried.wait())
    lifecycle.phase = Phase.DRAINING
    await _within(http.drain_timeout, lifecycle.idle(), hurried.wait())
    app[DESK].stop_all(ServerStopping("The server is shutting down."))
    await _within(FAREWELL, lifecycle.idle())


async def _within(seconds: float, *events: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of the events, and not for longer than that."""
    tasks = [asyncio.ensure_future(event) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _connections(server: web.Server | None, limits: Limits) -> Callable[[], asyncio.Protocol]:
    """What becomes of an accepted connection."""
    if server is None:
        raise RuntimeError("the runner was not set up")
    loop = asyncio.get_running_loop()

    def accept() -> asyncio.Protocol:
        if len(server.connections) >= limits.max_connections:
            return Refusal()
        return Connection(
            server,
            loop=loop,
            header_timeout=limits.header_timeout,
            keepalive_timeout=KEEP_ALIVE,
            lingering_time=LINGER,
            auto_decompress=False,  # compressed bodies are refused unread
            access_log=None,  # the middleware writes the log
        )

    return accept


def _bind(http: Http, limits: Limits) -> socket.socket:
    """A listening socket, or one line on why not. `port` 0 takes a free one."""
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        # the kernel drops peers that leave sent data unread or unacknowledged; accepted sockets inherit it (Linux)
        patience = round(limits.write_timeout * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience)
        listener.setblocking(False)
        listener.bind((http.host, http.port))
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {http.host}:{http.port}: {error.strerror}") from None
    return listener

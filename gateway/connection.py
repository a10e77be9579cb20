"""One TCP connection: how long it may take to say what it wants, and JSON even for what is no HTTP."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import orjson
from aiohttp import web
from aiohttp.web_request import BaseRequest

from .errors import ApiError, internal_error
from .log import faults
from .version import SERVER


class Connection(web.RequestHandler):
    """aiohttp's connection with a deadline for the first headers.

    aiohttp has one timer for idle connections, and it must be long: clients keep theirs open for over a minute between
    two requests and take a reset for a failure. A new connection that says nothing is another matter.
    """

    __slots__ = ("_header_timeout", "_header_timer")

    def __init__(self, server: web.Server, *, header_timeout: float, **options: Any) -> None:
        super().__init__(server, **options)
        self._header_timeout = header_timeout
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._header_timer = loop.call_later(self._header_timeout, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.request_arrived()
        super().connection_lost(exc)

    def request_arrived(self) -> None:
        """The first headers are complete: from here on the server's other limits apply."""
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What aiohttp answers when bytes are no HTTP, or when the application failed outside its own middleware."""
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun; an error can only end it")
        if status == 500:
            faults.error("unhandled failure", exc_info=exc)
            error = internal_error()
        else:
            error = ApiError(status, "The request is not valid HTTP.", code="invalid_http")
        response = error.response()
        response.headers["Server"] = SERVER
        response.force_close()
        return response


class Refusal(asyncio.Protocol):
    """Answers one connection too many, unread, and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        body = orjson.dumps(
            {
                "error": {
                    "message": "Too many open connections.",
                    "type": "server_error",
                    "param": None,
                    "code": "overloaded",
                }
            }
        )
        cast("asyncio.WriteTransport", transport).write(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
            b"retry-after-ms: 1000\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        transport.close()

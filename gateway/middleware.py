"""Around every request: its id, its caller, its limits of time, its log line, and errors turned into JSON."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

from aiohttp import web

from .auth import Keyring, Tenant
from .browsers import BrowserPolicy
from .caller import CALLER, Caller
from .connection import Connection
from .errors import InvalidRequest, explain
from .lifecycle import Lifecycle
from .log import requests
from .metrics import Metrics
from .routes import RouteTable
from .version import SERVER

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID = web.RequestKey("request_id", str)
ARRIVED = web.RequestKey("arrived", float)

PROBES = frozenset({"/health/live", "/health/ready", "/metrics"})
"""Asked every few seconds by machines: not worth a line each."""

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}")
CLIENT_GONE = 499
"""nginx's status for a client that left before its answer; seen in logs and metrics only."""


class Observer:
    """The outermost layer: nothing leaves it that is not a response with an id, and everything is counted once."""

    def __init__(self, routes: RouteTable, browsers: BrowserPolicy, metrics: Metrics) -> None:
        self._routes = routes
        self._browsers = browsers
        self._metrics = metrics

    @web.middleware
    async def observe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if isinstance(request.protocol, Connection):
            request.protocol.request_arrived()
        request[ARRIVED] = time.perf_counter()
        request[REQUEST_ID] = _request_id(request.headers.get("X-Request-Id"))
        status = CLIENT_GONE
        self._metrics.in_flight += 1
        try:
            response = await self._answer(request, handler)
            status = response.status
            return response
        finally:
            self._metrics.in_flight -= 1
            self._note(request, status)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """On every response, streams included: their headers go out before the handler returns."""
        headers = response.headers
        headers["Server"] = SERVER
        if ARRIVED in request:
            elapsed = time.perf_counter() - request[ARRIVED]
            headers["x-request-id"] = request[REQUEST_ID]
            headers["openai-processing-ms"] = str(round(elapsed * 1000))
            headers["openai-version"] = "2020-10-01"
        headers.update(self._browsers.headers(request.headers.get("Origin")))

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._browsers.check(request.headers)
            return self._browsers.preflight(request) or await handler(request)
        except ConnectionError:
            raise  # the client is gone: there is nobody to answer
        except Exception as error:  # noqa: BLE001 - the last place where a fault can still become an answer
            return self._routes.error(request.match_info, explain(error, request[REQUEST_ID]))

    def _note(self, request: web.Request, status: int) -> None:
        route = self._routes.label(request.match_info)
        self._metrics.http_request(route, request.method if route != "unknown" else "any", status)
        caller = request.get(CALLER)
        requests.log(
            logging.DEBUG if route in PROBES else logging.INFO,
            "%s %s %s %d %.1fms tenant=%s",
            request[REQUEST_ID],
            request.method,
            route,
            status,
            (time.perf_counter() - request[ARRIVED]) * 1000,
            caller.tenant.id if caller else "-",
        )


class Doorkeeper:
    """Who may come in, and until when. Denies by default."""

    def __init__(
        self, keyring: Keyring, routes: RouteTable, lifecycle: Lifecycle, request_timeout: float
    ) -> None:
        self._keyring = keyring
        self._routes = routes
        self._lifecycle = lifecycle
        self._request_timeout = request_timeout

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        match = request.match_info
        tenant = self._keyring.authorise(self._routes.access(match), request.headers, request.remote)
        request[CALLER] = self._caller(request, tenant)
        with self._lifecycle.work() if self._routes.is_work(match) else nullcontext():
            return await handler(request)

    def _caller(self, request: web.Request, tenant: Tenant) -> Caller:
        allowed = self._request_timeout
        if (asked := request.headers.get("X-Request-Timeout")) is not None:
            allowed = min(allowed, _seconds(asked))
        return Caller(
            tenant=tenant,
            request_id=request[REQUEST_ID],
            deadline=asyncio.get_running_loop().time() + allowed,
            created=int(time.time()),
            route=self._routes.label(request.match_info),
        )


def _request_id(given: str | None) -> str:
    return given if given is not None and _SANE_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InvalidRequest(
            "X-Request-Timeout must be a positive number of seconds.", param="X-Request-Timeout"
        )
    return value

"""Whether the server lives, and whether it should be sent work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson
from aiohttp import web

from engine.client import EngineClient

from .lifecycle import Lifecycle, Phase
from .version import VERSION


@dataclass(frozen=True, slots=True)
class Health:
    """These answers are public: they name states and nothing else."""

    engine: EngineClient
    lifecycle: Lifecycle
    degraded: Callable[[], list[str]] = list
    """What is missing while requests are served all the same."""

    async def live(self, request: web.Request) -> web.Response:
        """The event loop answers."""
        return _json(200, {"status": "live"})

    async def ready(self, request: web.Request) -> web.Response:
        status = self.status()
        return _json(200 if status == "ready" else 503, {"status": status, **self._missing()})

    async def show_version(self, request: web.Request) -> web.Response:
        return _json(200, {"version": VERSION})

    def _missing(self) -> dict[str, list[str]]:
        degraded = self.degraded()
        return {"degraded": degraded} if degraded else {}

    def status(self) -> str:
        """`ready`, or the first reason why not."""
        health = self.engine.health
        if self.lifecycle.phase is not Phase.SERVING:
            return "draining"
        if health.status != "ready":
            return f"engine_{health.status}"
        if self.engine.queue.full:
            return "queue_full"
        return "ready"


def _json(status: int, body: Mapping[str, object]) -> web.Response:
    headers = {} if status == 200 else {"Retry-After": "1"}
    return web.Response(
        status=status, body=orjson.dumps(body), content_type="application/json", headers=headers
    )

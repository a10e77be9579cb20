"""For the operator: the exact state of everything, a flush of the cache, and failpoints in test mode."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import orjson
from aiohttp import web

from engine.client import EngineClient

from .body import read_json
from .caching.flush import Flush, by_tier
from .config import Limits
from .desk import Desk
from .faulty_store import FaultyStore
from .health import Health
from .openai.fields import Wire, parse


class FailpointRequest(Wire):
    spec: str


@dataclass(frozen=True, slots=True)
class Admin:
    engine: EngineClient
    desk: Desk
    caches: Flush
    health: Health
    limits: Limits
    test_mode: bool
    faults: FaultyStore | None = None

    async def state(self, request: web.Request) -> web.Response:
        """Raises EngineUnavailable when the engine cannot be asked."""
        report = await self.engine.state()
        health, info, queue, counters = (
            self.engine.health,
            self.engine.info,
            self.engine.queue,
            report.counters,
        )
        body = {
            "status": self.health.status(),
            "test_mode": self.test_mode,
            "gateway": {
                "requests_open": self.desk.open,
                "requests_queued": queue.requests,
                "tokens_queued": queue.tokens,
                "rejected": queue.rejected,
                "limits": {
                    "requests": queue.limits.requests,
                    "tokens": queue.limits.tokens,
                    "tenant_requests": queue.limits.tenant_requests,
                    "connections": self.limits.max_connections,
                },
            },
            "engine": {
                "status": health.status,
                "detail": health.detail,
                "pid": health.pid,
                "restarts": health.restarts,
                "heartbeat_age": health.heartbeat_age,
                "running": counters.running,
                "waiting": counters.waiting,
                "pages": {
                    "total": counters.pages_total,
                    "free": counters.pages_free,
                    "tree": counters.pages_tree,
                    "held": report.pages_held,
                },
                "report": {**msgspec.to_builtins(report), "counters": _named(counters)},
                "info": msgspec.to_builtins(info),
            },
        }
        return _json(body)

    async def flush(self, request: web.Request) -> web.Response:
        report = (await self.caches.everything()).report
        counts = {"pages": by_tier(report.pages), "bytes": by_tier(report.bytes)}
        return _json({"status": "ok", **counts, "in_use": report.in_use})

    async def set_failpoint(self, request: web.Request) -> web.Response:
        """Routed in test mode only."""
        asked = parse(FailpointRequest, await read_json(request, self.limits), {})
        if self.faults is None or not self.faults.set(asked.spec):
            self.engine.set_failpoint(asked.spec)
        return _json({"status": "ok"})


def _named(counters: msgspec.Struct) -> dict[str, object]:
    """With the names of the fields, which counters travel without."""
    return {
        name: _named(value) if isinstance(value, msgspec.Struct) else value
        for name, value in msgspec.structs.asdict(counters).items()
    }


def _json(body: dict[str, object]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

"""POST /v1/caches/lookup: what a request would find in the cache, without being one."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web

from engine.request import Evicted, LookUpReport

from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from .dry_run import DryRuns


@dataclass(frozen=True, slots=True)
class Lookup:
    """Changes nothing: no page is renewed, moved or counted as used by it."""

    dry_runs: DryRuns
    limits: Limits

    async def handle(self, request: web.Request) -> web.Response:
        """The body is that of a chat or completions request, whole: what the endpoint refuses is refused here."""
        caller = request[CALLER]
        body = await read_json(request, self.limits)
        async with caller.in_time():
            dry = await self.dry_runs.read(caller.tenant.id, body)
            report = await self.dry_runs.look_up(caller.tenant.id, dry)
        answer = _wire(self.dry_runs.model.id, len(dry.prompt.ids), report)
        return web.Response(body=orjson.dumps(answer), content_type="application/json")


def _wire(model: str, tokens: int, report: LookUpReport) -> dict[str, object]:
    hit = report.device + report.host + report.disk
    return {
        "object": "cache.lookup",
        "model": model,
        "prompt_tokens": tokens,
        "hit_tokens": hit,
        "miss_tokens": tokens - hit,
        "hit_tokens_by_tier": {"device": report.device, "host": report.host, "disk": report.disk},
        "saved_ms": round(report.saved * 1000, 3),
        "evicted": None if report.evicted is None else _evicted(report.evicted),
    }


def _evicted(evicted: Evicted) -> dict[str, object]:
    return {"cause": evicted.cause, "seconds_ago": round(evicted.age, 3), "broken": evicted.broken}

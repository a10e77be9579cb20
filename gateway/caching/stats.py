"""GET /v1/caches/stats: what of the cache is whose, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web

from cache.lease import TIERS
from engine.client import EngineClient
from engine.request import CacheReport, TenantCache

from ..auth import Access, Keyring
from ..caller import CALLER
from ..errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Stats:
    """Of the caller's own tenant; the admin may ask for another's by `?tenant=`, or for all by `?all=true`."""

    engine: EngineClient
    keyring: Keyring

    async def handle(self, request: web.Request) -> web.Response:
        tenant = self._tenant(request)
        report = await self.engine.cache_report(tenant)
        body = {
            "object": "cache.stats",
            "tenants": [
                {**_cached(cached), "entries": _entries(report, cached.tenant)} for cached in report.tenants
            ],
        }
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    def _tenant(self, request: web.Request) -> str | None:
        own = request[CALLER].tenant.id
        for name in request.query.keys() - {"tenant", "all"}:
            raise InvalidRequest(
                f"Unknown parameter: '{name[:100]}'.", param=name[:100], code="unknown_parameter"
            )
        everybody = request.query.get("all") == "true"
        tenant = request.query.get("tenant", own)
        if everybody or tenant != own:
            self.keyring.authorise(Access.ADMIN, request.headers, request.remote)
        return None if everybody else tenant


def _cached(cached: TenantCache) -> dict[str, object]:
    return {
        "tenant": cached.tenant,
        "bytes": {tier: cached.bytes.get(tier, 0) for tier in TIERS},
        "pinned_pages": cached.pinned_pages,
        "evictions": cached.evictions,
        "broken_leases": cached.broken_leases,
    }


def _entries(report: CacheReport, tenant: str) -> int:
    return sum(entry.tenant == tenant for entry in report.entries)

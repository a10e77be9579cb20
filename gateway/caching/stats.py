"""GET /v1/caches/stats: what of the cache is whose, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from aiohttp import web

from cache.lease import TIERS
from engine.client import EngineClient
from engine.request import TenantCache

from ..auth import Access, Keyring
from ..caller import CALLER
from ..errors import InvalidRequest
from .accounting import Accounting


@dataclass(frozen=True, slots=True)
class Stats:
    """Of the caller's own tenant; the admin may ask for another's by `?tenant=`, or for all by `?all=true`."""

    engine: EngineClient
    keyring: Keyring
    accounting: Accounting

    async def handle(self, request: web.Request) -> web.Response:
        tenant = self._tenant(request)
        report = await self.engine.cache_report(tenant)
        cached = {each.tenant: each for each in report.tenants}
        used = {each.tenant for each in self.accounting.stats(tenant)}
        body = {
            "object": "cache.stats",
            "tenants": [
                {
                    **_cached(cached.get(name) or _nothing(name)),
                    "entries": sum(entry.tenant == name for entry in report.entries),
                    "usage": self.accounting.stats(name)[0],
                }
                for name in sorted(used | cached.keys())
            ],
        }
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

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


def _nothing(tenant: str) -> TenantCache:
    return TenantCache(tenant=tenant, bytes={}, pinned_pages=0, evictions={}, broken_leases=0)

"""GET /v1/caches/stats: what of the cache is whose, what became of it, and what it was good for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from aiohttp import web

from cache.lease import TIERS
from engine.client import EngineClient
from engine.request import TenantCache

from ..auth import Access, Keyring
from ..caller import CALLER
from ..errors import InvalidRequest
from .accounting import Accounting, Named, TenantStats
from .objects import CacheObjects


@dataclass(frozen=True, slots=True)
class Stats:
    """Of the caller's own tenant; the admin may ask for another's by `?tenant=`, or for all by `?all=true`."""

    objects: CacheObjects
    engine: EngineClient
    accounting: Accounting
    keyring: Keyring

    async def handle(self, request: web.Request) -> web.Response:
        tenant = self._tenant(request)
        report = await self.engine.cache_report(tenant)
        cached = {each.tenant: each for each in report.tenants}
        counted = {each.tenant: each for each in self.accounting.stats(tenant)}
        data = []
        for name in sorted(cached.keys() | counted.keys()):
            counts = counted.get(name) or self.accounting.stats(name)[0]
            data.append(
                {
                    **_cached(cached.get(name), name),
                    "usage": _usage(counts, await self._names(counts)),
                }
            )
        body = {"object": "cache.stats", "tenants": data}
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    def _tenant(self, request: web.Request) -> str | None:
        own = request[CALLER].tenant.id
        for name in request.query.keys() - {"tenant", "all"}:
            raise InvalidRequest(
                f"Unknown parameter: '{name[:100]}'.", param=name[:100], code="unknown_parameter"
            )
        everybody = request.query.get("all", "false")
        if everybody not in ("true", "false"):
            raise InvalidRequest("Invalid 'all': expected 'true' or 'false'.", param="all")
        tenant = request.query.get("tenant", own)
        if everybody == "true" or tenant != own:
            self.keyring.authorise(Access.ADMIN, request.headers, request.remote)
        return None if everybody == "true" else tenant

    async def _names(self, counts: TenantStats) -> dict[str, str | None]:
        """Of the tenant's objects, by id."""
        if not counts.objects:
            return {}
        return {each.id: each.name for each in await self.objects.all(counts.tenant)}


def _cached(cached: TenantCache | None, tenant: str) -> dict[str, object]:
    if cached is None:
        cached = TenantCache(tenant=tenant, bytes={}, pinned_pages=0, evictions={}, broken_leases=0)
    return {
        "tenant": tenant,
        "bytes": {tier: cached.bytes.get(tier, 0) for tier in TIERS},
        "entries": cached.entries,
        "pinned_pages": cached.pinned_pages,
        "evictions": cached.evictions,
        "broken_leases": cached.broken_leases,
    }


def _usage(counts: TenantStats, names: Mapping[str, str | None]) -> dict[str, Any]:
    usage: dict[str, Any] = msgspec.to_builtins(counts)
    del usage["tenant"]
    return {**usage, "objects": [_of_object(each, names) for each in counts.objects]}


def _of_object(usage: Named, names: Mapping[str, str | None]) -> dict[str, Any]:
    counted: dict[str, Any] = msgspec.to_builtins(usage)
    return {"id": counted.pop("name"), "name": names.get(usage.name), **counted}

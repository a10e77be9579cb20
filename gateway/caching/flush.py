"""POST /v1/caches/flush: let nobody find these pages again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from aiohttp import web
from pydantic import Field

from cache.lease import TIERS, FlushScope, Tier
from cache.store import StoreUnavailable
from engine.client import EngineClient
from engine.request import FlushReport

from ..auth import Access, Keyring
from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from ..desk import Desk
from ..errors import InvalidRequest
from ..model import TextModel
from ..openai.fields import Wire, parse
from .caches import Caches
from .lifetimes import read_ttl
from .namespaces import Namespaces
from .object_fields import check_label
from .objects import CacheObject, CacheObjects


class FlushedScope(Wire):
    """What fits every field that is given; at least one has to be."""

    tenant: str | None = Field(None, description="a whole tenant: your own, or as admin any")
    all: bool = Field(False, description="everything of everybody; admin only")
    model: str | None = Field(None, description="of this model")
    cache_salt: str | None = Field(None, description="of requests with this salt")
    prompt_cache_key: str | None = Field(None, description="that only requests with this key used")
    tag: str | None = Field(None, description="that only entries with this tag hold")
    cache_id: str | None = Field(None, description="of this cache, as far as no other needs them")
    older_than: str | None = Field(None, description="not used for so long: 5m, 30m, 1h, 12h, 24h or <n>s")

    @property
    def narrow(self) -> bool:
        """Less than all of a tenant's."""
        return bool(self.model_fields_set - {"tenant", "all"})


class FlushRequest(Wire):
    scope: FlushedScope
    tiers: list[Tier] | None = Field(None, description="of these tiers only: device, host, disk; default all")
    dry_run: bool = Field(False, description="only say what would go")


@dataclass(frozen=True, slots=True)
class Flushed:
    """`written`: the store knows, so whoever shares it does. If not, it will when it is back."""

    report: FlushReport
    written: bool = True


@dataclass(frozen=True, slots=True)
class Flush:
    """A whole tenant ends with its generation, in O(1). Narrower scopes are looked for by the engine."""

    caches: Caches
    namespaces: Namespaces
    engine: EngineClient
    desk: Desk
    keyring: Keyring
    model: TextModel
    limits: Limits

    @property
    def objects(self) -> CacheObjects:
        return self.caches.objects

    async def handle(self, request: web.Request) -> web.Response:
        asked = parse(FlushRequest, await read_json(request, self.limits), {})
        tenant = self._tenant(asked.scope, request)
        scope = await self._scope(asked, tenant)
        self.desk.info()  # half a flush would be worse than none
        flushed = await self._flush(asked, tenant, scope)
        return web.Response(body=orjson.dumps(_wire(flushed, asked)), content_type="application/json")

    async def everything(self) -> Flushed:
        """All pages of all tenants, and all objects."""
        tenants = await self.namespaces.generations.tenants()
        written = True
        try:
            tenants.update(await self.objects.owners())
        except StoreUnavailable:
            written = False
        for tenant in tenants:
            written = await self._end(tenant) and written
        return Flushed(await self.engine.flush_cache(FlushScope()), written)

    async def _flush(self, asked: FlushRequest, tenant: str | None, scope: FlushScope) -> Flushed:
        if asked.dry_run:
            return Flushed(await self.engine.flush_cache(scope, dry_run=True))
        if asked.scope.narrow or scope.tiers != TIERS:
            return Flushed(await self._part(asked, tenant, scope))
        if tenant is None:
            return await self.everything()
        # first what decides, then what clears away: a request that comes in between finds nothing either
        written = await self._end(tenant)
        return Flushed(await self.engine.flush_cache(scope), written)

    async def _end(self, tenant: str) -> bool:
        written = await self.namespaces.flush(tenant)
        self.objects.flushed(tenant)
        return written

    async def _part(self, asked: FlushRequest, tenant: str | None, scope: FlushScope) -> FlushReport:
        report = await self.engine.flush_cache(scope)
        if scope.tiers == TIERS:
            for owner in await self.objects.owners() if tenant is None else (tenant,):
                fitting = [
                    each
                    for each in await self.objects.all(owner)
                    if each.ended is None and self._fits(each, asked.scope)
                ]
                for each in fitting:
                    await self.objects.end(each, "flushed")
                await self.caches.forget(
                    *[each.id for each in fitting]
                )  # pages that others need stay, but not for their sake
        return report

    def _tenant(self, scope: FlushedScope, request: web.Request) -> str | None:
        """Whose pages; None is everybody's. Raises ApiError 401 or 403 for others' without the admin key."""
        if not scope.model_fields_set:
            raise InvalidRequest("A scope names at least one thing.", param="scope")
        own = request[CALLER].tenant.id
        if scope.all and scope.tenant is not None:
            raise InvalidRequest(
                "'all' and 'tenant' exclude each other.", param="scope.all", code="conflicting_parameters"
            )
        if scope.all or scope.tenant not in (None, own):
            self.keyring.authorise(Access.ADMIN, request.headers, request.remote)
            return scope.tenant
        if scope.model_fields_set == {"all"}:
            raise InvalidRequest("A scope names at least one thing.", param="scope")
        return own

    async def _scope(self, asked: FlushRequest, tenant: str | None) -> FlushScope:
        scope = asked.scope
        if asked.tiers == []:
            raise InvalidRequest("Invalid 'tiers': empty array.", param="tiers", code="empty_array")
        for name in ("cache_salt", "prompt_cache_key", "tag"):
            check_label(f"scope.{name}", getattr(scope, name), self.limits)
        if scope.model is not None:
            self.model.check_name(scope.model)
        if tenant is None and (scope.cache_salt or scope.prompt_cache_key or scope.cache_id):
            raise InvalidRequest("Salts, keys and caches belong to a tenant: name it.", param="scope.tenant")
        entry_id = None
        if scope.cache_id is not None:
            entry_id = (await self.objects.live(tenant or "", scope.cache_id, param="scope.cache_id")).id
        idle = None if scope.older_than is None else read_ttl(scope.older_than, param="scope.older_than")
        return FlushScope(
            tenant=tenant,
            namespaces=self._namespaces(scope, tenant),
            adapter=None if scope.model is None else b"",
            group=self.namespaces.group(tenant, scope.prompt_cache_key) or None if tenant else None,
            tag=scope.tag,
            entry_id=entry_id,
            idle_for=idle,
            tiers=TIERS if asked.tiers is None else tuple(tier for tier in TIERS if tier in asked.tiers),
        )

    def _namespaces(self, scope: FlushedScope, tenant: str | None) -> tuple[bytes, ...] | None:
        """A salt decides a namespace; so does a key where keys are isolated."""
        if tenant is None or (scope.cache_salt is None and scope.prompt_cache_key is None):
            return None
        narrowed = self.namespaces.of(tenant, salt=scope.cache_salt, key=scope.prompt_cache_key)
        if scope.cache_salt is None and narrowed == self.namespaces.of(tenant):
            return None  # the key only groups here
        return (narrowed,)

    def _fits(self, each: CacheObject, scope: FlushedScope) -> bool:
        idle = self.objects.clock() - each.last_used_at
        return (
            scope.cache_salt in (None, each.salt)
            and scope.prompt_cache_key in (None, each.key)
            and scope.tag in (None, each.tag)
            and scope.cache_id in (None, each.id, each.name)
            and (scope.older_than is None or idle >= read_ttl(scope.older_than, param="scope.older_than"))
        )


def by_tier(counts: Mapping[Tier, int]) -> dict[Tier, int]:
    return {tier: counts.get(tier, 0) for tier in TIERS}


def _wire(flushed: Flushed, asked: FlushRequest) -> dict[str, object]:
    report = flushed.report
    wire: dict[str, object] = {
        "object": "cache.flush",
        "dry_run": asked.dry_run,
        "pages": by_tier(report.pages),
        "tokens": by_tier(report.tokens),
        "bytes": by_tier(report.bytes),
        "entries": report.entries,
        "in_use": report.in_use,
        "kept": report.kept,
    }
    return wire if flushed.written else {**wire, "pending": ["redis"]}

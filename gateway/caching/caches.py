"""Cache objects over HTTP: create, get, list, change, delete, warm, and move between tiers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import orjson
from aiohttp import web
from msgspec import structs

from cache.lease import TIERS, Tier
from engine.client import EngineClient
from engine.errors import EngineUnavailable, PinsExhausted
from engine.request import EntryReport, EntryState

from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from ..errors import ApiError, InvalidRequest
from ..generation import Usage
from ..model import TextModel
from ..openai.fields import parse
from ..tenants import Tenants
from .accounting import Accounting
from .content import Contents
from .object_fields import ChangeCache, CreateCache, MoveCache, NewCache, read_page
from .object_view import wire
from .objects import CacheObject, CacheObjects, Held, not_found
from .prefill import Prefill
from .rewarming import Rewarming

AT_ONCE = 64
"""So many entries are let go of together: each is a question to the engine, which answers between two steps."""

FORGET_PATIENCE = 2.0
"""Seconds for the engine to let go of entries that nobody will ask for; nobody waits longer for that."""


@dataclass(frozen=True, slots=True)
class Caches:
    objects: CacheObjects
    contents: Contents
    prefill: Prefill
    engine: EngineClient
    model: TextModel
    tenants: Tenants
    accounting: Accounting
    rewarming: Rewarming
    limits: Limits

    async def create(self, request: web.Request) -> web.Response:
        """Answers when the prompt is in the cache, or not at all: a create that fails leaves nothing behind."""
        caller = request[CALLER]
        asked = parse(CreateCache, await read_json(request, self.limits), {})
        asked.check(self.limits, self.objects.clock())
        self.model.check_name(asked.model)
        content = self.contents.read(
            messages=asked.messages,
            tools=asked.tools,
            variables=asked.chat_template_kwargs,
            prompt=asked.prompt,
        )
        desk = self.prefill.desk
        info = desk.info()
        with desk.place(caller, 1) as place:
            async with caller.in_time():
                held = Held(content=content, prompt=await self.contents.tokens(content, info.max_model_len))
                async with self.objects.making(caller.tenant.id, asked.name) as found:
                    made = self.made(caller.tenant.id, asked, held)
                    if found is not None:
                        made = _renewed(found, made)
                    async with self.or_nothing(made, new=found is None), naming_pin():
                        usage = await self.prefill.run(caller, place, made, held.prompt, self.objects.clock())
                        await self.objects.keep(made, held)
        return await self.answer(made, usage)

    async def get(self, request: web.Request) -> web.Response:
        """Also one that has ended: its status says how."""
        return await self.answer(await self.objects.find(request[CALLER].tenant.id, _id(request)))

    async def list(self, request: web.Request) -> web.Response:
        """Those that can be used."""
        page = read_page(dict(request.query))
        tenant = request[CALLER].tenant.id
        found = [
            each
            for each in await self.objects.all(tenant)
            if each.ending(self.objects.clock()) is None
            and page.name in (None, each.name)
            and page.tag in (None, each.tag)
        ]
        if page.order == "desc":
            found.reverse()
        begin = 0
        if page.after is not None:
            ids = [each.id for each in found]
            if page.after not in ids:
                raise not_found(page.after, "after")
            begin = ids.index(page.after) + 1
        shown = found[begin : begin + page.limit]
        entries = await self._entries(shown)
        data = [self._wire(each, (entries or {}).get(each.id), asked=entries is not None) for each in shown]
        return _json(
            {
                "object": "list",
                "data": data,
                "first_id": shown[0].id if shown else None,
                "last_id": shown[-1].id if shown else None,
                "has_more": begin + len(shown) < len(found),
            }
        )

    async def change(self, request: web.Request) -> web.Response:
        """The engine first: it may refuse a pin."""
        asked = parse(ChangeCache, await read_json(request, self.limits), {})
        tenant, now = request[CALLER].tenant.id, self.objects.clock()
        asked.check(self.limits, now)
        policy = self.tenants.policy(tenant)
        found = await self.objects.live(tenant, _id(request))
        wanted = asked.applied(found, now, policy)
        async with naming_pin():
            _check(await self.engine.entry(found.id, lease=wanted.lease(now)))
        changed = await self.objects.change(
            tenant, found.id, lambda latest: asked.applied(latest, now, policy)
        )
        return await self.answer(changed)

    async def delete(self, request: web.Request) -> web.Response:
        """Its pages become like any other's: what nobody uses goes first."""
        found = await self.objects.find(request[CALLER].tenant.id, _id(request))
        await self.objects.remove(found)
        await self.forget(found.id)
        return _json({"id": found.id, "object": "cache.deleted", "deleted": True})

    async def warm(self, request: web.Request) -> web.Response:
        """Compute what is missing of it, and renew it."""
        caller, now = request[CALLER], self.objects.clock()
        await _no_fields(request, self.limits)
        found = await self.objects.live(caller.tenant.id, _id(request))
        held = await self.objects.content(found)
        desk = self.prefill.desk
        desk.info()
        with desk.place(caller, 1) as place:
            async with naming_pin():
                usage = await self.prefill.run(caller, place, found.used(now), held.prompt, now)
        renewed = await self.objects.change(found.tenant, found.id, lambda latest: latest.used(now))
        return await self.answer(renewed, usage)

    async def demote(self, request: web.Request) -> web.Response:
        return await self._move(request, "demote")

    async def promote(self, request: web.Request) -> web.Response:
        return await self._move(request, "promote")

    async def forget(self, *object_ids: str) -> None:
        """Let the engine know that nothing is promised of these any more. Best effort: an engine that is gone has forgotten
        them."""
        for first in range(0, len(object_ids), AT_ONCE):
            some = object_ids[first : first + AT_ONCE]
            with contextlib.suppress(EngineUnavailable, TimeoutError):
                async with asyncio.timeout(FORGET_PATIENCE):
                    await asyncio.gather(*[self.engine.entry(each, drop=True) for each in some])

    # -- for others that make objects ----------------------------------------------------------------------------------

    def made(self, tenant: str, asked: NewCache, held: Held) -> CacheObject:
        """The object that is asked for. Raises InvalidRequest, ApiError 409."""
        return asked.made(
            tenant,
            self.model.id,
            held,
            generation=self.objects.generation(tenant),
            now=self.objects.clock(),
            policy=self.tenants.policy(tenant),
        )

    @asynccontextmanager
    async def or_nothing(self, made: CacheObject, *, new: bool) -> AsyncIterator[None]:
        """Leave no entry behind whose object was not kept."""
        try:
            yield
        except BaseException:
            if new:
                await self.forget(made.id)
            raise

    async def answer(self, found: CacheObject, usage: Usage | None = None) -> web.Response:
        entry, asked = None, True
        if found.ending(self.objects.clock()) is None:
            try:
                entry = (await self.engine.entry(found.id)).entry
            except EngineUnavailable:
                asked = False
        body = self._wire(found, entry, asked=asked)
        return _json(body if usage is None else {**body, "usage": usage.wire()})

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _move(self, request: web.Request, way: Literal["demote", "promote"]) -> web.Response:
        asked = parse(MoveCache, await _optional_json(request, self.limits), {})
        found = await self.objects.live(request[CALLER].tenant.id, _id(request))
        to = asked.to or ("host" if way == "demote" else "device")
        _check_way(way, to, found)
        report = await self.engine.entry(found.id, to=to)
        _check(report)
        if report.entry is None:
            raise ApiError(
                409, f"Nothing of '{found.id}' is cached: warm it first.", param="id", code="cache_cold"
            )
        return _json(self._wire(found, report.entry))

    def _wire(self, found: CacheObject, entry: EntryState | None, *, asked: bool = True) -> dict[str, object]:
        saved = self.accounting.of_object(found.tenant, found.id).saved_seconds
        page_size = 1 if self.engine.info is None else self.engine.info.page_size
        warming = self.rewarming.awaits(found)
        now = self.objects.clock()
        return wire(found, entry, now, page_size=page_size, saved=saved, asked=asked, warming=warming)

    async def _entries(self, shown: Sequence[CacheObject]) -> dict[str, EntryState] | None:
        """By id; None if the engine cannot be asked."""
        try:
            reports = await asyncio.gather(*[self.engine.entry(each.id) for each in shown])
        except EngineUnavailable:
            return None
        return {report.entry.entry_id: report.entry for report in reports if report.entry is not None}


def _renewed(found: CacheObject, made: CacheObject) -> CacheObject:
    """The object there is, as one just asked for. Raises ApiError 409 if it is another."""
    if found.digest != made.digest:
        raise ApiError(
            409,
            f"There is a cache named '{found.name}' with another content: {found.id}.",
            param="name",
            code="cache_name_taken",
        )
    return structs.replace(made, id=found.id, created_at=found.created_at)


@asynccontextmanager
async def naming_pin() -> AsyncIterator[None]:
    """Here the field that asks for a pin is called so."""
    try:
        yield
    except PinsExhausted as error:
        raise ApiError(409, str(error), param="pin", code="pin_quota_exceeded") from None


def _check(report: EntryReport) -> None:
    """Raises for what the engine would not do."""
    if report.error is None:
        return
    if report.kind == "pins_exhausted":
        raise PinsExhausted(report.error)
    raise ApiError(409, report.error, code="cache_not_movable")


def _check_way(way: Literal["demote", "promote"], to: Tier, found: CacheObject) -> None:
    top, bottom = ("host", "disk") if way == "demote" else ("device", "host")
    if to not in (top, bottom):
        raise InvalidRequest(f"Invalid 'to': expected '{top}' or '{bottom}' to {way}.", param="to")
    if TIERS.index(to) > TIERS.index(found.lowest):
        raise InvalidRequest(f"Invalid 'to': the lowest tier of this cache is '{found.lowest}'.", param="to")


async def _optional_json(request: web.Request, limits: Limits) -> dict[str, object]:
    return await read_json(request, limits) if request.can_read_body else {}


async def _no_fields(request: web.Request, limits: Limits) -> None:
    for name in await _optional_json(request, limits):
        raise InvalidRequest(
            f"Unknown parameter: '{name[:100]}'.", param=name[:100], code="unknown_parameter"
        )


def _id(request: web.Request) -> str:
    return request.match_info["id"]


def _json(body: dict[str, object]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

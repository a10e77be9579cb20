"""Responses that are kept: get, delete, their input; and how many tokens an input has."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web

from ..body import read_json
from ..caller import CALLER
from ..errors import ApiError, InvalidRequest
from ..openai.fields import parse, wrong_type
from ..paging import read_paging
from .background import Background
from .create import CreateResponse
from .records import ResponseRecords
from .request import NOT_SERVED, ResponseRequest


@dataclass(frozen=True, slots=True)
class KeptResponses:
    records: ResponseRecords
    creating: CreateResponse
    background: Background

    async def get(self, request: web.Request) -> web.StreamResponse:
        """With `stream` in the query the events behind `starting_after`, of one that is made in the background."""
        tenant, response_id = request[CALLER].tenant.id, request.match_info["id"]
        after = _starting_after(request)
        record = await self.records.response(tenant, response_id)
        if after is None:
            return _json(await self.background.seen(tenant, record))
        log = self.background.log(tenant, response_id)
        if log is None:
            raise InvalidRequest(
                "This server does not have its events (any more): ask without 'stream'.", param="stream"
            )
        return await self.creating.follow(request, log, after)

    async def delete(self, request: web.Request) -> web.Response:
        response_id = request.match_info["id"]
        tenant = request[CALLER].tenant.id
        await self.records.delete(tenant, response_id)
        self.background.forget(tenant, response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: web.Request) -> web.Response:
        paging = read_paging(request.query)
        record = await self.records.response(request[CALLER].tenant.id, request.match_info["id"])
        return _json(paging.page(record.items))

    async def cancel(self, request: web.Request) -> web.Response:
        tenant, response_id = request[CALLER].tenant.id, request.match_info["id"]
        record = await self.records.response(tenant, response_id)
        if not record.response["background"]:
            raise ApiError(400, "Only a response that was created in the background can be cancelled.")
        return _json(await self.background.cancel(tenant, response_id))

    async def input_tokens(self, request: web.Request) -> web.Response:
        """Of a request that is not made."""
        caller = request[CALLER]
        given = await read_json(request, self.creating.reader.limits)
        body = parse(ResponseRequest, {"model": self.creating.reader.model.id, **given}, NOT_SERVED)
        async with caller.in_time():
            asked = await self.creating.read(caller.tenant.id, body)
            composed = await self.creating.turns.compose(caller.tenant.id, asked.turn, looking=True)
        return _json({"object": "response.input_tokens", "input_tokens": len(composed.prompt.ids)})


def _starting_after(request: web.Request) -> int | None:
    """None: not asked for events; -1: for all of them."""
    stream, after = request.query.get("stream", "false").lower(), request.query.get("starting_after")
    if stream not in ("true", "false"):
        raise wrong_type("stream", "a boolean", stream)
    if stream == "false":
        if after is not None:
            raise InvalidRequest("'starting_after' goes with 'stream' only.", param="starting_after")
        return None
    if after is None:
        return -1
    if not (after.isascii() and after.isdecimal()):
        raise wrong_type("starting_after", "an integer", after)
    return int(after[:9])


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

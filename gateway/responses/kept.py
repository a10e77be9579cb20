"""Responses that are kept: get, delete, their input; and how many tokens an input has."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from aiohttp import web

from ..body import read_json
from ..caller import CALLER
from ..errors import ApiError
from ..openai.fields import parse
from ..paging import read_paging
from .create import CreateResponse
from .records import ResponseRecords
from .request import NOT_SERVED, ResponseRequest


@dataclass(frozen=True, slots=True)
class KeptResponses:
    records: ResponseRecords
    creating: CreateResponse

    async def get(self, request: web.Request) -> web.Response:
        record = await self.records.response(request[CALLER].tenant.id, request.match_info["id"])
        return _json(record.response)

    async def delete(self, request: web.Request) -> web.Response:
        response_id = request.match_info["id"]
        await self.records.delete(request[CALLER].tenant.id, response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: web.Request) -> web.Response:
        paging = read_paging(request.query)
        record = await self.records.response(request[CALLER].tenant.id, request.match_info["id"])
        return _json(paging.page(record.items))

    async def cancel(self, request: web.Request) -> web.Response:
        await self.records.response(request[CALLER].tenant.id, request.match_info["id"])
        raise ApiError(400, "Only a response that was created in the background can be cancelled.")

    async def input_tokens(self, request: web.Request) -> web.Response:
        """Of a request that is not made."""
        caller = request[CALLER]
        given = await read_json(request, self.creating.reader.limits)
        body = parse(ResponseRequest, {"model": self.creating.reader.model.id, **given}, NOT_SERVED)
        async with caller.in_time():
            asked = await self.creating.read(caller.tenant.id, body)
            composed = await self.creating.turns.compose(caller.tenant.id, asked.turn, looking=True)
        return _json({"object": "response.input_tokens", "input_tokens": len(composed.prompt.ids)})


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

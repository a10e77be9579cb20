"""Conversations: items that responses are added to, and that clients may add to and take from."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web
from msgspec import structs

from cache.store import ABSENT

from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from ..errors import ApiError, InvalidRequest, Overloaded
from ..openai.fields import missing, parse
from ..openai.sampling import read_metadata
from ..paging import listed, read_paging
from ..sessions.ids import new_id
from ..sessions.sessions import Saved
from .items import Item, check_ids, read_items
from .records import ConversationRecord, ResponseRecords
from .request import AddItems, ConversationRequest, UpdateConversation

MOST_AT_ONCE = 20
"""Items in one request."""


@dataclass(frozen=True, slots=True)
class Conversations:
    """What changes a conversation is done again if somebody else's change came between; only a response is not, for it was
    made without knowing of the other."""

    records: ResponseRecords
    limits: Limits

    async def create(self, request: web.Request) -> web.Response:
        body = parse(ConversationRequest, await read_json(request, self.limits), {})
        metadata = read_metadata(body.metadata, self.limits.max_string)
        items = [] if body.items is None else self._items(body.items)
        check_ids([], items, "items")
        record = ConversationRecord(
            id=new_id("conv"), created_at=int(time.time()), metadata=metadata, items=items
        )
        saved = await self.records.keep_conversation(request[CALLER].tenant.id, record, expected=ABSENT)
        return _kept(saved, _wire(record))

    async def get(self, request: web.Request) -> web.Response:
        record, _ = await self._find(request)
        return _json(_wire(record))

    async def update(self, request: web.Request) -> web.Response:
        body = parse(UpdateConversation, await read_json(request, self.limits), {})
        if body.metadata is None:
            raise missing("metadata")
        metadata = read_metadata(body.metadata, self.limits.max_string)
        record, saved = await self.records.change_conversation(
            *_whose(request), lambda record: structs.replace(record, metadata=metadata)
        )
        return _kept(saved, _wire(record))

    async def delete(self, request: web.Request) -> web.Response:
        tenant, conversation_id = _whose(request)
        await self.records.delete_conversation(tenant, conversation_id)
        return _json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    # -- items -----------------------------------------------------------------------------------------------------------

    async def add_items(self, request: web.Request) -> web.Response:
        body = parse(AddItems, await read_json(request, self.limits), {})
        items = self._items(body.items)
        if not items:
            raise InvalidRequest("'items' is empty.", param="items", code="empty_array")

        def add(record: ConversationRecord) -> ConversationRecord:
            check_ids(record.items, items, "items")
            if len(record.items) + len(items) > self.limits.max_messages:
                raise InvalidRequest(
                    f"A conversation has at most {self.limits.max_messages} items.",
                    param="items",
                    code="array_above_max_length",
                )
            # what was there before stays: its token ids can be gone on from
            return structs.replace(record, items=[*record.items, *items])

        _, saved = await self.records.change_conversation(*_whose(request), add)
        return _kept(saved, listed(items, more=False))

    async def list_items(self, request: web.Request) -> web.Response:
        paging = read_paging(request.query)
        record, _ = await self._find(request)
        return _json(paging.page(record.items))

    async def get_item(self, request: web.Request) -> web.Response:
        record, _ = await self._find(request)
        return _json(_item(record, request.match_info["item_id"]))

    async def delete_item(self, request: web.Request) -> web.Response:
        item_id = request.match_info["item_id"]

        def delete(record: ConversationRecord) -> ConversationRecord:
            gone = _item(record, item_id)
            return structs.replace(
                record, items=[item for item in record.items if item is not gone], known=None
            )

        record, saved = await self.records.change_conversation(*_whose(request), delete)
        return _kept(saved, _wire(record))

    # --------------------------------------------------------------------------------------------------------------------

    async def _find(self, request: web.Request) -> tuple[ConversationRecord, str]:
        return await self.records.conversation(*_whose(request))

    def _items(self, value: object) -> list[Item]:
        if isinstance(value, str):
            raise InvalidRequest(
                "Invalid type for 'items': expected an array.", param="items", code="invalid_type"
            )
        if isinstance(value, list) and len(value) > MOST_AT_ONCE:
            raise InvalidRequest(
                f"Invalid 'items': at most {MOST_AT_ONCE} at once, but got {len(value)}.",
                param="items",
                code="array_above_max_length",
            )
        return read_items(value, self.limits, "items")


def _whose(request: web.Request) -> tuple[str, str]:
    return request[CALLER].tenant.id, request.match_info["id"]


def _item(record: ConversationRecord, item_id: str) -> Item:
    found = next((item for item in record.items if item["id"] == item_id), None)
    if found is None:
        raise ApiError(404, f"The conversation '{record.id}' has no item '{item_id[:100]}'.")
    return found


def _wire(record: ConversationRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "conversation",
        "created_at": record.created_at,
        "metadata": record.metadata,
    }


def _kept(saved: Saved, body: object) -> web.Response:
    """A change that was not kept did not happen: here is nothing else to be given."""
    if not saved.kept:
        raise Overloaded("The conversation cannot be kept now.", code="session_store_unavailable")
    return _json(body)


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

"""Chat completions that were created with `store: true`: kept, and read, listed, changed and deleted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from aiohttp import web

from cache.store import Conflict, Record

from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from ..errors import ApiError
from ..paging import Paging, listed, read_paging
from ..sessions.ids import is_id
from ..sessions.sessions import Saved, Sessions
from .fields import Wire, missing, parse
from .sampling import Labels, read_metadata

CHATS = "chats"
PREFIX, JOINT = "chatcmpl", "-"

ATTEMPTS = 5
"""At a change that others' changes come between."""

AT_ONCE = 100
"""Completions that are read from the store at once when they are looked through."""


class StoredChat(msgspec.Struct, frozen=True, kw_only=True):
    """`completion` is as clients see it, `messages` as they sent them."""

    completion: dict[str, Any]
    messages: list[dict[str, Any]]


class UpdateChat(Wire):
    metadata: Labels = None


@dataclass(frozen=True, slots=True)
class StoredChats:
    """All methods may raise ApiError 503 while the store cannot be asked; what another tenant has is not found."""

    sessions: Sessions
    limits: Limits

    async def keep(
        self, tenant: str, completion: Mapping[str, Any], messages: Sequence[dict[str, Any]]
    ) -> Saved:
        stored = StoredChat(completion=dict(completion), messages=list(messages))
        return await self.sessions.put(CHATS, tenant, stored.completion["id"], msgspec.msgpack.encode(stored))

    # -- for clients -----------------------------------------------------------------------------------------------------

    async def get(self, request: web.Request) -> web.Response:
        stored, _ = await self._find(request)
        return _json(stored.completion)

    async def update(self, request: web.Request) -> web.Response:
        body = parse(UpdateChat, await read_json(request, self.limits), {})
        if body.metadata is None:
            raise missing("metadata")
        metadata = read_metadata(body.metadata, self.limits.max_string)
        for _ in range(ATTEMPTS):
            stored, version = await self._find(request)
            changed = msgspec.structs.replace(stored, completion={**stored.completion, "metadata": metadata})
            try:
                await self.sessions.put(
                    CHATS,
                    request[CALLER].tenant.id,
                    request.match_info["id"],
                    msgspec.msgpack.encode(changed),
                    expected=version,
                )
            except Conflict:
                continue
            return _json(changed.completion)
        raise ApiError(409, "The completion is being changed by others.", code="completion_conflict")

    async def delete(self, request: web.Request) -> web.Response:
        chat_id = request.match_info["id"]
        if not is_id(PREFIX, chat_id, JOINT) or not await self.sessions.delete(
            CHATS, request[CALLER].tenant.id, chat_id
        ):
            raise _not_found(chat_id)
        return _json({"id": chat_id, "object": "chat.completion.deleted", "deleted": True})

    async def messages(self, request: web.Request) -> web.Response:
        paging = read_paging(request.query, descending=False)
        stored, _ = await self._find(request)
        chat_id = stored.completion["id"]
        return _json(
            paging.page([_message(f"{chat_id}-{i}", said) for i, said in enumerate(stored.messages)])
        )

    async def page(self, request: web.Request) -> web.Response:
        """With `model` and `metadata[name]` in the query only those that have them."""
        caller = request[CALLER]
        paging = read_paging(request.query, descending=False)
        model = request.query.get("model")
        metadata = {
            label[1]: value
            for name, value in request.query.items()
            if (label := re.fullmatch(r"metadata\[(.*)\]", name))
        }
        async with caller.in_time():
            found = await self._look_through(caller.tenant.id, paging, model, metadata)
        return _json(listed(found[: paging.limit], more=len(found) > paging.limit))

    # --------------------------------------------------------------------------------------------------------------------

    async def _look_through(
        self, tenant: str, paging: Paging, model: str | None, metadata: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """One more than the page has, if there is one."""
        found: list[dict[str, Any]] = []
        after = paging.after
        while len(found) <= paging.limit:
            records = await self.sessions.list(
                CHATS, tenant, after=after, limit=AT_ONCE, reverse=paging.descending
            )
            for record in records:
                completion = _decode(record).completion
                if (
                    model in (None, completion["model"])
                    and metadata.items() <= completion["metadata"].items()
                ):
                    found.append(completion)
            if len(records) < AT_ONCE:
                break
            after = records[-1].name
        return found

    async def _find(self, request: web.Request) -> tuple[StoredChat, str]:
        chat_id = request.match_info["id"]
        found = (
            await self.sessions.get(CHATS, request[CALLER].tenant.id, chat_id)
            if is_id(PREFIX, chat_id, JOINT)
            else None
        )
        if found is None:
            raise _not_found(chat_id)
        return _decode(found), found.version


def _decode(record: Record) -> StoredChat:
    return msgspec.msgpack.decode(record.value, type=StoredChat)


def _message(message_id: str, said: dict[str, Any]) -> dict[str, Any]:
    """A content in parts is beside its text."""
    content = said.get("content")
    parts = content if isinstance(content, list) else None
    text = content if parts is None else "".join(part.get("text", "") for part in parts)
    return {**said, "id": message_id, "content": text, "content_parts": parts}


def _not_found(chat_id: str) -> ApiError:
    return ApiError(404, f"Chat completion with id '{chat_id[:100]}' not found.")


def _json(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

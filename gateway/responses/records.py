"""What is kept of responses and conversations, and how a next turn finds it.

A record is whole: what was said before lies in it too. So one read is enough, and no later deletion takes anything out of a
conversation that goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from cache.store import ABSENT, Conflict

from ..errors import ApiError, InvalidRequest
from ..known_ids import KnownIds
from ..sessions.ids import is_id
from ..sessions.sessions import Saved, Sessions
from .items import REFERENCE, Item, response_of

RESPONSES = "responses"
CONVERSATIONS = "conversations"

MOST_READ = 64
"""Responses that items of one input may be found in."""

ATTEMPTS = 5
"""At a change that others' changes come between."""


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`response` is as clients see it, `items` is all that was said before its output. `known` are its token ids.
    `owner` is the server that makes it in the background."""

    response: dict[str, Any]
    items: list[Item]
    known: KnownIds | None = None
    owner: str = ""

    def said(self) -> list[Item]:
        return [*self.items, *self.response["output"]]


class ConversationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`known` are the token ids of its last turn; None if something was changed since."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}
    items: list[Item] = []
    known: KnownIds | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What a response goes on from. `version` is that of the conversation's record."""

    items: list[Item]
    known: KnownIds | None = None
    conversation: ConversationRecord | None = None
    version: str = ABSENT


NO_HISTORY = History([])


@dataclass(frozen=True, slots=True)
class ResponseRecords:
    """All methods may raise ApiError 503 while the store cannot be asked; what another tenant has is not found."""

    sessions: Sessions

    async def response(self, tenant: str, response_id: str, *, param: str | None = None) -> ResponseRecord:
        """Raises ApiError 404, or 400 naming `param` where it is a field of a request."""
        found = (
            await self.sessions.get(RESPONSES, tenant, response_id) if is_id("resp", response_id) else None
        )
        if found is None:
            raise _not_found(f"Response with id '{response_id[:100]}' not found.", param)
        return msgspec.msgpack.decode(found.value, type=ResponseRecord)

    async def resolve(self, tenant: str, items: list[Item]) -> tuple[list[Item], KnownIds | None]:
        """The items with those that others stood for in their place, and the token ids of the turn of the last of these. Most
        are found in one record: that of the last holds those before it. Raises ApiError 404 for one that there is not."""
        found: dict[str, Item] = {}
        known: KnownIds | None = None
        read = 0
        for i in range(len(items) - 1, -1, -1):
            item_id = items[i]["id"]
            if items[i]["type"] != REFERENCE or item_id in found:
                continue
            read += 1
            if read > MOST_READ:
                raise InvalidRequest(
                    f"The input stands for items of more than {MOST_READ} responses.", param=f"input[{i}]"
                )
            record = await self._referred(tenant, item_id, f"input[{i}]")
            known = known or record.known
            found |= {item["id"]: item for item in record.said() if item["id"] not in found}
            if item_id not in found:
                raise _no_item(item_id, f"input[{i}]")
        return [found[item["id"]] if item["type"] == REFERENCE else item for item in items], known

    async def _referred(self, tenant: str, item_id: str, param: str) -> ResponseRecord:
        try:
            return await self.response(tenant, response_of(item_id))
        except ApiError as error:
            if error.status != 404:
                raise
            raise _no_item(item_id, param) from None

    async def keep(self, tenant: str, record: ResponseRecord, *, expected: str | None = None) -> Saved:
        """Raises Conflict if it is not of the version `expected`."""
        return await self.sessions.put(
            RESPONSES, tenant, record.response["id"], msgspec.msgpack.encode(record), expected=expected
        )

    async def delete(self, tenant: str, response_id: str) -> None:
        """Raises ApiError 404."""
        if not is_id("resp", response_id) or not await self.sessions.delete(RESPONSES, tenant, response_id):
            raise _not_found(f"Response with id '{response_id[:100]}' not found.", None)

    async def conversation(
        self, tenant: str, conversation_id: str, *, param: str | None = None
    ) -> tuple[ConversationRecord, str]:
        """The record and its version. Raises as `response` does."""
        found = (
            await self.sessions.get(CONVERSATIONS, tenant, conversation_id)
            if is_id("conv", conversation_id)
            else None
        )
        if found is None:
            raise _not_found(f"Conversation with id '{conversation_id[:100]}' not found.", param)
        return msgspec.msgpack.decode(found.value, type=ConversationRecord), found.version

    async def keep_conversation(self, tenant: str, record: ConversationRecord, *, expected: str) -> Saved:
        """Raises ApiError 409 if somebody else has changed it since it was read."""
        try:
            return await self.sessions.put(
                CONVERSATIONS, tenant, record.id, msgspec.msgpack.encode(record), expected=expected
            )
        except Conflict:
            raise ApiError(
                409,
                f"The conversation '{record.id}' was changed meanwhile.",
                param="conversation",
                code="conversation_conflict",
            ) from None

    async def change_conversation(
        self, tenant: str, conversation_id: str, change: Callable[[ConversationRecord], ConversationRecord]
    ) -> tuple[ConversationRecord, Saved]:
        """What became of it. `change` is asked again if somebody else was faster. Raises as `conversation` does, what
        `change` raises, and ApiError 409 if somebody always is."""
        for attempt in range(ATTEMPTS):
            record, version = await self.conversation(tenant, conversation_id)
            changed = change(record)
            try:
                return changed, await self.keep_conversation(tenant, changed, expected=version)
            except ApiError as error:
                if error.status != 409 or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        """Raises ApiError 404."""
        if not is_id("conv", conversation_id) or not await self.sessions.delete(
            CONVERSATIONS, tenant, conversation_id
        ):
            raise _not_found(f"Conversation with id '{conversation_id[:100]}' not found.", None)

    async def history(
        self, tenant: str, previous_response_id: str | None, conversation_id: str | None
    ) -> History:
        """Raises ApiError 400 for one that there is not, or that has not come to its end."""
        if conversation_id is not None:
            record, version = await self.conversation(tenant, conversation_id, param="conversation")
            return History(list(record.items), record.known, record, version)
        if previous_response_id is None:
            return NO_HISTORY
        record_ = await self.response(tenant, previous_response_id, param="previous_response_id")
        status = record_.response["status"]
        if status not in ("completed", "incomplete"):
            raise ApiError(
                400,
                f"The response '{previous_response_id}' is {status}: nothing can go on from it.",
                param="previous_response_id",
                code="invalid_value",
            )
        return History(record_.said(), record_.known)


def _no_item(item_id: str, param: str) -> ApiError:
    return ApiError(404, f"Item with id '{item_id[:100]}' not found.", param=param)


def _not_found(message: str, param: str | None) -> ApiError:
    if param == "previous_response_id":
        return ApiError(400, f"Previous response: {message}", param=param, code="previous_response_not_found")
    return ApiError(404, message, param=param, code=None)

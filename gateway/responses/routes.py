"""The table of addresses below /v1/responses and /v1/conversations."""

from __future__ import annotations

from collections.abc import Iterator

from ..routes import Route
from .conversations import Conversations
from .create import CreateResponse
from .kept import KeptResponses

AT = "/v1/responses"


def response_routes(create: CreateResponse, kept: KeptResponses) -> Iterator[Route]:
    yield Route("POST", AT, create.handle, work=True)
    yield Route("POST", f"{AT}/input_tokens", kept.input_tokens, work=True)
    yield Route("GET", f"{AT}/{{id}}", kept.get)
    yield Route("DELETE", f"{AT}/{{id}}", kept.delete)
    yield Route("GET", f"{AT}/{{id}}/input_items", kept.input_items)
    yield Route("POST", f"{AT}/{{id}}/cancel", kept.cancel)


def conversation_routes(conversations: Conversations) -> Iterator[Route]:
    at = "/v1/conversations"
    one, items = f"{at}/{{id}}", f"{at}/{{id}}/items"
    yield Route("POST", at, conversations.create)
    yield Route("GET", one, conversations.get)
    yield Route("POST", one, conversations.update)
    yield Route("DELETE", one, conversations.delete)
    yield Route("POST", items, conversations.add_items)
    yield Route("GET", items, conversations.list_items)
    yield Route("GET", f"{items}/{{item_id}}", conversations.get_item)
    yield Route("DELETE", f"{items}/{{item_id}}", conversations.delete_item)

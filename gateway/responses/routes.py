"""The table of addresses below /v1/responses."""

from __future__ import annotations

from collections.abc import Iterator

from ..routes import Route
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

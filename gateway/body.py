"""Reading a JSON request body: bounded in size and time, strict in form."""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import web

from .config import Limits
from .errors import ApiError, InvalidRequest

FORM_TYPES = frozenset({"application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""What a web page can send anywhere without asking (the CORS-safelisted types of the Fetch standard). None of them is JSON;
any other type, or none, is taken for it."""

MAX_CONTAINERS = 500_000
"""Objects and arrays in one body. A body of nothing else takes the loop's time and thirty times its size in memory; one of
texts, with code in them too, has far fewer."""


async def read_json(request: web.Request, limits: Limits) -> dict[str, object]:
    """The body as an object. Raises ApiError 400, 408, 413 or 415.

    RFC 8259 and nothing more: no NaN or Infinity, no lone surrogates, UTF-8 only, at most 1024 levels deep. Of repeated
    keys the last one counts. Brackets are counted before anything is read, those in texts too.
    """
    _check_headers(request, limits)
    try:
        async with asyncio.timeout(limits.body_timeout):
            raw = await request.read()
    except TimeoutError:
        raise ApiError(
            408,
            f"The request body did not arrive within {limits.body_timeout:g} seconds.",
            code="request_timeout",
            headers={"Connection": "close"},
        ) from None
    if raw.count(b"{") + raw.count(b"[") > MAX_CONTAINERS:
        raise InvalidRequest(
            f"The body has more than {MAX_CONTAINERS} objects and arrays.", code="array_above_max_length"
        )
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # The parser's own words end in a position and never quote the body.
        raise InvalidRequest(
            f"We could not parse the JSON body of your request: {error.msg} (byte {error.pos}).",
            code="invalid_json",
        ) from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_type")
    return body


def _check_headers(request: web.Request, limits: Limits) -> None:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ApiError(415, "Compressed request bodies are not accepted.", code="unsupported_media_type")
    content_type = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
    if content_type in FORM_TYPES:
        raise ApiError(
            415, "The body must be JSON (Content-Type: application/json).", code="unsupported_media_type"
        )
    if (request.content_length or 0) > limits.max_body:
        raise ApiError(
            413, f"The request body is larger than {limits.max_body} bytes.", code="request_too_large"
        )

"""Errors in Anthropic's words."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from ..errors import ApiError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_wire(error: ApiError) -> dict[str, Any]:
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_response(error: ApiError) -> web.Response:
    response = error.response()
    response.body = orjson.dumps(error_wire(error))
    return response

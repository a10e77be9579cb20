"""What a client is told when something goes wrong, in OpenAI's shape.

ApiError               an answer with a status: {"error": {"message", "type", "param", "code"}}, all four keys always
├── InvalidRequest     400: the request can never work as it stands
└── Overloaded         429 or 503: try again after a while
ServerStopping         (an engine RequestFailure) the drain deadline came before the end of a request

Every other exception becomes an ApiError in one place, `as_api_error`; its text reaches a client only where the class
promises that it may.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import orjson
from aiohttp import web

from cache.store import StoreError, StoreUnavailable
from engine.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineDied,
    EngineUnavailable,
    GrammarRefused,
    PinsExhausted,
    QueueFull,
    RequestFailure,
    Unavailable,
)
from engine.throttled_log import ThrottledLog

from .chat_template import TemplateError
from .log import faults
from .tokenizer import TokenizerError

_stores = ThrottledLog(faults, time.monotonic)
"""A store that is damaged or full fails every request that needs it."""

RETRY_AFTER_DEATH = 1.0
"""Seconds a client should wait when the engine died under its request: about what a restart takes."""


class ApiError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def wire(self) -> dict[str, str | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        return orjson.dumps({"error": self.wire()})

    def response(self) -> web.Response:
        response = web.Response(status=self.status, body=self.body(), content_type="application/json")
        response.headers.update(self.headers)
        if self.headers.get("Connection") == "close":
            response.force_close()
        return response


class InvalidRequest(ApiError):
    def __init__(self, message: str, *, param: str | None = None, code: str | None = "invalid_value") -> None:
        super().__init__(400, message, param=param, code=code)


class Overloaded(ApiError):
    """429 when a caller is over its own limit, 503 when the server is full or has no engine to offer."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 503,
        code: str = "overloaded",
        retry_after: float = 1.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            status,
            message,
            type_="rate_limit_exceeded" if status == 429 else "server_error",
            code=code,
            headers={
                "Retry-After": str(max(1, math.ceil(retry_after))),
                "retry-after-ms": str(max(1, math.ceil(retry_after * 1000))),
                **(headers or {}),
            },
        )


class ServerStopping(RequestFailure):
    pass


def unsupported(param: str, why: str | None = None) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: '{param}' is not supported by this server{f' ({why})' if why else ''}.",
        param=param,
        code="unsupported_parameter",
    )


def as_api_error(error: BaseException) -> ApiError | None:
    """The answer for an exception with a meaning; None for one without, which is a bug of ours and becomes a 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BadRequest | TemplateError | TokenizerError):
        return InvalidRequest(str(error), param=error.param if isinstance(error, BadRequest) else "messages")
    if isinstance(error, QueueFull | EngineUnavailable | StoreError):
        return _try_again(error)
    if isinstance(error, RequestFailure):
        return _failed(error)
    if isinstance(error, web.HTTPException):
        return _routing(error)
    return None


def explain(error: Exception, request_id: str) -> ApiError:
    """The answer for any exception. One that we did not raise on purpose is logged and stays between us."""
    answer = as_api_error(error)
    if isinstance(error, StoreError) and not isinstance(
        error, StoreUnavailable
    ):  # which was told when it began
        _stores.warning("%s: %s", request_id, error)  # an operator's words, not a client's
    if answer is None:
        faults.error("%s failed", request_id, exc_info=error)
        return internal_error()
    return answer


def internal_error() -> ApiError:
    return ApiError(
        500,
        "The server had an error while processing your request.",
        type_="server_error",
        code="internal_error",
    )


def _try_again(error: QueueFull | EngineUnavailable | StoreError) -> Overloaded:
    if isinstance(error, StoreError):
        return Overloaded(
            "The server's records cannot be read or written now.",
            code="store_unavailable",
            retry_after=error.retry_after if isinstance(error, StoreUnavailable) else 1.0,
        )
    if isinstance(error, QueueFull) and error.tenant:
        return Overloaded(str(error), status=429, code="rate_limit_exceeded", retry_after=error.retry_after)
    return Overloaded(str(error), retry_after=error.retry_after)


def _failed(error: RequestFailure) -> ApiError:
    if isinstance(error, GrammarRefused | PinsExhausted):
        return _refused(error)
    if isinstance(error, DeadlineExceeded):
        # The client's own limit is up: a retry by its library would only add to the load that caused this.
        return ApiError(
            504,
            str(error),
            type_="server_error",
            code="deadline_exceeded",
            headers={"x-should-retry": "false"},
        )
    if isinstance(error, Unavailable):
        return Overloaded(str(error))
    if isinstance(error, ServerStopping):
        return Overloaded(str(error), code="server_shutting_down", headers={"Connection": "close"})
    if isinstance(error, EngineDied):
        return Overloaded(str(error), code="engine_restarting", retry_after=RETRY_AFTER_DEATH)
    return ApiError(500, str(error), type_="server_error", code="engine_error")


def _refused(error: GrammarRefused | PinsExhausted) -> ApiError:
    if isinstance(error, PinsExhausted):
        return ApiError(409, str(error), param="cache.pin", code="pin_quota_exceeded")
    if error.too_complex:
        return InvalidRequest(str(error), code="grammar_too_complex")
    return InvalidRequest(str(error), code="invalid_grammar")


def _routing(error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals (no such route, wrong method, body too large) without its plain-text bodies."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(
            405,
            f"Not allowed to {error.method} here. Allowed: {allowed}.",
            code="method_not_allowed",
            headers={"Allow": allowed},
        )
    if isinstance(error, web.HTTPNotFound):
        return ApiError(404, "There is nothing at this address.", code="unknown_url")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(413, "The request body is too large.", code="request_too_large")
    return ApiError(error.status, error.reason, code=None)

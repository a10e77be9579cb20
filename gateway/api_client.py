"""The little of an OpenAI-compatible server's client side that our own terminal tools need."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson


class ApiError(Exception):
    """The server could not be reached, or answered with an error. One line for the user."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def base_url(url: str) -> str:
    """`url` as it is meant: a bare host gets the usual `/v1`, and any path given is respected."""
    url = url.rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    return url if "/" in url.partition("://")[2] else f"{url}/v1"


def open_session(key: str | None, *, timeout: float) -> aiohttp.ClientSession:
    """A session without a bound on connections. `timeout` is for a whole request, in seconds."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout),
        headers=headers,
    )


async def first_model(session: aiohttp.ClientSession, url: str) -> str:
    """The first model the server lists. Raises ApiError."""
    try:
        async with session.get(f"{url}/models") as response:
            await raise_for_status(response)
            models = orjson.loads(await response.read())["data"]
            return str(models[0]["id"])
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ApiError(f"cannot reach {url}: {reason(error)}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ApiError(f"{url}/models does not list a model") from error


def reason(error: aiohttp.ClientError | TimeoutError) -> str:
    """Why there is no answer, in words for the user; host and port too if there was no connection at all."""
    if isinstance(error, aiohttp.ClientConnectorError):
        host = f"[{error.host}]" if error.host and ":" in error.host else error.host
        return f"{_cause(error.os_error)} ({host}:{error.port})"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__


def _cause(error: OSError) -> str:
    """asyncio gives a failed connect words of its own; TLS and name lookup number their errors otherwise."""
    if error.errno is None or isinstance(error, ssl.SSLError | socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


async def raise_for_status(response: aiohttp.ClientResponse) -> None:
    """Raises ApiError with the server's own words for any status but 200."""
    if response.status != 200:
        raise ApiError(error_message(await response.read()), status=response.status)


def error_message(body: bytes) -> str:
    """The message of an error body in OpenAI's shape, or the start of whatever it is."""
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace").strip() or "no reason given"


async def stream_events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of an SSE answer up to `[DONE]`. Raises ApiError for an error event and for a stream cut off."""
    done = False
    async for line in response.content:
        payload = line[5:].strip()
        done = done or payload == b"[DONE]"
        if done or not line.startswith(b"data:"):
            continue  # read to the very end: the server must not think that we left
        event = orjson.loads(payload)
        if "error" in event:
            raise ApiError(error_message(payload))
        yield event
    if not done:
        raise ApiError("the answer was cut off")

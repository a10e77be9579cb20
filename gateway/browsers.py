"""What web pages may do with this server: nothing, unless the operator names their origins.

A page anywhere can make a visitor's browser send requests to a server on the visitor's own machine. So a server without
keys answers only to its own names (against DNS rebinding) and refuses cross-site requests even where the browser would
hide the answer (they would still cost a generation). With keys the key is the protection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from aiohttp import web

from .auth import is_loopback
from .errors import ApiError

_HEADER_NAMES = re.compile(r"[A-Za-z0-9_,\- ]{1,2000}")


class BrowserPolicy:
    """`guarded` is a server without keys, which listens on `host`."""

    def __init__(self, origins: Sequence[str], host: str, *, guarded: bool) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origins)
        self._host = host
        self._guarded = guarded

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises ApiError 421 for a foreign Host, 403 for a foreign Origin."""
        if not self._guarded:
            return
        if not self._own(headers.get("Host", "localhost")):
            raise ApiError(421, "This server does not answer to that host name.", code="host_not_allowed")
        origin = headers.get("Origin")
        if origin is None:
            foreign = headers.get("Sec-Fetch-Site") == "cross-site"
        else:
            foreign = origin not in self._origins and not self._own(origin.partition("://")[2])
        if foreign:
            raise ApiError(403, "Pages of that origin may not use this server.", code="origin_not_allowed")

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a CORS preflight; None if the request is none, or from an origin without permission."""
        headers = request.headers
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in headers:
            return None
        if not self.allowed(headers.get("Origin")):
            return None
        asked = headers.get("Access-Control-Request-Headers", "")
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE, OPTIONS",
                # a wildcard would not cover Authorization, and client libraries add headers of their own
                "Access-Control-Allow-Headers": asked
                if _HEADER_NAMES.fullmatch(asked)
                else "Authorization, Content-Type",
                "Access-Control-Max-Age": "600",
            },
        )

    def allowed(self, origin: str | None) -> bool:
        return origin is not None and (self._any or origin in self._origins)

    def headers(self, origin: str | None) -> dict[str, str]:
        """What every answer to an allowed origin carries, errors and streams too."""
        if origin is None or not self.allowed(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": "*" if self._any else origin,
            "Access-Control-Expose-Headers": "x-request-id, openai-processing-ms, retry-after, retry-after-ms",
            "Vary": "Origin",
        }

    def _own(self, netloc: str) -> bool:
        try:
            name = urlsplit(f"//{netloc}").hostname
        except ValueError:
            return False
        return name is not None and (is_loopback(name) or name == self._host)

"""Who asks, and until when: what the middleware knows of a request and handlers need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from engine.errors import DeadlineExceeded

from .auth import Tenant


@dataclass(frozen=True, slots=True)
class Caller:
    """`deadline` is by the event loop's clock, `created` by the wall's, in whole seconds. `route` is what was asked for: the
    path as it is routed."""

    tenant: Tenant
    request_id: str
    deadline: float
    created: int
    route: str = ""

    def remaining(self) -> float:
        return self.deadline - asyncio.get_running_loop().time()

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Raises DeadlineExceeded when the time is up at any point inside."""
        try:
            async with asyncio.timeout_at(self.deadline):
                yield
        except TimeoutError:
            raise DeadlineExceeded("The request did not finish before its deadline.") from None


CALLER = web.RequestKey("caller", Caller)

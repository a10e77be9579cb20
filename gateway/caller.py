"""Who asks, and until when: what the middleware knows of a request and handlers need."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from .auth import Tenant


@dataclass(frozen=True, slots=True)
class Caller:
    """`deadline` is by the event loop's clock, `created` by the wall's, in whole seconds."""

    tenant: Tenant
    request_id: str
    deadline: float
    created: int

    def remaining(self) -> float:
        return self.deadline - asyncio.get_running_loop().time()


CALLER = web.RequestKey("caller", Caller)

"""A gateway on a real socket with a fake engine behind it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from engine.backlog import Backlog
from gateway.app import DESK, LIFECYCLE, create_app
from gateway.caching.ledger_file import LedgerFile
from gateway.chat_template import ChatTemplate
from gateway.config import Http, Limits, Served
from gateway.serve import queue_limits
from gateway.server import Stop, run
from gateway.tenants import Tenants
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine

MODEL = "acme/toy-1"


@dataclass
class Gateway:
    """A running server and the way to it."""

    engine: FakeEngine
    app: web.Application
    host: str
    port: int
    stop: Stop
    task: asyncio.Task[None]
    client: aiohttp.ClientSession
    ledger: LedgerFile | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def post(self, path: str, body: object, **kwargs: Any) -> tuple[int, dict[str, Any]]:
        data = io.BytesIO(
            orjson.dumps(body)
        )  # bytes would draw a warning from aiohttp's client when they are many
        headers = {"Content-Type": "application/json", **kwargs.pop("headers", {})}
        async with self.client.post(self.url + path, data=data, headers=headers, **kwargs) as response:
            return response.status, await response.json()

    async def get(self, path: str, **kwargs: Any) -> tuple[int, dict[str, Any]]:
        async with self.client.get(self.url + path, **kwargs) as response:
            return response.status, await response.json()

    async def at_rest(self, seconds: float = 2.0) -> None:
        """Nothing is left anywhere: no request in the engine, the desk, the queue or a handler."""
        async with asyncio.timeout(seconds):
            # four owners, none of which tells when it is done
            while self.engine.running or self.app[LIFECYCLE].working or self.app[DESK].open:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        self.engine.backlog.check()
        assert (self.engine.queue.requests, self.engine.queue.tokens) == (0, 0)


Start = Callable[..., Awaitable[Gateway]]


@asynccontextmanager
async def running(
    engine: FakeEngine,
    http: Http,
    limits: Limits,
    served: Served,
    *,
    template: bool | str = True,
    tenants: str = "",
    ledger: Path | None = None,
) -> AsyncIterator[Gateway]:
    """`template`: ChatML, a source, or none. `tenants`: a file of them. `ledger`: where to write one."""
    file = None if ledger is None else LedgerFile(ledger, max_bytes=1 << 20, files=2)
    engine.backlog = Backlog(queue_limits(limits))
    tokenizer = Tokenizer.hash()
    app = create_app(
        engine=engine,
        served=served,
        tokenizer=tokenizer,
        template=_template(template, tokenizer),
        http=http,
        limits=limits,
        tenants=Tenants.parse(tenants),
        ledger=file,
    )
    stop = Stop()
    address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        run(app, http, limits, started=lambda host, port: address.set_result((host, port)), stop=stop)
    )
    host, port = await address
    async with aiohttp.ClientSession() as client:
        yield Gateway(engine, app, host, port, stop, task, client, file)
    stop.ask()
    stop.ask()
    await task
    await engine.close()


def _template(template: bool | str, tokenizer: Tokenizer) -> ChatTemplate | None:
    if isinstance(template, str):
        return ChatTemplate(template, tokenizer)
    return ChatTemplate.hash(tokenizer) if template else None


def settings(
    http: dict[str, Any] | None = None,
    limits: dict[str, Any] | None = None,
    served: dict[str, Any] | None = None,
) -> tuple[Http, Limits, Served]:
    return (
        Http(**{"port": 0, "drain_delay": 0.0, "drain_timeout": 5.0, **(http or {})}),
        Limits(**(limits or {})),
        Served(**{"model_id": MODEL, "aliases": ("toy",), "created": 1_700_000_000, **(served or {})}),
    )

"""An OpenAI-compatible server that answers as a test tells it to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], "Plan"]


@dataclass
class Plan:
    """What one request gets: an error status, or text pieces with a pause before each, and how the stream ends."""

    pieces: list[str] = field(default_factory=list)
    status: int = 200
    pause: float = 0.0
    delay: float = 0.0
    usage: dict[str, Any] | None = None
    end: str = "data: [DONE]\n\n"
    spaced: bool = False


class ScriptedServer:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.bodies: list[dict[str, Any]] = []
        self.gone = 0
        """Requests whose client left before the end."""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "toy"}]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        plan = self._answer(body)
        await asyncio.sleep(plan.delay)
        if plan.status != 200:
            return web.json_response({"error": {"message": "no room"}}, status=plan.status)
        if not body["stream"]:
            return web.json_response(
                {"choices": [{"message": {"content": "".join(plan.pieces)}}], "usage": plan.usage}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            async for event in self._events(plan):
                await response.write(event.encode())
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        return response

    @staticmethod
    async def _events(plan: Plan) -> AsyncIterator[str]:
        separators = None if plan.spaced else (",", ":")
        first: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}]
        for choices in [first, *([{"delta": {"content": piece}}] for piece in plan.pieces), [{"delta": {}}]]:
            if choices[0]["delta"].get("content"):
                await asyncio.sleep(plan.pause)
            yield f"data: {json.dumps({'choices': choices, 'usage': None}, separators=separators)}\n\n"
        if plan.usage is not None:
            yield f"data: {json.dumps({'choices': [], 'usage': plan.usage}, separators=separators)}\n\n"
        yield plan.end


@contextmanager
def in_thread(server: ScriptedServer) -> Iterator[str]:
    """Serve from a thread of its own, for callers without an event loop. Yields the URL."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        port = asyncio.run_coroutine_threadsafe(start(), loop).result(5)
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()

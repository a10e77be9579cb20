"""How long each hostile schema, pattern and grammar takes to be answered, and what a neighbour's stream feels of it.

    python -m tests.bench.hostile_grammars [MODEL]

Serves MODEL (default: the demo model). One stream runs throughout. `gap` is the longest time between two of its tokens
while the input was served, `ratio` the same over the longest one in two seconds without any.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import sys
import time

import aiohttp

from tests.conformance.hostile import HARMLESS, hostile

from .served import serve

CALIBRATION = 2.0
"""Seconds that the stream runs alone first."""


class Neighbour:
    """A stream after the other. `longest()` is the longest gap within one since it was last asked."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._last: float | None = None
        self._longest = 0.0

    def longest(self) -> float:
        self._seen()
        longest, self._longest = self._longest, 0.0
        return longest

    def _seen(self) -> None:
        if self._last is not None:
            self._longest = max(self._longest, time.monotonic() - self._last)

    async def run(self) -> None:
        while True:
            body = {
                "model": self._model,
                "messages": [{"role": "user", "content": "Tell a very long story."}],
                "ignore_eos": True,
                "max_tokens": 1500,
                "stream": True,
            }
            async with self._session.post(f"{self._url}/chat/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        self._seen()
                        self._last = time.monotonic()
            self._last = None


async def _measure(url: str) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.get(f"{url}/models") as response:
            model = (await response.json())["data"][0]["id"]
        async with session.post(f"{url}/chat/completions", json=HARMLESS.body(model)) as response:
            response.raise_for_status()
        asked = [(one.name, json.dumps(one.body(model)).encode()) for one in hostile()]
        gc.freeze()  # the client's own pauses would count as the server's
        neighbour = Neighbour(session, url, model)
        task = asyncio.create_task(neighbour.run())
        await asyncio.sleep(1.0)
        neighbour.longest()
        await asyncio.sleep(CALIBRATION)
        usual = neighbour.longest()
        print(f"longest gap alone: {usual * 1000:.0f} ms\n")
        print(f"{'input':44}{'KB':>6}{'status':>8}  {'code':24}{'s':>6}{'gap ms':>8}{'ratio':>7}")
        slowest = worst = 0.0
        for name, body in asked:
            payload = aiohttp.BytesIOPayload(io.BytesIO(body), content_type="application/json")
            began = time.monotonic()
            async with session.post(f"{url}/chat/completions", data=payload) as response:
                answer = await response.json()
            took = time.monotonic() - began
            gap = neighbour.longest()
            slowest, worst = max(slowest, took), max(worst, gap)
            error = answer.get("error") or {}
            print(
                f"{name[:43]:44}{len(body) / 1024:6.0f}{response.status:8}  {error.get('code') or '':24}"
                f"{took:6.2f}{gap * 1000:8.0f}{gap / usual:7.1f}"
            )
        task.cancel()
        print(
            f"\nslowest answer {slowest:.2f} s, longest gap {worst * 1000:.0f} ms = {worst / usual:.1f} of that alone"
        )


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else ""
    with serve(model, "--max-model-len", "4096") as served:
        asyncio.run(_measure(served.url))


if __name__ == "__main__":
    main()

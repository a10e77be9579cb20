"""How long each hostile schema, pattern and grammar takes to be answered, and what a neighbour's stream feels of it.

    python -m tests.bench.hostile_grammars [MODEL]

Serves MODEL (default: the demo model). One stream runs throughout. `gap` is the longest time between two of its tokens
while the input was served, `ratio` the same over the longest one in two seconds without any.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import sys
import time
from collections import deque

import aiohttp

from tests.conformance.hostile import HARMLESS, Hostile, hostile

from .served import serve

CALIBRATION = 2.0
"""Seconds that the stream runs alone first."""


class Neighbour:
    """A stream that never ends. `longest()` is the longest gap since it was last asked."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._times: deque[float] = deque()

    def longest(self) -> float:
        times = [*self._times, time.monotonic()]
        self._times = deque(times[-2:-1])
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

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
                        self._times.append(time.monotonic())


async def _measure(url: str) -> None:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        async with session.get(f"{url}/models") as response:
            model = (await response.json())["data"][0]["id"]
        async with session.post(f"{url}/chat/completions", json=HARMLESS.body(model)) as response:
            response.raise_for_status()
        neighbour = Neighbour(session, url, model)
        task = asyncio.create_task(neighbour.run())
        await asyncio.sleep(1.0)
        neighbour.longest()
        await asyncio.sleep(CALIBRATION)
        usual = neighbour.longest()
        print(f"longest gap alone: {usual * 1000:.0f} ms\n")
        print(f"{'input':44}{'KB':>6}{'status':>8}  {'code':24}{'s':>6}{'gap ms':>8}{'ratio':>7}")
        slowest = worst = 0.0
        for one in hostile():
            began = time.monotonic()
            async with session.post(f"{url}/chat/completions", data=_payload(one, model)) as response:
                answer = await response.json()
            took = time.monotonic() - began
            gap = neighbour.longest()
            slowest, worst = max(slowest, took), max(worst, gap)
            print(_row(one, response.status, answer, took=took, gap=gap, usual=usual))
        task.cancel()
        print(
            f"\nslowest answer {slowest:.2f} s, longest gap {worst * 1000:.0f} ms = {worst / usual:.1f} of that alone"
        )


def _payload(one: Hostile, model: str) -> aiohttp.BytesIOPayload:
    text = json.dumps(one.body(model)).encode()
    return aiohttp.BytesIOPayload(io.BytesIO(text), content_type="application/json")


def _row(
    one: Hostile, status: int, answer: dict[str, object], *, took: float, gap: float, usual: float
) -> str:
    error = answer.get("error")
    code = str(error.get("code")) if isinstance(error, dict) else ""
    size = len(json.dumps(dict(one.fields))) / 1024
    return f"{one.name[:43]:44}{size:6.0f}{status:8}  {code:24}{took:6.2f}{gap * 1000:8.0f}{gap / usual:7.1f}"


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else ""
    with serve(model, "--max-model-len", "4096") as served:
        asyncio.run(_measure(served.url))


if __name__ == "__main__":
    main()

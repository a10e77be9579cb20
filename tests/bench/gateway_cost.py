"""What one streamed token costs the gateway, all in: from an engine event to bytes in a socket.

usage: python -m tests.bench.gateway_cost [--streams 64] [--tokens 400] [--step 0.008] [--endpoint chat|completions]

The gateway runs in this process with an engine that gives every open stream one token a step; the clients are another
process, so that this process's CPU time is the gateway's. `--step 0` runs flat out: then tokens/s is the ceiling of one
core. The cost of the empty engine loop is below 1 µs a token and is not taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

import uvloop

from engine.backlog import Backlog, Place
from engine.client import RequestStream
from engine.request import GenerationRequest, RequestStarted, SequenceDelta
from gateway.app import create_app
from gateway.chat_template import ChatTemplate
from gateway.config import Http, Limits, Served
from gateway.serve import queue_limits
from gateway.server import Stop, run, spare_the_collector
from gateway.tokenizer import Tokenizer
from tests.fakes import FakeEngine


class StepEngine(FakeEngine):
    """All streams advance together, as they do when one frame brings a whole step."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self._step = step
        self._open: dict[str, tuple[GenerationRequest, RequestStream]] = {}
        self.tokens = 0

    def submit(self, request: GenerationRequest, place: Place) -> RequestStream:
        stream = RequestStream(request, lambda request_id, index: None)
        stream.push(RequestStarted(request.request_id, 0, 0.0))
        self._open[request.request_id] = (request, stream)
        return stream

    async def steps(self, streams: int) -> float:
        """Until every stream has ended; returns the CPU seconds of this process in the meantime."""
        while len(self._open) < streams:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        begun = time.process_time()
        position = 0
        while self._open:
            due = time.perf_counter() + self._step
            for request, stream in list(self._open.values()):
                last = position == request.sampling.max_tokens - 1
                token = 97 + position % 26
                stream.push(SequenceDelta(request.request_id, 0, (token,), "length" if last else None))
                if last:
                    del self._open[request.request_id]
            self.tokens += streams
            position += 1
            await asyncio.sleep(max(due - time.perf_counter(), 0))
        await asyncio.sleep(0.05)
        return time.process_time() - begun


async def client(port: int, streams: int, tokens: int, endpoint: str) -> None:
    """Reads raw bytes and looks at nothing: this process must not be what is measured."""
    extra = {"messages": [{"role": "user", "content": "x"}]} if endpoint == "chat" else {"prompt": "x"}
    path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
    body = json.dumps({"model": "bench", "stream": True, "max_tokens": tokens, "ignore_eos": True, **extra})
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((head + body).encode())
        received = 0
        while data := await reader.read(65536):
            received += len(data)
        writer.close()
        return received

    await asyncio.gather(*[one() for _ in range(streams)])


async def serve(streams: int, tokens: int, step: float, endpoint: str) -> None:
    engine = StepEngine(step)
    tokenizer = Tokenizer.hash()
    http, limits = Http(port=0, drain_delay=0), Limits(max_tenant_queued=4096, max_queued_requests=4096)
    engine.backlog = Backlog(queue_limits(limits))
    app = create_app(
        engine=engine,
        served=Served(model_id="bench"),
        tokenizer=tokenizer,
        template=ChatTemplate.hash(tokenizer),
        http=http,
        limits=limits,
    )
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stop = Stop()
    server = asyncio.create_task(
        run(app, http, limits, started=lambda _, number: port.set_result(number), stop=stop)
    )
    command = [sys.executable, "-m", "tests.bench.gateway_cost", "--client", str(await port)]
    options = ["--streams", str(streams), "--tokens", str(tokens), "--endpoint", endpoint]
    child = await asyncio.create_subprocess_exec(*command, *options)
    spare_the_collector()
    wall = time.perf_counter()
    cpu = await engine.steps(streams)
    wall = time.perf_counter() - wall
    await child.wait()
    stop.ask()
    await server
    print(
        json.dumps(
            {
                "endpoint": endpoint,
                "streams": streams,
                "tokens": engine.tokens,
                "cpu_us_per_token": round(cpu / engine.tokens * 1e6, 1),
                "tokens_per_second": round(engine.tokens / wall),
                "cpu_share": round(cpu / wall, 2),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--step", type=float, default=0.008)
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    parser.add_argument("--client", type=int, default=None, help="port; used by the script itself")
    options = parser.parse_args()
    if options.client is not None:
        uvloop.run(client(options.client, options.streams, options.tokens, options.endpoint))
        return
    uvloop.run(serve(options.streams, options.tokens, options.step, options.endpoint))


if __name__ == "__main__":
    main()

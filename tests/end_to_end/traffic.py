"""Requests whose answers are known beforehand, asked over HTTP and compared."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from tests.bench.hash_oracle import Prediction, chat_prompt, predict

from .server import Server

MODEL = "hash"
PATIENCE = aiohttp.ClientTimeout(total=60)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and what each of its choices must answer."""

    path: str
    body: dict[str, Any]
    prompt: list[int]
    choices: list[Prediction]

    def texts(self) -> list[str]:
        return [choice.text for choice in self.choices]


def chat(content: str, *, system: str | None = None, **options: Any) -> Ask:
    """`options` are fields of the request; an answer does not end early unless `ignore_eos` is False."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": content})
    return _ask("/v1/chat/completions", {"messages": messages}, chat_prompt(messages), options)


def completion(prompt: str | list[int], **options: Any) -> Ask:
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return _ask("/v1/completions", {"prompt": prompt}, ids, options)


def _ask(path: str, body: dict[str, Any], prompt: list[int], options: dict[str, Any]) -> Ask:
    body = {
        "model": MODEL,
        "max_tokens": 16,
        "temperature": 0,
        "seed": 0,
        "ignore_eos": True,
        **options,
        **body,
    }
    names = ("max_tokens", "temperature", "seed", "ignore_eos")
    given = {name: body[name] for name in names}
    choices = [predict(prompt, index=k, **given) for k in range(body.get("n", 1))]
    if body.get("stream"):
        body.setdefault("stream_options", {"include_usage": True})
    return Ask(path, body, prompt, choices)


def words(rng: random.Random, count: int) -> str:
    """Text of about `count` characters that no other call repeats."""
    return "".join(rng.choices("abcdefghij klmnopqrst", k=count))


@dataclass(slots=True)
class Got:
    """What came back. Times are seconds after the request was sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    done: bool = False
    events: int = 0
    began: float = 0.0
    ended: float = 0.0

    @property
    def cached(self) -> int:
        count: int = self.usage["prompt_tokens_details"]["cached_tokens"]
        return count

    @property
    def took(self) -> float:
        return self.ended - self.began


@asynccontextmanager
async def http(key: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=PATIENCE, headers=headers) as session:
        yield session


@asynccontextmanager
async def sdk(server: Server, key: str = "unused") -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url, api_key=key, max_retries=0, timeout=60) as client:
        yield client


async def fetch(
    session: aiohttp.ClientSession,
    server: Server,
    ask: Ask,
    *,
    on_event: Callable[[Got], None] | None = None,
) -> Got:
    """The answer, whatever it is: whole, streamed to its end, an error before or in the stream. Network errors are raised."""
    got = Got(began=time.monotonic())
    async with session.post(server.root + ask.path, json=ask.body) as response:
        got.status = response.status
        got.headers = {name.lower(): value for name, value in response.headers.items()}
        if response.content_type == "text/event-stream":
            async for line in response.content:
                if line.startswith(b"data: "):
                    _take_event(got, line[6:].strip())
                    if on_event is not None:
                        on_event(got)
        else:
            _take_body(got, json.loads(await response.read()))
    got.ended = time.monotonic()
    return got


def problem(ask: Ask, got: Got) -> str | None:
    """The first thing about an answer that is not as it must be."""
    if got.status != 200 or got.error is not None:
        return f"HTTP {got.status}, error {got.error}"
    for k, choice in enumerate(ask.choices):
        if got.texts.get(k) != choice.text:
            return f"choice {k} was {got.texts.get(k)!r}, not {choice.text!r}"
        if got.finishes.get(k) != choice.finish:
            return f"choice {k} finished with {got.finishes.get(k)}, not {choice.finish}"
    if not got.done:
        return "the answer had no end"
    counts = got.usage["prompt_tokens"], got.usage["completion_tokens"]
    expected = len(ask.prompt), sum(len(choice.tokens) for choice in ask.choices)
    return None if counts == expected else f"usage was {counts}, not {expected}"


async def check(session: aiohttp.ClientSession, server: Server, ask: Ask) -> Got:
    """Ask and insist on the right answer."""
    got = await fetch(session, server, ask)
    assert problem(ask, got) is None, problem(ask, got)
    return got


async def check_all(server: Server, asks: list[Ask], *, key: str | None = None) -> list[Got]:
    """Ask all at once and insist on every answer."""
    async with http(key) as session, asyncio.TaskGroup() as group:
        tasks = [group.create_task(check(session, server, ask)) for ask in asks]
    return [task.result() for task in tasks]


async def eventually(condition: Callable[[], object], within: float, what: str, every: float = 0.01) -> None:
    """`server.wait_for` for tests that have other things running. The condition is asked in a thread: it may block."""
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() > deadline
        if await asyncio.to_thread(condition):
            return
        assert not late, f"waited {within:g} s for {what}"
        await asyncio.sleep(every)


def _take_event(got: Got, data: bytes) -> None:
    got.events += 1
    if data == b"[DONE]":
        assert not got.done, "a second [DONE]"
        got.done = True
        return
    assert not got.done, "an event after [DONE]"
    event = json.loads(data)
    if "error" in event:
        got.error = event["error"]
        return
    _take_choices(got, event)
    got.usage = event.get("usage") or got.usage


def _take_body(got: Got, body: dict[str, Any]) -> None:
    if "error" in body:
        got.error = body["error"]
        return
    _take_choices(got, body)
    got.usage = body["usage"]
    got.done = True


def _take_choices(got: Got, body: dict[str, Any]) -> None:
    for choice in body["choices"]:
        k = choice["index"]
        part = choice.get("delta") or choice.get("message") or choice
        got.texts[k] = got.texts.get(k, "") + (part.get("content") or part.get("text") or "")
        if choice["finish_reason"] is not None:
            assert k not in got.finishes, "a second finish"
            got.finishes[k] = choice["finish_reason"]

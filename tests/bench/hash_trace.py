"""Ask a server of the hash model many things at once, and check every answer against the documented function.

usage: python -m tests.bench.hash_trace [--url URL] [--requests 400] [--concurrency 32] [--seed 0] [-- SERVE_FLAGS]

Chat and completions, streamed and whole, text and ids, lists of prompts, n > 1, seeds, stop strings, log-probabilities,
shared prefixes cut at random places, conversations that go on, and clients that leave in the middle. Prints how many
answers were equal, and exits with 1 if any was not, or if the server did not give everything back. Without `--url` it
starts a server with few pages, so that evictions and preemptions happen too.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import uvloop

from .hash_oracle import Prediction, chat_prompt, predict
from .served import serve

FEW_PAGES = ("--pages", "300", "--max-model-len", "4096")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and what each of its choices must answer. `leave_after` is a number of text events."""

    kind: str
    path: str
    body: dict[str, Any]
    choices: list[Prediction]
    prompt_tokens: int
    stop: str | None = None
    leave_after: int | None = None


@dataclass(slots=True)
class Tally:
    equal: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def note(self, ask: Ask, problem: str | None) -> None:
        self.asked[ask.kind] += 1
        if problem is None:
            self.equal[ask.kind] += 1
        else:
            self.wrong.append(f"{ask.kind}: {problem}")


class Trace:
    """Makes requests up. All randomness is of one seed."""

    def __init__(self, model: str, seed: int) -> None:
        self._rng = random.Random(seed)
        self._model = model
        self._prefixes = [self._text(self._rng.randint(200, 1500)) for _ in range(6)]
        self._talks: list[list[dict[str, str]]] = []

    def ask(self) -> Ask:
        return self._chat() if self._rng.random() < 0.5 else self._completion()

    def _chat(self) -> Ask:
        messages = self._messages()
        options = self._options()
        prompt = chat_prompt(messages)
        body = {"messages": messages, **options}
        logprobs = self._rng.random() < 0.2
        if logprobs:
            body["logprobs"] = True
        choices = self._predict([prompt], body)
        if choices[0].text:
            self._talks.append([*messages, {"role": "assistant", "content": choices[0].text}])
        return self._finish("chat", "/chat/completions", body, choices, len(prompt))

    def _messages(self) -> list[dict[str, str]]:
        """A new conversation, or the next turn of one that was held before."""
        user = {"role": "user", "content": self._text(self._rng.randint(1, 60))}
        if self._talks and self._rng.random() < 0.4:
            talk = self._rng.choice(self._talks[-20:])
            if sum(len(message["content"]) for message in talk) < 2500:
                return [*talk, user]
        return [{"role": "system", "content": self._prefix()}, user]

    def _completion(self) -> Ask:
        rng = self._rng
        texts = [self._prefix() + self._text(rng.randint(1, 40)) for _ in range(rng.choice([1, 1, 1, 3]))]
        prompts = [list(text.encode()) for text in texts]
        as_ids = rng.random() < 0.4
        given: list[Any] = list(prompts) if as_ids else list(texts)
        body = {"prompt": given[0] if len(given) == 1 else given, **self._options()}
        kind = "completion of ids" if as_ids else "completion"
        return self._finish(kind, "/completions", body, self._predict(prompts, body), sum(map(len, prompts)))

    def _options(self) -> dict[str, Any]:
        rng = self._rng
        options: dict[str, Any] = {
            "model": self._model,
            "max_tokens": rng.choice([1, 7, 40, 120, 400]),
            "temperature": rng.choice([0, 0.7]),
            "seed": rng.getrandbits(62),
            "n": rng.choice([1, 1, 1, 2, 4]),
            "ignore_eos": rng.random() < 0.3,
            "stream": rng.random() < 0.6,
        }
        if options["stream"]:
            options["stream_options"] = {"include_usage": True}
        return options

    def _predict(self, prompts: list[list[int]], body: dict[str, Any]) -> list[Prediction]:
        names = ("max_tokens", "temperature", "seed", "ignore_eos")
        options = {name: body[name] for name in names}
        return [predict(prompt, index=k, **options) for prompt in prompts for k in range(body["n"])]

    def _finish(
        self, kind: str, path: str, body: dict[str, Any], choices: list[Prediction], prompt_tokens: int
    ) -> Ask:
        """Add a stop string that is known to occur, or a client that leaves."""
        rng = self._rng
        stop, leave_after = None, None
        text = choices[0].text
        if body["stream"] and len(text) > 20 and rng.random() < 0.25:
            leave_after = rng.randint(0, 10)
            kind += ", left"
        elif len(text) > 6 and "logprobs" not in body and rng.random() < 0.2:
            at = rng.randrange(len(text) - 3)
            stop = body["stop"] = text[at : at + 3]
            kind += ", stop string"
        kind += ", streamed" if body["stream"] else ""
        return Ask(kind, path, body, choices, prompt_tokens, stop, leave_after)

    def _prefix(self) -> str:
        whole = self._rng.choice(self._prefixes)
        return whole[: self._rng.randint(1, len(whole))] if self._rng.random() < 0.5 else whole

    def _text(self, length: int) -> str:
        return "".join(self._rng.choices("abcdefghij klmnop<|>\né🎉", k=length))


async def check(session: aiohttp.ClientSession, url: str, ask: Ask, tally: Tally) -> None:
    async with session.post(url + ask.path, json=ask.body) as response:
        if response.status != 200:
            tally.note(ask, f"HTTP {response.status}: {(await response.text())[:200]}")
            return
        if ask.body["stream"]:
            got = await _collect(_events(response), ask)
        else:
            got = _whole(orjson.loads(await response.read()), len(ask.choices))
    usage = got.usage
    tally.prompt_tokens += usage.get("prompt_tokens", 0)
    tally.cached_tokens += usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    tally.note(ask, _problem(ask, got))


@dataclass(slots=True)
class Got:
    """What the choices of one request amounted to."""

    texts: list[str]
    finishes: list[str | None]
    logprobs: list[list[float]]
    usage: dict[str, Any] = field(default_factory=dict)
    done: bool = False


def _problem(ask: Ask, got: Got) -> str | None:
    """The first thing that is not as predicted."""
    for k, choice in enumerate(ask.choices):
        if problem := _choice_problem(ask, got, k, choice):
            return f"choice {k} {problem}"
    return _usage_problem(ask, got.usage) if got.done else None


def _choice_problem(ask: Ask, got: Got, k: int, choice: Prediction) -> str | None:
    text, finish = choice.stopped(ask.stop)
    if not got.done and ask.leave_after is not None:
        return None if text.startswith(got.texts[k]) else f"began {got.texts[k]!r}, not {text!r}"
    if got.texts[k] != text:
        return f"was {got.texts[k]!r}, not {text!r}"
    if got.finishes[k] != finish:
        return f"finished with {got.finishes[k]}, not {finish}"
    if ask.body.get("logprobs") and got.logprobs[k] != [choice.logprob(i) for i in range(len(text))]:
        return "has other log-probabilities"
    return None


def _usage_problem(ask: Ask, usage: dict[str, Any]) -> str | None:
    expected = {"prompt_tokens": ask.prompt_tokens}
    if ask.stop is None:  # with one, the server may have generated a little past it
        expected["completion_tokens"] = sum(len(choice.tokens) for choice in ask.choices)
    got = {name: usage.get(name) for name in expected}
    return None if got == expected else f"usage was {got}, not {expected}"


def _whole(body: dict[str, Any], count: int) -> Got:
    got = Got([""] * count, [None] * count, [[] for _ in range(count)], body["usage"], done=True)
    for choice in body["choices"]:
        _add(got, choice, choice.get("message", {}).get("content") or choice.get("text") or "")
    return got


def _add(got: Got, choice: dict[str, Any], text: str) -> None:
    k = choice["index"]
    got.texts[k] += text
    got.finishes[k] = choice.get("finish_reason") or got.finishes[k]
    if logprobs := choice.get("logprobs"):
        got.logprobs[k] += [item["logprob"] for item in logprobs.get("content") or ()]


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any] | None]:
    """JSON events; None for `[DONE]`."""
    async for line in response.content:
        if line.startswith(b"data: [DONE]"):
            yield None
        elif line.startswith(b"data:"):
            yield orjson.loads(line[5:])


async def _collect(events: AsyncIterator[dict[str, Any] | None], ask: Ask) -> Got:
    count = len(ask.choices)
    got = Got([""] * count, [None] * count, [[] for _ in range(count)])
    seen = 0
    async for event in events:
        if event is None:
            got.done = True  # and read on to the end, as leaving now would still be leaving
            continue
        got.usage = event.get("usage") or got.usage
        for choice in event["choices"]:
            text = choice.get("delta", {}).get("content") or choice.get("text") or ""
            seen += bool(text)
            _add(got, choice, text)
        if ask.leave_after is not None and seen > ask.leave_after:
            break  # closing the response closes the connection
    return got


async def run(url: str, requests: int, concurrency: int, seed: int) -> Tally:
    tally = Tally()
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        async with session.get(f"{url}/models") as response:
            model = (await response.json())["data"][0]["id"]
        trace = Trace(model, seed)
        asks = iter([trace.ask() for _ in range(requests)])

        async def client() -> None:
            for ask in asks:
                await check(session, url, ask, tally)

        async with asyncio.TaskGroup() as clients:
            for _ in range(concurrency):
                clients.create_task(client())
    return tally


async def settled(root: str) -> tuple[str | None, str]:
    """What the server still holds although nobody asks for anything, None after at most 10 s; and what it went through."""
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            async with session.get(f"{root}/admin/state") as response:
                engine = (await response.json())["engine"]
            left = _left(engine)
            if left is None:
                break
            await asyncio.sleep(0.1)
    counters = engine["report"]["counters"]
    names = ("steps", "preemptions", "evicted_pages", "aborted", "failed_checks")
    return left, ", ".join(f"{counters[name]} {name.replace('_', ' ')}" for name in names)


def _left(engine: dict[str, Any]) -> str | None:
    pages = engine["pages"]
    counts = {
        "running": engine["running"],
        "waiting": engine["waiting"],
        "pages held": pages["held"],
        "pages lost": pages["total"] - pages["free"] - pages["tree"] - pages["held"],
    }
    return ", ".join(f"{name}: {count}" for name, count in counts.items() if count) or None


@contextmanager
def server(url: str | None, flags: list[str]) -> Iterator[str]:
    if url is not None:
        yield url.rstrip("/")
    else:
        with serve("hash", *FEW_PAGES, *flags) as served:
            yield served.url


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="of a server of the hash model, with /v1; default: start one")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("serve_flags", nargs="*", help="flags for `headwater serve`, after --")
    options = parser.parse_args()
    with server(options.url, options.serve_flags) as url:
        tally = uvloop.run(run(url, options.requests, options.concurrency, options.seed))
        held, history = uvloop.run(settled(url.removesuffix("/v1")))
    for kind, count in sorted(tally.asked.items()):
        print(f"{tally.equal[kind]:5} of {count:5}  {kind}")
    for problem in tally.wrong[:10]:
        print(problem)
    print(f"{tally.cached_tokens:,} of {tally.prompt_tokens:,} prompt tokens came from the cache")
    print(f"the engine counts {history}")
    print("everything was given back" if held is None else f"not given back: {held}")
    print(f"{tally.equal.total()} equal of {tally.asked.total()}")
    sys.exit(bool(tally.wrong) or held is not None)


if __name__ == "__main__":
    main()

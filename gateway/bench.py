"""`headwater bench`: load on any OpenAI-compatible server, and what its users would have felt.

Closed loop: a fixed number of users, each sending the next request when its last is answered. Open loop: requests
arrive at random times (Poisson) whether or not earlier ones are answered, and every latency counts from the time a
request *should* have been sent, so a server that stalls cannot hide the requests it kept waiting.

The client shares the machine with the server it measures, so it does little for a token: it counts text events by
scanning bytes, and parses only the first of them and the usage.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
from rich.console import Group, RenderableType
from rich.table import Table

from .api_client import ApiError, base_url, error_message, first_model, open_session, reason

_WORDS = (
    *("amber", "basket", "candle", "desert", "ember", "forest", "glacier", "hammer", "island", "jacket"),
    *("kettle", "lantern", "meadow", "needle", "orchard", "pepper", "quarry", "ribbon", "saddle", "thunder"),
    *("umbrella", "valley", "willow", "yellow", "zebra"),
)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """`rate` is in requests a second and makes the loop open; `concurrency` is for the closed loop only
    (None is one user).

    `shared_words` begin every prompt, as a system message does; `prompt_words` are different in each. `extra` is added
    to each request's body. `model` None is the first the server lists. Times are seconds. Raises ValueError.
    """

    url: str
    model: str | None = None
    key: str | None = None
    concurrency: int | None = None
    requests: int = 32
    rate: float | None = None
    prompt_words: int = 100
    shared_words: int = 0
    out_tokens: int = 64
    stream: bool = True
    seed: int = 0
    timeout: float = 900.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rate is not None and self.concurrency is not None:
            raise ValueError("a rate makes the loop open: concurrency does not apply")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError("rate must be a positive number of requests a second")
        if min(self.requests, self.users, self.out_tokens) < 1:
            raise ValueError("requests, concurrency and out_tokens must be at least 1")
        if min(self.prompt_words, self.shared_words) < 0:
            raise ValueError("words cannot be negative")

    @property
    def users(self) -> int:
        """Concurrent users of the closed loop."""
        return 1 if self.concurrency is None else self.concurrency


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of a time, in milliseconds, over `count` measurements."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`ttft` time to the first text, `tpot` mean time of each later token of a request, `gap` time between successive
    text events, `e2e` whole request; None where nothing was measured. Rates are per second of `wall` seconds.

    `errors` counts failed requests by kind. `late` is the most that the client itself was behind its schedule (open
    loop), in milliseconds: above a few, the client was the bottleneck and the figures say little about the server.
    """

    mode: Literal["closed", "open"]
    model: str
    succeeded: int
    failed: int
    wall: float
    request_rate: float
    output_rate: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: Distribution | None
    tpot: Distribution | None
    gap: Distribution | None
    e2e: Distribution | None
    errors: Mapping[str, int]
    late: float

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()


async def run_load(options: LoadOptions) -> LoadReport:
    """Send all requests and wait for all answers. Failed requests are counted, not raised; ApiError only if the model
    has to be asked for and cannot be."""
    url = base_url(options.url)
    record = _Record()
    async with open_session(options.key, timeout=options.timeout) as session:
        model = options.model or await first_model(session, url)
        client = _Client(session, url, options.stream, record)
        bodies = list(_bodies(options, model))
        start = time.perf_counter()
        if options.rate is None:
            await _closed_loop(client, bodies, options.users)
        else:
            await _open_loop(client, bodies, options.rate, options.seed)
        wall = time.perf_counter() - start
    return record.report("closed" if options.rate is None else "open", model, wall)


def render(report: LoadReport) -> RenderableType:
    """The report as tables for a terminal."""
    totals = Table("", "", show_header=False, box=None)
    for name, value in (
        ("model", f"{report.model} ({report.mode} loop)"),
        ("requests", f"{report.succeeded} answered, {report.failed} failed in {report.wall:.1f} s"),
        ("requests/s", f"{report.request_rate:.2f}"),
        ("output tokens/s", f"{report.output_rate:.1f}"),
        ("tokens", f"{report.prompt_tokens} in ({report.cached_tokens} cached), {report.output_tokens} out"),
        *((f"error: {kind}", str(count)) for kind, count in list(report.errors.items())[:10]),
    ):
        totals.add_row(name, value)
    if report.late > 5:
        totals.add_row("client late by", f"{report.late:.0f} ms: the client was too slow for this rate")
    times = Table("ms", "mean", "p50", "p90", "p95", "p99", "max", box=None)
    for column in times.columns[1:]:
        column.justify = "right"
    for name, d in (
        ("time to first token", report.ttft),
        ("time per output token", report.tpot),
        ("gap between events", report.gap),
        ("whole request", report.e2e),
    ):
        if d is not None:
            times.add_row(name, *(f"{ms:.1f}" for ms in (d.mean, d.p50, d.p90, d.p95, d.p99, d.max)))
    return Group(totals, times) if times.row_count else totals


# ---- the load --------------------------------------------------------------------------------------------------------


def _bodies(options: LoadOptions, model: str) -> Iterator[bytes]:
    rng = random.Random(options.seed)  # noqa: S311 - the same words in every run of a seed
    shared = _words(options.shared_words, random.Random(-1))  # noqa: S311 - and the same prefix for all seeds
    for _ in range(options.requests):
        text = f"{_words(options.prompt_words, rng)} Continue the list."
        body: dict[str, Any] = {
            "model": model,
            "messages": [
                {"role": "system", "content": shared or "You are helpful."},
                {"role": "user", "content": text},
            ],
            "max_tokens": options.out_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": options.stream,
        }
        if options.stream:
            body["stream_options"] = {"include_usage": True}
        yield orjson.dumps(body | dict(options.extra))


def _words(count: int, rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=count))


async def _closed_loop(client: _Client, bodies: Sequence[bytes], concurrency: int) -> None:
    waiting = iter(bodies)

    async def user() -> None:
        for body in waiting:
            await client.send(body, time.perf_counter())

    async with asyncio.TaskGroup() as users:
        for _ in range(min(concurrency, len(bodies))):
            users.create_task(user())


async def _open_loop(client: _Client, bodies: Sequence[bytes], rate: float, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - the same arrivals in every run of a seed
    due = time.perf_counter()
    async with asyncio.TaskGroup() as flights:
        for body in bodies:
            due += rng.expovariate(rate)
            await asyncio.sleep(due - time.perf_counter())
            flights.create_task(client.send(body, due))


class _Client:
    """Sends one request after another and records each; never raises for what a server does."""

    def __init__(self, session: aiohttp.ClientSession, url: str, stream: bool, record: _Record) -> None:
        self._session = session
        self._url = f"{url}/chat/completions"
        self._read = self._read_stream if stream else self._read_whole
        self._record = record

    async def send(self, body: bytes, due: float) -> None:
        """`due` is when the request should leave, on the `perf_counter` clock."""
        self._record.late = max(self._record.late, time.perf_counter() - due)
        try:
            async with self._session.post(
                self._url, data=body, headers={"Content-Type": "application/json"}
            ) as response:
                if response.status != 200:
                    raise ApiError(f"HTTP {response.status}: {error_message(await response.read())}")
                flight = await self._read(response)
        except ApiError as error:
            self._record.errors[str(error)] += 1
        except TimeoutError:
            self._record.errors["timeout"] += 1
        except aiohttp.ClientError as error:
            self._record.errors[f"connection: {reason(error)}"] += 1
        else:
            self._record.add(flight, due)

    async def _read_stream(self, response: aiohttp.ClientResponse) -> _Flight:
        flight = _Flight()
        rest = b""
        async for data in response.content.iter_any():
            now = time.perf_counter()
            whole, newline, rest = (rest + data).rpartition(b"\n")
            flight.scan(whole + newline, now)
        flight.end = time.perf_counter()
        if not flight.done:
            raise ApiError("stream cut off")
        return flight

    async def _read_whole(self, response: aiohttp.ClientResponse) -> _Flight:
        flight = _Flight()
        body = await response.read()
        flight.end = time.perf_counter()
        try:
            flight.usage = orjson.loads(body)["usage"]
        except (ValueError, LookupError, TypeError) as error:
            raise ApiError("malformed answer") from error
        return flight


_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|text)": ?"(?!")')
"""A non-empty text field. It cannot occur inside a JSON string, where its quotes would be escaped."""

_USAGE = re.compile(rb'^data: ?(\{.*"usage": ?\{.*\})\s*$', re.MULTILINE)
_ERROR = re.compile(rb'^data: ?(\{"error": ?.*\})\s*$', re.MULTILINE)
_DONE = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)


class _Flight:
    """One answer as it arrives."""

    __slots__ = ("done", "end", "events", "first", "gaps", "last", "usage")

    def __init__(self) -> None:
        self.first = self.last = self.end = 0.0
        self.events = 0
        self.gaps = array("d")
        self.usage: dict[str, Any] = {}
        self.done = False

    def scan(self, block: bytes, now: float) -> None:
        """Take in whole lines of a stream that arrived at `now`. Raises ApiError for an error event."""
        events = len(_TEXT.findall(block))
        if events:
            if self.events:
                self.gaps.append(now - self.last)
            else:
                self.first = now
            self.gaps.extend([0.0] * (events - 1))
            self.events += events
            self.last = now
        if b'"error"' in block and (error := _ERROR.search(block)):
            raise ApiError(f"in the stream: {error_message(error[1])}")
        if b'"usage"' in block and (usages := _USAGE.findall(block)):
            self.usage = orjson.loads(usages[-1])["usage"]
        if b"[DONE]" in block and _DONE.search(block):
            self.done = True

    @property
    def tokens(self) -> int:
        return int(self.usage.get("completion_tokens") or self.events)


class _Record:
    """What all requests together came to. Seconds."""

    def __init__(self) -> None:
        self.ttft, self.tpot, self.gaps, self.e2e = array("d"), array("d"), array("d"), array("d")
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.errors: Counter[str] = Counter()
        self.late = 0.0

    def add(self, flight: _Flight, due: float) -> None:
        self.e2e.append(flight.end - due)
        if flight.events:
            self.ttft.append(flight.first - due)
            self.gaps.extend(flight.gaps)
            if flight.tokens > 1:
                self.tpot.append((flight.last - flight.first) / (flight.tokens - 1))
        self.output_tokens += flight.tokens
        self.prompt_tokens += int(flight.usage.get("prompt_tokens") or 0)
        self.cached_tokens += int((flight.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    def report(self, mode: Literal["closed", "open"], model: str, wall: float) -> LoadReport:
        return LoadReport(
            mode=mode,
            model=model,
            succeeded=len(self.e2e),
            failed=self.errors.total(),
            wall=wall,
            request_rate=len(self.e2e) / wall,
            output_rate=self.output_tokens / wall,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            ttft=_distribution(self.ttft),
            tpot=_distribution(self.tpot),
            gap=_distribution(self.gaps),
            e2e=_distribution(self.e2e),
            errors=dict(self.errors.most_common()),
            late=1000 * self.late,
        )


def _distribution(seconds: array[float]) -> Distribution | None:
    """Percentiles by nearest rank."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    count = len(ordered)

    def rank(percent: int) -> float:
        return 1000 * ordered[-(-percent * count // 100) - 1]

    return Distribution(
        count=count,
        mean=1000 * sum(ordered) / count,
        p50=rank(50),
        p90=rank(90),
        p95=rank(95),
        p99=rank(99),
        max=1000 * ordered[-1],
    )

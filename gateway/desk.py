"""Where requests are handed to the engine: limits, deadline, tenant, and the list of what is in flight.

The desk owns every open `Generation`: it feeds the metrics when one ends, and can end all of them when
the server stops. Whoever wants to know what becomes of requests is told by the desk (`Listener`).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import structs

from cache.lease import CachePolicy, Lease
from engine.backlog import Place
from engine.client import EngineClient, RequestStream
from engine.errors import GrammarRefused, RequestFailure
from engine.request import EngineInfo, GenerationRequest, RequestEnded, SamplingParams
from grammar.spec import Grammar

from .caching.ask import CacheAsk, Mark
from .caching.namespaces import Namespaces
from .caching.records import Origin
from .caller import Caller
from .errors import Overloaded
from .generation import Generation, Usage
from .metrics import Metrics
from .pieces import TextOptions
from .structured.source import Source
from .tokenizer import Tokenizer

ALL_OF_IT = CachePolicy()
"""What a request may have of the cache unless it asks for something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt to answer. `source` is where its grammar was asked for: what a refusal names.

    `cache_salt` and `cache_key` (`prompt_cache_key`) are the client's; `cache` is what it may have of the cache and leaves
    there, to which the desk adds the digest of the key. `cache_id` is the cache object that it begins with or makes. An
    answer that ends in calls of tools leaves its conversation leased for `tool_pause` seconds. `origin` is what the prompt
    was made of, for those who are to explain it later. `known` of its tokens are those of the turn before; None: nobody
    looked for one.
    """

    prompt: list[int]
    sampling: SamplingParams
    text: TextOptions
    n: int
    priority: int
    cache_salt: str | None = None
    cache_key: str | None = None
    cache_id: str | None = None
    cache: CachePolicy = ALL_OF_IT
    tool_pause: float = 0.0
    origin: Origin | None = None
    known: int | None = None
    grammar: Grammar | None = None
    source: Source | None = None

    def prefill(self) -> Job:
        """The same without an answer: it is over when the prompt is in the cache."""
        return replace(
            self,
            sampling=SamplingParams(max_tokens=0),
            text=TextOptions(discard=True),
            n=1,
            tool_pause=0.0,
            grammar=None,
            source=None,
        )


@dataclass(frozen=True, slots=True)
class Submission:
    """A request that was handed to the engine, and how it goes."""

    caller: Caller
    job: Job
    generation: Generation


class Listener(Protocol):
    """Told of every request, on the event loop, in this order; each call returns at once and raises nothing.

    Several implementations: what keeps records, what counts, what writes the ledger.
    """

    def submitted(self, submission: Submission) -> None:
        """The engine has it."""
        ...

    def started(self, submission: Submission) -> None:
        """Its prompt was admitted, and what was found of it in the cache is known (`generation.start`). Not called for a
        request that ends before, or whose reader leaves before."""
        ...

    def ended(self, submission: Submission, account: RequestEnded | None) -> None:
        """Once, however it ended: when its reader has left (`generation.error`) and the engine has told its account, or
        None if it died before it could."""
        ...


class _Ending:
    """The two sides of a request's end. Whichever comes last, the listeners are told then."""

    __slots__ = ("_account", "_ended", "_left", "_listeners", "_submission")

    def __init__(self, submission: Submission, listeners: Sequence[Listener]) -> None:
        self._submission = submission
        self._listeners = listeners
        self._left = self._ended = False
        self._account: RequestEnded | None = None

    def reader_left(self) -> None:
        self._left = True
        self._tell()

    def engine_ended(self, stream: RequestStream) -> None:
        self._ended = True
        self._account = stream.account
        self._tell()

    def _tell(self) -> None:
        if self._left and self._ended:
            for listener in self._listeners:
                listener.ended(self._submission, self._account)


class Desk:
    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        namespaces: Namespaces,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._namespaces = namespaces
        self._listeners = listeners
        self._open: dict[Generation, _Ending] = {}

    @property
    def open(self) -> int:
        """Requests submitted and not ended."""
        return len(self._open)

    def info(self) -> EngineInfo:
        """What the engine is. Raises Overloaded while it cannot take a request: decided before any other work."""
        health = self._engine.health
        info = self._engine.info
        if info is None or health.status != "ready":
            raise Overloaded(f"The engine is {health.status}.", code=f"engine_{health.status}")
        return info

    def asking(self, caller: Caller, job: Job, ask: CacheAsk, marks: Sequence[Mark]) -> Job:
        """The job with what its request asks of the cache. `marks` are where in its prompt entries are to stand."""
        namespace = self._namespaces.of(caller.tenant.id, salt=ask.salt, key=ask.key)
        asking = replace(
            job,
            cache_salt=ask.salt,
            cache_key=ask.key,
            cache_id=ask.object_id,
            cache=ask.policy(job.prompt, marks, namespace),
            tool_pause=ask.pause,
        )
        return asking.prefill() if ask.prewarm else asking

    def place(self, caller: Caller, requests: int) -> Place:
        """A place in the queue, to be left by `with`. Raises QueueFull or EngineUnavailable."""
        return self._engine.reserve(caller.tenant.id, requests)

    @asynccontextmanager
    async def submit(
        self, caller: Caller, place: Place, jobs: Sequence[Job]
    ) -> AsyncIterator[list[Generation]]:
        """Hand the jobs to the engine; leaving the context aborts whatever of them still runs.

        Raises BadRequest, QueueFull or EngineUnavailable, for a single job before anything is sent; DeadlineExceeded
        when the caller's time is up at any point inside; InvalidRequest when the engine refuses the jobs' grammar.
        """
        place.weigh(sum(len(job.prompt) for job in jobs))
        open_: list[Generation] = []
        why: BaseException | None = None
        try:
            async with caller.in_time():
                for job in jobs:
                    open_.append(self._start(caller, place, job))  # noqa: PERF401 - a failure must find the earlier ones here
                yield open_
        except GrammarRefused as error:
            why = error
            self._metrics.grammar_refused("too_complex" if error.too_complex else "invalid")
            source = jobs[0].source
            if source is None:
                raise
            raise source.refused(error) from None
        except BaseException as error:
            why = error
            raise
        finally:
            for generation, job in zip(open_, jobs, strict=False):
                self._end(generation, job, why)

    def stop_all(self, error: RequestFailure) -> None:
        """Every request in flight ends with `error`."""
        for generation in self._open:
            generation.fail(error)

    def _start(self, caller: Caller, place: Place, job: Job) -> Generation:
        tenant = caller.tenant.id
        request = GenerationRequest(
            request_id=uuid.uuid4().hex,
            prompt=job.prompt,
            sampling=job.sampling,
            n=job.n,
            tenant=tenant,
            namespace=self._namespaces.of(tenant, salt=job.cache_salt, key=job.cache_key),
            priority=job.priority,
            deadline=max(caller.remaining(), 0.0),
            cache=structs.replace(
                job.cache,
                # scoring a prompt needs every position computed
                read=job.cache.read and job.sampling.prompt_logprobs is None,
                group=self._namespaces.group(tenant, job.cache_key),
            ),
            grammar=job.grammar,
        )
        stream = self._engine.submit(request, place)
        generation = Generation(stream, self._tokenizer, job.text)
        generation.known = job.known
        self._open[generation] = self._tell(Submission(caller, job, generation), stream)
        return generation

    def _tell(self, submission: Submission, stream: RequestStream) -> _Ending:
        """Let the listeners know of it, now and later."""

        def started() -> None:
            for listener in self._listeners:
                listener.started(submission)

        ending = _Ending(submission, self._listeners)
        submission.generation.when_started = started
        stream.when_ended = ending.engine_ended
        for listener in self._listeners:
            listener.submitted(submission)
        return ending

    def _end(self, generation: Generation, job: Job, error: BaseException | None) -> None:
        generation.close(error)
        tools = generation.awaited_tools
        if job.tool_pause and job.cache.write and tools:
            request = generation.request
            kind = self._namespaces.tools(request.tenant, tools)
            self._engine.lease_tip(request.request_id, Lease(ttl=job.tool_pause, pause=True, kind=kind))
        self._metrics.generation_ended(generation)
        self._open.pop(generation).reader_left()


def total(generations: Sequence[Generation]) -> Usage:
    usage = generations[0].usage
    for generation in generations[1:]:
        usage += generation.usage
    return usage

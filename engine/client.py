"""The gateway's view of an engine: reserve a place, submit a request, read its events, abort it. No torch, no process handling.

`EngineClient` has two implementations: `process.EngineProcess` (a supervised child behind a socket) and the fake in
`tests/fakes.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from cache.lease import FlushScope, Lease, TenantLimits, Tier
from grammar.spec import Grammar

from .backlog import Place, QueueState
from .errors import DeadlineExceeded, EngineDied, GrammarRefused, PinsExhausted, RequestFailure, Unavailable
from .request import (
    CacheReport,
    EngineCounters,
    EngineInfo,
    EntryReport,
    FlushReport,
    GenerationRequest,
    GrammarReady,
    GrammarReport,
    ImportPages,
    LookUpReport,
    PromptCached,
    RequestEnded,
    RequestFailed,
    RequestStarted,
    SequenceDelta,
    StateReport,
    TransferReport,
)

StreamEvent = GrammarReady | RequestStarted | PromptCached | SequenceDelta
EngineStatus = Literal["starting", "ready", "unresponsive", "restarting", "failed", "stopped"]
"""Requests are taken when `ready` only. `unresponsive`: no heartbeat for a while, open streams may still go on."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether the engine makes progress. `heartbeat_age` is in seconds; `detail` is one line for an operator."""

    status: EngineStatus
    detail: str
    heartbeat_age: float
    pid: int | None
    restarts: int


class RequestStream:
    """The events of one request in order. Iterating ends after every choice has finished, or raises RequestFailure.

    One reader. Events that arrive between two reads are handed over together, so a slow reader costs memory for its
    own tokens only, and those are bounded by `max_tokens`.
    """

    __slots__ = ("_abort", "_error", "_events", "_open", "_waiter", "account", "request", "when_ended")

    def __init__(self, request: GenerationRequest, abort: Callable[[str, int | None], None]) -> None:
        self.request = request
        self._abort = abort
        self._events: deque[StreamEvent] = deque()
        self._open = set(range(request.n))
        self._error: RequestFailure | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.account: RequestEnded | None = None
        self.when_ended: Callable[[RequestStream], None] | None = None
        """Called once, when the engine's account is here or will never come; that may be after the reader has left."""

    # -- the client's side: called as frames arrive --------------------------------------------------------------------

    def push(self, event: StreamEvent) -> None:
        if isinstance(event, SequenceDelta):
            if event.index not in self._open:
                return  # a delta that crossed an abort on its way
            if event.finish is not None:
                self._open.discard(event.index)
        self._events.append(event)
        self._wake()

    def fail(self, error: RequestFailure) -> None:
        if self._error is None and self._open:
            self._error = error
            self._wake()

    def fail_from(self, failed: RequestFailed) -> None:
        self.fail(failure_from(failed))

    def close_account(self, account: RequestEnded | None) -> None:
        """The engine is done with the request; None if the engine is no more."""
        self.account = account
        listener, self.when_ended = self.when_ended, None
        if listener is not None:
            listener(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the reader's side ---------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Nothing will arrive any more (events may still be waiting to be read)."""
        return not self._open or self._error is not None

    async def read(self) -> list[StreamEvent]:
        """Everything that has arrived, waiting for something if nothing has. An empty list is the end."""
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self._open:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events = list(self._events)
        self._events.clear()
        return events

    def abort(self, index: int | None = None) -> None:
        """Stop the request, or one choice of it. Idempotent, does not wait; nothing more of it will be read."""
        gone = set(self._open) if index is None else self._open & {index}
        if not gone or self._error is not None:
            return
        self._open -= gone
        self._abort(self.request.request_id, None if not self._open else index)
        self._wake()


def failure_from(failed: RequestFailed) -> RequestFailure:
    """The error a client raises for a failure the engine reports."""
    match failed.kind:
        case "deadline":
            return DeadlineExceeded(failed.message)
        case "pins_exhausted":
            return PinsExhausted(failed.message)
        case "unavailable":
            return Unavailable(failed.message)
        case "shutting_down":
            return EngineDied(failed.message)
        case "bad_grammar" | "grammar_too_complex":
            return GrammarRefused(failed.message, too_complex=failed.kind == "grammar_too_complex")
        case _:
            return RequestFailure(failed.message)


class EngineClient(Protocol):
    @property
    def info(self) -> EngineInfo | None:
        """None until the engine was ready once."""
        ...

    @property
    def counters(self) -> EngineCounters: ...

    @property
    def health(self) -> EngineHealth: ...

    @property
    def queue(self) -> QueueState: ...

    def reserve(self, tenant: str, requests: int) -> Place:
        """Take places in the queue, before the prompts are known even. Raises QueueFull or EngineUnavailable at once.

        To be left by `with`, and to be weighed before a request is submitted into it.
        """
        ...

    def submit(self, request: GenerationRequest, place: Place) -> RequestStream:
        """Queue a request, which takes over its share of the place until it starts or ends.

        Raises BadRequest, QueueFull or EngineUnavailable at once, before anything is sent; the place is unchanged then.
        """
        ...

    async def state(self) -> StateReport:
        """The exact state of the engine. Raises EngineUnavailable."""
        ...

    async def check_grammar(self, grammar: Grammar) -> GrammarReport:
        """Whether and how the engine compiles a grammar. Raises EngineUnavailable."""
        ...

    def set_failpoint(self, spec: str) -> None:
        """Test mode only."""
        ...

    async def flush_cache(self, scope: FlushScope, *, dry_run: bool = False) -> FlushReport:
        """Let nobody find these pages again. Raises EngineUnavailable."""
        ...

    async def look_up(self, prompt: list[int], *, namespace: bytes, adapter: bytes = b"") -> LookUpReport:
        """What a prompt would find in the cache now. Raises BadRequest, EngineUnavailable."""
        ...

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        """Lease what the first choice of a request that has just ended left in the cache. Best effort, does not wait."""
        ...

    async def entry(
        self, entry_id: str, *, lease: Lease | None = None, to: Tier | None = None, drop: bool = False
    ) -> EntryReport:
        """How an entry is, after it was changed, moved or dropped as asked. Raises EngineUnavailable."""
        ...

    async def cache_report(self, tenant: str | None = None) -> CacheReport:
        """What is cached, for one tenant or for all. Raises EngineUnavailable."""
        ...

    async def set_limits(self, tenants: Mapping[str, TenantLimits], others: TenantLimits) -> str | None:
        """What tenants may have and are promised from now on, also of an engine that is started again. None if that is so, or
        why it cannot be. Raises EngineUnavailable."""
        ...

    async def export_pages(
        self, path: str, prompt: list[int], *, namespace: bytes, adapter: bytes = b""
    ) -> TransferReport:
        """Write what is cached of a prompt to a new file. Raises EngineUnavailable."""
        ...

    async def import_pages(self, question: Callable[[int], ImportPages]) -> TransferReport:
        """Read such a file; `question` makes the frame for a query id. Raises EngineUnavailable."""
        ...

"""The `EngineClient` that serves: an engine in a process of its own, fed with requests from a bounded queue.

Everything here runs on one event loop and never blocks it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from cache.lease import FlushScope, Lease, TenantLimits, Tier
from grammar.spec import Grammar

from .backlog import Backlog, Place, QueueLimits, QueueState
from .client import EngineHealth, RequestStream, StreamEvent
from .config import EngineConfig
from .errors import BadRequest, ChannelError, EngineDied, EngineUnavailable
from .failpoints import check_failpoint
from .heartbeat import Watchdog
from .poison import PoisonGuard
from .prepare import check_request
from .request import (
    Abort,
    AskCache,
    AskEntry,
    AskState,
    CacheReport,
    CheckGrammar,
    EngineCounters,
    EngineInfo,
    EntryReport,
    ExportPages,
    FlushCache,
    FlushReport,
    GenerationRequest,
    GrammarReport,
    ImportPages,
    LeaseTip,
    LimitsReport,
    LookUp,
    LookUpReport,
    SetFailpoint,
    SetLimits,
    StateReport,
    StepOutput,
    Submit,
    ToClient,
    ToEngine,
    TransferReport,
)
from .restarts import RestartPolicy
from .supervisor import Supervisor

STATE_TIMEOUT = 10.0
"""Seconds. An engine answers between two steps, so a long step delays the answer."""

FLUSH_TIMEOUT = 60.0
"""The same, and the time that looking through a large cache takes, a little between each two steps."""

TRANSFER_TIMEOUT = 60.0
"""The same, and the time that reading or writing a file of pages may take."""

GRAMMAR_TIMEOUT = 15.0
"""The same, and the time its compilation may take."""

RESEND_AFTER = 0.25
"""Seconds until an abort is tried again that found the engine too far behind."""

TOO_FAR_BEHIND = "the engine is too far behind"


class EngineProcess:
    """A supervised engine. `start` it, wait for `ready`, and `stop` it whatever happens."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        limits: QueueLimits | None = None,
        watchdog: Watchdog | None = None,
        restarts: RestartPolicy | None = None,
    ) -> None:
        self._config = config
        self._supervisor = Supervisor(
            config,
            watchdog or Watchdog(),
            restarts or RestartPolicy(),
            on_message=self._on_message,
            on_down=self._on_down,
            on_blame=self._on_blame,
        )
        self._backlog = Backlog(limits or QueueLimits())
        self._streams: dict[str, RequestStream] = {}
        self._leaving: dict[str, RequestStream] = {}
        self._late_aborts: list[Abort] = []
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._question_ids = itertools.count(1)
        self._counters = EngineCounters()
        self._poison = PoisonGuard()
        self._lost_batch: list[GenerationRequest] = []

    async def start(self) -> None:
        """Begin to start the engine, and to keep it going."""
        self._supervisor.start()

    async def ready(self) -> EngineInfo:
        """Wait until requests are taken. Raises StartError if that will not happen any more."""
        return await self._supervisor.ready()

    async def stop(self) -> None:
        """End the engine and everything in flight. Leaves no process, socket or directory. Idempotent."""
        await self._supervisor.stop()

    # ---- EngineClient ------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo | None:
        return self._supervisor.info

    @property
    def counters(self) -> EngineCounters:
        return self._counters

    @property
    def health(self) -> EngineHealth:
        return self._supervisor.health

    @property
    def queue(self) -> QueueState:
        return self._backlog.state

    def reserve(self, tenant: str, requests: int) -> Place:
        self._supervisor.check_ready()
        return self._backlog.reserve(tenant, requests)

    def submit(self, request: GenerationRequest, place: Place) -> RequestStream:
        info = self._supervisor.check_ready()
        check_request(request, vocab_size=info.vocab_size, max_model_len=info.max_model_len)
        if request.request_id in self._streams or request.request_id in self._leaving:
            raise BadRequest(f"request id {request.request_id} is in use")
        if self._poison.refuses(request, time.monotonic()):
            raise BadRequest(
                f"request {request.request_id} is refused: the engine crashed twice while it computed this content"
            )
        try:
            sent = self._supervisor.send(Submit(request))
        except ChannelError as error:
            raise BadRequest(str(error)) from error
        if not sent:
            raise self._backlog.refusal("engine_behind", TOO_FAR_BEHIND)
        stream = RequestStream(request, self._abort)
        self._streams[request.request_id] = stream
        self._backlog.submit(request, place)
        return stream

    async def state(self) -> StateReport:
        report: StateReport = await self._ask(AskState, STATE_TIMEOUT)
        return report

    async def check_grammar(self, grammar: Grammar) -> GrammarReport:
        def question(query_id: int) -> CheckGrammar:
            return CheckGrammar(query_id, grammar)

        report: GrammarReport = await self._ask(question, GRAMMAR_TIMEOUT)
        return report

    async def _ask(self, question: Callable[[int], ToEngine], patience: float) -> Any:
        """Whatever the engine answers to a question with this number. Raises EngineUnavailable."""
        self._supervisor.check_ready()
        query_id = next(self._question_ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[query_id] = answer
        try:
            self._command(question(query_id))
            return await asyncio.wait_for(answer, patience)
        except TimeoutError as error:
            raise EngineUnavailable("the engine is in a long step", retry_after=1.0) from error
        finally:
            del self._questions[query_id]

    def set_failpoint(self, spec: str) -> None:
        """Raises BadRequest outside test mode and for a spec that is none."""
        if not self._config.test_mode:
            raise BadRequest("failpoints exist in test mode only")
        check_failpoint(spec)
        self._command(SetFailpoint(spec))

    async def flush_cache(self, scope: FlushScope, *, dry_run: bool = False) -> FlushReport:
        report: FlushReport = await self._ask(
            lambda number: FlushCache(number, scope, dry_run), FLUSH_TIMEOUT
        )
        return report

    async def look_up(self, prompt: list[int], *, namespace: bytes, adapter: bytes = b"") -> LookUpReport:
        report: LookUpReport = await self._ask(
            lambda number: LookUp(number, prompt, namespace, adapter), STATE_TIMEOUT
        )
        return report

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        self._supervisor.send(LeaseTip(request_id, lease))

    async def entry(
        self, entry_id: str, *, lease: Lease | None = None, to: Tier | None = None, drop: bool = False
    ) -> EntryReport:
        report: EntryReport = await self._ask(
            lambda number: AskEntry(number, entry_id, lease, to, drop), STATE_TIMEOUT
        )
        return report

    async def cache_report(self, tenant: str | None = None) -> CacheReport:
        report: CacheReport = await self._ask(lambda number: AskCache(number, tenant), STATE_TIMEOUT)
        return report

    async def set_limits(self, tenants: Mapping[str, TenantLimits], others: TenantLimits) -> str | None:
        report: LimitsReport = await self._ask(
            lambda number: SetLimits(number, dict(tenants), others), STATE_TIMEOUT
        )
        if report.error is None:
            self._config = structs.replace(self._config, tenants=dict(tenants), other_tenants=others)
            self._supervisor.reconfigure(self._config)
        return report.error

    async def export_pages(
        self, path: str, prompt: list[int], *, namespace: bytes, adapter: bytes = b""
    ) -> TransferReport:
        report: TransferReport = await self._ask(
            lambda number: ExportPages(number, path, prompt, namespace, adapter), TRANSFER_TIMEOUT
        )
        return report

    async def import_pages(self, question: Callable[[int], ImportPages]) -> TransferReport:
        report: TransferReport = await self._ask(question, TRANSFER_TIMEOUT)
        return report

    def _command(self, message: ToEngine) -> None:
        self._supervisor.check_ready()
        if not self._supervisor.send(message):
            raise EngineUnavailable(TOO_FAR_BEHIND, retry_after=1.0)

    # ---- aborts ------------------------------------------------------------------------------------------------------

    def _abort(self, request_id: str, index: int | None) -> None:
        if index is None:
            self._leave(request_id)
            self._backlog.remove(request_id)
        # At most one for each choice the engine was given, and it is given no more while it is too far behind.
        self._late_aborts.append(Abort((request_id,), index))
        if len(self._late_aborts) == 1:
            self._send_aborts()

    def _leave(self, request_id: str) -> RequestStream | None:
        """Nothing more of this request is handed out; its account is still to come. None if it has left before."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._leaving[request_id] = stream
        return stream

    def _send_aborts(self) -> None:
        while self._late_aborts and self._supervisor.send(self._late_aborts[-1]):
            self._late_aborts.pop()
        if self._late_aborts:
            asyncio.get_running_loop().call_later(RESEND_AFTER, self._send_aborts)

    # ---- what the supervisor tells -----------------------------------------------------------------------------------

    def _on_message(self, message: ToClient) -> None:
        match message:
            case StepOutput():
                self._on_step(message)
            case (
                StateReport()
                | GrammarReport()
                | FlushReport()
                | LookUpReport()
                | EntryReport()
                | CacheReport()
                | TransferReport()
                | LimitsReport()
            ):
                answer = self._questions.get(message.query_id)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def _on_step(self, output: StepOutput) -> None:
        self._counters = output.counters
        streams = self._streams
        for started in output.started:
            self._backlog.start(started.request_id)
        told: tuple[StreamEvent, ...] = (*output.ready, *output.started, *output.cached)
        for event in told:
            if (stream := streams.get(event.request_id)) is not None:
                stream.push(event)
        for delta in output.deltas:
            stream = streams.get(delta.request_id)
            if stream is None:
                continue  # it crossed an abort on its way
            stream.push(delta)
            if delta.finish is not None and stream.done:
                self._leave(delta.request_id)
                self._poison.finished(stream.request)
        for failed in output.failed:
            self._backlog.remove(failed.request_id)
            if (stream := self._leave(failed.request_id)) is not None:
                stream.fail_from(failed)
        for account in output.ended:
            if (stream := self._leaving.pop(account.request_id, None)) is not None:
                stream.close_account(account)

    def _on_down(self, message: str) -> None:
        streams, self._streams = self._streams, {}
        leaving, self._leaving = self._leaving, {}
        self._lost_batch = [stream.request for name, stream in streams.items() if name not in self._backlog]
        self._backlog.clear()
        self._late_aborts.clear()
        self._counters = EngineCounters()
        for stream in streams.values():
            stream.fail(EngineDied(message))
        for stream in (*leaving.values(), *streams.values()):
            stream.close_account(None)
        for question in self._questions.values():
            if not question.done():
                question.set_exception(EngineUnavailable(message, retry_after=1.0))

    def _on_blame(self) -> None:
        self._poison.crashed(self._lost_batch, time.monotonic())

"""An engine in a process of its own: started, watched, restarted, and fed with requests.

`EngineProcess` is the `EngineClient` that serves. Everything here runs on one event loop and never blocks it. One task
supervises: it alone starts and ends children.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import time
from dataclasses import dataclass

from .backlog import LONGEST_RETRY, Backlog, QueueLimits
from .child import Child, describe_exit
from .client import EngineHealth, EngineStatus, RequestStream
from .config import EngineConfig
from .errors import BadRequest, ChannelError, EngineDied, EngineUnavailable, QueueFull, StartError
from .failpoints import check_failpoint
from .heartbeat import INTERVAL, Beat, Vitals, Watchdog
from .poison import PoisonGuard
from .prepare import check_request
from .request import (
    Abort,
    AskState,
    EngineCounters,
    EngineInfo,
    Flush,
    GenerationRequest,
    SetFailpoint,
    Shutdown,
    StartFailed,
    StateReport,
    StepOutput,
    Submit,
    ToClient,
    ToEngine,
)
from .restarts import RestartPolicy, Restarts

log = logging.getLogger(__name__)

DIED = "the engine process died"
STATE_TIMEOUT = 10.0
"""Seconds. An engine answers between two steps, so a long step delays the answer."""


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
        self._watchdog = watchdog or Watchdog()
        self._restarts = Restarts(restarts or RestartPolicy())
        self._backlog = Backlog(limits or QueueLimits())
        self._poison = PoisonGuard()
        self._streams: dict[str, RequestStream] = {}
        self._late_aborts: list[Abort] = []
        self._questions: dict[int, asyncio.Future[StateReport]] = {}
        self._question_ids = itertools.count(1)
        self._status: EngineStatus = "starting"
        self._detail = "not started"
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._life: _Life | None = None
        self._retry_at = 0.0
        self._info: EngineInfo | None = None
        self._counters = EngineCounters()

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to supervise; the engine is not ready yet."""
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def ready(self) -> EngineInfo:
        """Wait until requests are taken. Raises StartError if that will not happen any more."""
        while self._status in ("starting", "restarting", "unresponsive"):
            await self._changed.wait()
        if self._status != "ready" or self._info is None:
            raise StartError(self._detail)
        return self._info

    async def stop(self) -> None:
        """End the engine and everything in flight. Leaves no process, socket or directory. Idempotent."""
        self._stopping.set()
        if self._supervisor is not None:
            await self._supervisor
        self._become("stopped", "stopped")

    # ---- EngineClient ------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo | None:
        return self._info

    @property
    def counters(self) -> EngineCounters:
        return self._counters

    @property
    def health(self) -> EngineHealth:
        return EngineHealth(
            status=self._status,
            detail=self._detail,
            heartbeat_age=0.0 if self._life is None else self._life.vitals.age(time.monotonic()),
            pid=None if self._life is None else self._life.child.pid,
            restarts=self._restarts.total,
        )

    @property
    def waiting_requests(self) -> int:
        """Submitted and not yet started by the engine."""
        return len(self._backlog)

    @property
    def waiting_tokens(self) -> int:
        return self._backlog.tokens

    def submit(self, request: GenerationRequest) -> RequestStream:
        now = time.monotonic()
        child = self._ready_child(now)
        self._check(request)
        if request.request_id in self._streams:
            raise BadRequest(f"request id {request.request_id} is in use")
        if self._poison.refuses(request, now):
            raise BadRequest(
                f"request {request.request_id} is refused: the engine crashed twice while it computed this content"
            )
        self._backlog.check_room(request, now)
        try:
            sent = child.send(Submit(request))
        except ChannelError as error:
            raise BadRequest(str(error)) from error
        if not sent:
            raise QueueFull("the engine is too far behind", retry_after=self._backlog.retry_after(now))
        stream = RequestStream(request, self._abort)
        self._streams[request.request_id] = stream
        self._backlog.add(request)
        return stream

    def _check(self, request: GenerationRequest) -> None:
        if self._info is not None:  # always, once ready
            check_request(request, vocab_size=self._info.vocab_size, max_model_len=self._info.max_model_len)

    async def state(self) -> StateReport:
        child = self._ready_child(time.monotonic())
        query_id = next(self._question_ids)
        answer: asyncio.Future[StateReport] = asyncio.get_running_loop().create_future()
        self._questions[query_id] = answer
        try:
            if not child.send(AskState(query_id)):
                raise EngineUnavailable("the engine is too far behind", retry_after=1.0)
            return await asyncio.wait_for(answer, STATE_TIMEOUT)
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

    def flush(self) -> None:
        self._command(Flush())

    def _command(self, message: ToEngine) -> None:
        if not self._ready_child(time.monotonic()).send(message):
            raise EngineUnavailable("the engine is too far behind", retry_after=1.0)

    def _ready_child(self, now: float) -> Child:
        if self._status != "ready" or self._life is None:
            soonest = LONGEST_RETRY if self._status == "failed" else 1.0
            raise EngineUnavailable(
                f"the engine is {self._status}: {self._detail}",
                retry_after=max(soonest, self._retry_at - now),
            )
        return self._life.child

    def _abort(self, request_id: str, index: int | None) -> None:
        if index is None:
            self._streams.pop(request_id, None)
            self._backlog.remove(request_id)
        abort = Abort((request_id,), index)
        if self._life is not None and not self._life.child.send(abort):
            # At most one for each request or choice the engine was given, and it takes no more of those meanwhile.
            self._late_aborts.append(abort)

    # ---- what the engine says ----------------------------------------------------------------------------------------

    def _on_message(self, message: ToClient) -> None:
        match message:
            case StepOutput():
                self._on_step(message)
            case StateReport():
                answer = self._questions.get(message.query_id)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case EngineInfo():
                self._on_ready(message)
            case StartFailed():
                if self._life is not None:
                    self._life.start_failed = message

    def _on_step(self, output: StepOutput) -> None:
        self._counters = output.counters
        streams = self._streams
        if output.started:
            now = time.monotonic()
            for started in output.started:
                self._backlog.start(started.request_id, now)
                if (stream := streams.get(started.request_id)) is not None:
                    stream.push(started)
        for delta in output.deltas:
            stream = streams.get(delta.request_id)
            if stream is None:
                continue  # it crossed an abort on its way
            stream.push(delta)
            if delta.finish is not None and stream.done:
                del streams[delta.request_id]
                self._poison.finished(stream.request)
        for failed in output.failed:
            self._backlog.remove(failed.request_id)
            if (stream := streams.pop(failed.request_id, None)) is not None:
                stream.fail_from(failed)

    def _on_ready(self, info: EngineInfo) -> None:
        self._info = info
        if self._life is not None:
            self._life.vitals.ready(time.monotonic())
        self._counters = EngineCounters()
        self._become("ready", f"ready after {info.load_seconds:.2f} s of loading")

    def _on_beat(self, beat: Beat) -> None:
        if self._life is not None:
            self._life.vitals.beat(beat, time.monotonic())

    # ---- supervision -------------------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        try:
            while (death := await self._live_once()) is not None:
                delay = self._restarts.crashed(time.monotonic())
                if death.permanent or delay is None:
                    self._become("failed", self._why_given_up(death))
                    return
                self._retry_at = time.monotonic() + delay + 1.0
                self._become("restarting", death.reason)
                await self._pause(delay)
        except Exception:
            log.exception("the supervisor of the engine ended")
            self._become("failed", "the supervisor of the engine ended by a bug; see the log")

    def _why_given_up(self, death: _Death) -> str:
        if death.permanent:
            return death.reason
        return f"given up after {self._restarts.total} crashes; the last: {death.reason}"

    async def _live_once(self) -> _Death | None:
        """One child from spawn to burial, and why it ended; None if we are stopping."""
        if self._stopping.is_set():
            return None
        vitals = Vitals(self._watchdog, time.monotonic())
        try:
            child = await Child.spawn(self._config, on_message=self._on_message, on_beat=self._on_beat)
        except (OSError, ChannelError) as error:
            return _Death(f"cannot start the engine process: {error}")
        log.info("engine process %d started", child.pid)
        self._life = life = _Life(child, vitals)
        try:
            lost = await self._watch(life)
            if lost is None:
                await self._ask_to_end(child)
            else:
                self._status, self._detail = "restarting", lost  # taken up, and logged, when more is known
        finally:
            self._life = None
            self._late_aborts.clear()
            batch = [s.request for s in self._streams.values() if s.request.request_id not in self._backlog]
            self._fail_streams("the engine is shutting down" if self._stopping.is_set() else DIED)
            returncode = await child.bury()
        if lost is None:
            return None
        if life.start_failed is not None:
            return _Death(life.start_failed.message, permanent=life.start_failed.permanent)
        if lost is DIED:
            lost = f"{DIED} ({describe_exit(returncode)})"
            # Nothing inside a process sends it SIGKILL: whoever did, it says nothing about the requests.
            to_blame = returncode != -signal.SIGKILL
        else:
            to_blame = vitals.stuck
        if to_blame:
            self._poison.crashed(batch, time.monotonic())
        return _Death(lost)

    async def _watch(self, life: _Life) -> str | None:
        """Until the child dies or must be killed, and why; None when we are to stop."""
        child, vitals = life.child, life.vitals
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                await asyncio.wait(
                    (child.died, stopping), timeout=INTERVAL, return_when=asyncio.FIRST_COMPLETED
                )
                if stopping.done():
                    return None
                if life.start_failed is not None:
                    return life.start_failed.message
                if child.died.done():
                    return DIED
                child.read_beats()  # if our own loop was late, they are there unread
                now = time.monotonic()
                lost = vitals.lost(now)
                if lost is not None:
                    return lost
                self._judge_lateness(vitals, now)
                self._resend_aborts(child)
        finally:
            stopping.cancel()

    def _judge_lateness(self, vitals: Vitals, now: float) -> None:
        late = vitals.late(now)
        if late and self._status == "ready":
            self._become("unresponsive", f"no heartbeat for {vitals.age(now):.1f} s")
        elif not late and self._status == "unresponsive":
            self._become("ready", "the heartbeat is back")

    def _resend_aborts(self, child: Child) -> None:
        while self._late_aborts and child.send(self._late_aborts[-1]):
            self._late_aborts.pop()

    async def _ask_to_end(self, child: Child) -> None:
        if child.send(Shutdown()):
            await asyncio.wait((child.died,), timeout=self._watchdog.stop_timeout)

    def _fail_streams(self, message: str) -> None:
        streams, self._streams = self._streams, {}
        self._backlog.clear()
        for stream in streams.values():
            stream.fail(EngineDied(message))
        for question in self._questions.values():
            if not question.done():
                question.set_exception(EngineUnavailable(message, retry_after=1.0))

    async def _pause(self, delay: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay)

    def _become(self, status: EngineStatus, detail: str) -> None:
        if (status, detail) == (self._status, self._detail):
            return
        log.log(
            logging.INFO if status in ("ready", "stopped") else logging.ERROR,
            "engine %s: %s",
            status,
            detail,
        )
        self._status, self._detail = status, detail
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(slots=True)
class _Life:
    child: Child
    vitals: Vitals
    start_failed: StartFailed | None = None


@dataclass(frozen=True, slots=True)
class _Death:
    """Of an engine process. `permanent`: another start would end the same way."""

    reason: str
    permanent: bool = False

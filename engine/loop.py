"""The engine behind a socket: receive, plan, run, commit, send, until told to stop."""

from __future__ import annotations

import logging
import resource
import time
from collections import deque
from pathlib import Path

from msgspec import structs

from .channel import Channel
from .core import Engine
from .errors import BadRequest, ChannelError
from .heartbeat import Phase, Progress
from .request import (
    Abort,
    AskCache,
    AskEntry,
    AskState,
    CacheQuestion,
    CheckGrammar,
    ExportPages,
    FlushCache,
    ImportPages,
    LeaseTip,
    LookUp,
    RequestFailed,
    SetFailpoint,
    SetLimits,
    Shutdown,
    StateReport,
    StepOutput,
    Submit,
    ToClient,
    ToEngine,
)

log = logging.getLogger(__name__)

UNREAD = 0.02
"""Seconds until a client that does not read is asked again."""


class EngineLoop:
    """For the engine process's main thread. Never waits long: a client that does not read makes it pause, not block."""

    def __init__(self, engine: Engine, channel: Channel[ToClient, ToEngine], progress: Progress) -> None:
        self._engine = engine
        self._channel = channel
        self._progress = progress
        self._unsent: deque[ToClient] = deque()
        self._started = time.monotonic()

    def run(self) -> None:
        """Serve until a Shutdown arrives."""
        engine, progress = self._engine, self._progress
        while True:
            progress.enter(Phase.SENDING)
            if not self._send():
                continue  # nothing is taken in and no step is made before the client has read what there is
            progress.enter(Phase.RECEIVING)
            if not self._receive():
                return
            progress.enter(Phase.PLANNING)
            plan = engine.plan()
            self._collect_news()
            self._send()  # who was admitted hears of it before a step that may be long
            if plan is None:
                self._rest()
                continue
            progress.enter(Phase.RUNNING)
            result = engine.run(plan)
            progress.enter(Phase.COMMITTING)
            engine.commit(plan, result)
            self._collect_news()
            progress.steps += 1

    def _receive(self) -> bool:
        """Take in everything that has arrived; False if that was the end."""
        while (message := self._channel.receive()) is not None:
            match message:
                case Submit():
                    self._engine.submit(message.request)
                case Abort():
                    for request_id in message.request_ids:
                        self._engine.abort(request_id, message.index)
                case AskState():
                    self._unsent.append(self._report(message.query_id))
                case CheckGrammar():
                    self._engine.check_grammar(message.query_id, message.grammar)
                case FlushCache() | LookUp() | AskEntry() | AskCache() | SetLimits():
                    self._ask(message)
                case ExportPages() | ImportPages():
                    self._ask(message)
                case LeaseTip():
                    self._engine.lease_tip(message.request_id, message.lease)
                case SetFailpoint():
                    self._set_failpoint(message.spec)
                case Shutdown():
                    return False
        return True

    def _ask(self, question: CacheQuestion) -> None:
        try:
            self._engine.ask(question)
        except Exception:
            log.exception("a question about the cache has no answer")

    def _rest(self) -> None:
        """With nothing to compute: until somebody wants something."""
        if self._unsent:
            return
        if self._engine.idle:
            self._progress.enter(Phase.IDLE)
        self._channel.wait(self._engine.rest, self._engine.wakeup.fileno())

    def _collect_news(self) -> None:
        news = self._engine.take_news()
        if news is not None:
            self._unsent.append(news)
        self._unsent.extend(self._engine.take_reports())

    def _send(self) -> bool:
        """Send what there is to say; False, after a short wait, if the client does not read."""
        while self._unsent:
            try:
                sent = self._channel.send(self._unsent[0])
            except ChannelError:
                self._take_apart(self._unsent.popleft())
                continue
            if not sent:
                self._channel.wait_writable(UNREAD)
                return False
            self._unsent.popleft()
        return True

    def _take_apart(self, overlong: ToClient) -> None:
        """A frame was too large: a frame for each delta, and an error in place of one that is too large by itself."""
        if not isinstance(overlong, StepOutput):
            raise TypeError(f"{type(overlong).__name__} is too large for a frame")
        parts: list[StepOutput] = []
        if overlong.started or overlong.failed or overlong.ready or overlong.cached:
            parts.append(structs.replace(overlong, deltas=(), ended=()))
        if len(overlong.deltas) == 1:
            request_id = overlong.deltas[0].request_id
            self._engine.abort(request_id)
            failed = RequestFailed(
                request_id, "engine_error", "the log-probabilities of this answer are too large"
            )
            parts.append(StepOutput((), (), (failed,), overlong.counters))
        else:
            parts += [StepOutput((delta,), (), (), overlong.counters) for delta in overlong.deltas]
        if overlong.ended:
            parts.append(StepOutput((), (), (), overlong.counters, ended=overlong.ended))
        self._unsent.extendleft(reversed(parts))

    def _set_failpoint(self, spec: str) -> None:
        try:
            self._engine.set_failpoint(spec)
        except BadRequest as error:
            log.warning("%s", error)

    def _report(self, query_id: int) -> StateReport:
        census = self._engine.census()
        return StateReport(
            query_id=query_id,
            counters=census.counters,
            pages_held=census.pages_held,
            tree_nodes=census.tree_nodes,
            tree_tokens=census.tree_tokens,
            namespaces=census.namespaces,
            phase="running" if self._engine.has_work else "idle",
            uptime=time.monotonic() - self._started,
            rss_bytes=_resident_bytes(),
            failpoints=self._engine.failpoints,
        )


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])  # proc(5)
    return pages * resource.getpagesize()

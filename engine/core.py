"""Scheduler and runner put together: what an engine is, whichever door the requests come through.

Both doors, the socket (`loop`) and the library (`llm`), do the same five things with it: submit, plan, run, commit,
take the news. Exceptions end the requests they concern here and go no further, with one exception: a scheduler that
cannot plan is beyond repair, and its process is better started anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal

from msgspec import structs

from cache.lease import Lease, Tier
from grammar.compiler import Compilation
from grammar.errors import BadGrammar, CompilerUnavailable, GrammarError, TooComplex
from grammar.spec import Grammar
from grammar.vocabulary import Vocabulary

from .account import never_queued
from .batch import Masks, Plan, PlannedRow, RowResult, Runner, RunnerInfo, StepResult
from .cache_desk import CacheDesk
from .calibration import Calibration
from .compilations import Compilations, MakeCompiler
from .errors import BadRequest
from .failpoints import Failpoints
from .matchers import Matchers
from .page_moves import PageMoves
from .prepare import check_request
from .request import (
    CacheAnswer,
    CacheQuestion,
    EngineCounters,
    FailureKind,
    GenerationRequest,
    GrammarCounters,
    GrammarReady,
    GrammarReport,
    RequestFailed,
    StepOutput,
)
from .runaway import RunawayGuard
from .scheduler import Scheduler
from .throttled_log import ThrottledLog
from .totals import Census
from .wakeup import Wakeup

_log = logging.getLogger(__name__)

MASK_THREADS = 2
"""So that a grammar which takes long about a mask does not keep those of the others from being filled."""

STALLED = 0.02
"""Seconds until a scheduler that has work but can plan none is asked again."""

Need = Literal["grammar", "disk"]
"""What a request may be held for: until its grammar is compiled, until its pages are read."""

QUEUING_FAILED = "the engine failed to queue this request"


class Engine:
    """For one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        desk: CacheDesk,
        moves: PageMoves,
        *,
        wakeup: Wakeup,
        vocabulary: Vocabulary,
        compiler: MakeCompiler,
        calibration: Calibration,
        forced_tokens: bool = True,
        end_runaways: bool = True,
        failpoints: Failpoints | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wakeup` is set by whoever has something that the next plan or the next news will have. `clock` is the scheduler's,
        who asks `calibration` what the steps that are measured here cost. The engine closes
        the compiler that it makes."""
        self._scheduler = scheduler
        self._runner = runner
        self._desk = desk
        self._moves = moves
        self._clock = clock
        self._failpoints = failpoints
        self._calibration = calibration
        self._threads = ThreadPoolExecutor(MASK_THREADS, thread_name_prefix="masks")
        guard = RunawayGuard.of(vocabulary) if end_runaways else None
        self._matchers = Matchers(self._threads, vocabulary, forces=forced_tokens, guard=guard, clock=clock)
        self.wakeup = wakeup
        self._compilations = Compilations(compiler(self.wakeup.set))
        self._needs: dict[str, set[Need]] = {}  # of held requests
        self._waited: dict[str, float] = {}  # for the disk, of those that still wait for something else
        self._refused: list[RequestFailed] = []
        self._ready: list[GrammarReady] = []
        self._reports: list[GrammarReport | CacheAnswer] = []
        self._log = ThrottledLog(_log, clock)

    @property
    def info(self) -> RunnerInfo:
        return self._runner.info

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together: what the model and the pages allow."""
        return self._scheduler.max_length

    @property
    def budgets(self) -> dict[Tier, int]:
        """Bytes that the tiers below the device may hold."""
        return self._moves.budgets

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def idle(self) -> bool:
        """Nothing can be planned before a client wants something or `wakeup` is set."""
        return self._scheduler.idle

    @property
    def rest(self) -> float | None:
        """With no plan to be had now: for how many seconds, if `wakeup` is not set before. None: for ever."""
        if self._reports or self._desk.busy:
            return 0.0  # what came with the plan that there is none of, or goes on with the next
        if not self._scheduler.idle:
            return STALLED
        dues = [due for due in (self._scheduler.next_deadline, self._moves.next_due) if due is not None]
        return max(min(dues) - self._clock(), 0.0) if dues else None

    def submit(self, request: GenerationRequest) -> None:
        """Take a request in. One that cannot be served is refused in the next news."""
        try:
            check_request(request, vocab_size=self.info.vocab_size, max_model_len=self.max_length)
            self._submit(request)
        except BadRequest as error:
            self._refuse(request, "bad_request", str(error))
        except Exception:  # noqa: BLE001 - whatever is wrong with this request, the others know nothing of it
            self._log.exception("a request could not be queued")
            if self._scheduler.serves(request.request_id):
                self._scheduler.fail_request(request.request_id, "engine_error", QUEUING_FAILED)
            else:
                self._refuse(request, "engine_error", QUEUING_FAILED)

    def _submit(self, request: GenerationRequest) -> None:
        needs: set[Need] = set() if request.grammar is None else {"grammar"}
        if not self._scheduler.serves(request.request_id) and self._moves.prefetch(request):
            needs.add("disk")
        if not self._scheduler.submit(request, held=bool(needs)):
            if "disk" in needs:
                self._moves.forget(request.request_id)
            return
        if needs:
            self._needs[request.request_id] = needs
        if request.grammar is not None:
            self._compilations.start(request.request_id, request.grammar)

    def check_grammar(self, query_id: int, grammar: Grammar) -> None:
        """Compile a grammar for nobody; what came of it is one of the next reports."""
        self._compilations.start(query_id, grammar)

    def abort(self, request_id: str, index: int | None = None) -> None:
        self._scheduler.abort(request_id, index)

    def ask(self, question: CacheQuestion) -> None:
        """Answered in one of the next reports. Raises what only a bug of ours can raise; there is no answer then."""
        answer = self._desk.answer(question)
        self._reports += self._desk.work() if answer is None else [answer]

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        self._scheduler.lease_tip(request_id, lease)

    def plan(self) -> Plan | None:
        self.wakeup.clear()
        self._take_compiled()
        for request_id, waited in self._moves.take():
            self._waited[request_id] = waited
            self._meet(request_id, "disk")
        self._reports += [*self._desk.work(), *self._moves.take_reports()]
        plan = self._scheduler.plan()
        if plan is None and self._moves.save_now():
            self.wakeup.set()  # there may be more, and what was saved may go on to disk
        return plan

    def run(self, plan: Plan) -> StepResult:
        """Carry a plan out. Rows of requests that make the runner raise come back as errors; the others are computed."""
        saved = self._moves.save(plan)
        masks = self._matchers.start(plan)
        began = self._clock()
        try:
            result = self._runner.run(plan, masks)
            self._calibration.measured(plan, self._clock() - began)
        except Exception:  # noqa: BLE001 - a runner may fail in any way
            self._log.exception("step %d failed", plan.step)
            result = self._run_one_by_one(plan, masks)
        result = self._matchers.advance(plan, result)
        return result if saved else replace(result, saved=False)

    def commit(self, plan: Plan, result: StepResult) -> None:
        try:
            self._scheduler.commit(plan, result)
        except Exception:  # noqa: BLE001 - our own bug; the requests of this step pay for it, no others
            self._log.exception("step %d could not be committed", plan.step)
            self._scheduler.fail_step(plan, "the engine failed in this step")

    def take_news(self) -> StepOutput | None:
        """What clients have to hear since the last time, None if nothing."""
        events = self._scheduler.take_events()
        failed = (*self._refused, *events.failed)
        ready = tuple(self._ready)
        ended = (*(never_queued(refused.request_id) for refused in self._refused), *events.ended)
        self._refused.clear()
        self._ready.clear()
        if not (events.deltas or events.started or failed or ready or ended):
            return None
        for started in events.started:
            self._moves.forget(started.request_id)
        for account in events.ended:
            if not self._scheduler.serves(account.request_id):  # its id may have come again
                self._compilations.drop(account.request_id)
                self._matchers.forget(account.request_id)
                self._moves.forget(account.request_id)
                self._needs.pop(account.request_id, None)
                self._waited.pop(account.request_id, None)
        counters = self._counted(self._scheduler.counters())
        return StepOutput(events.deltas, events.started, failed, counters, ready, events.cached, ended)

    def take_reports(self) -> tuple[GrammarReport | CacheAnswer, ...]:
        """Answers to `check_grammar` and `ask` since the last time."""
        reports = tuple(self._reports)
        self._reports.clear()
        return reports

    def census(self) -> Census:
        census = self._scheduler.census()
        return replace(census, counters=self._counted(census.counters))

    def prewarm(self) -> None:
        """Begin to start, in the background, what the first grammar would wait for."""
        self._compilations.prewarm()

    def close(self) -> None:
        """Write to disk what is worth it, for a few seconds at most, and end the threads and whatever compiles. Requests that
        are left end with the process, or never."""
        self._moves.stop()
        self._moves.close()
        self._compilations.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.wakeup.close()

    @property
    def failpoints(self) -> tuple[str, ...]:
        """What is armed."""
        return () if self._failpoints is None else self._failpoints.armed

    def set_failpoint(self, spec: str) -> None:
        """Raises BadRequest outside test mode and for a spec that is none."""
        if self._failpoints is None:
            raise BadRequest("failpoints exist in test mode only")
        self._failpoints.set(spec)

    def _refuse(self, request: GenerationRequest, kind: FailureKind, message: str) -> None:
        self._refused.append(RequestFailed(request.request_id, kind, message))

    def _take_compiled(self) -> None:
        for purpose, result in self._compilations.take():
            if isinstance(purpose, int):
                self._reports.append(_report(purpose, result))
            elif isinstance(result, BaseException):
                if not isinstance(result, GrammarError):
                    _log.error("a grammar could not be compiled", exc_info=result)
                self._scheduler.fail_request(purpose, *_failure(result))
            elif self._scheduler.serves(purpose):
                self._matchers.follow(purpose, result.compiled)
                self._ready.append(_ready(purpose, result))
                self._meet(purpose, "grammar")

    def _meet(self, request_id: str, need: Need) -> None:
        """A held request has one thing less to wait for. One that has ended has none."""
        needs = self._needs.get(request_id)
        if needs is None:
            return
        needs.discard(need)
        if not needs:
            del self._needs[request_id]
            self._scheduler.release(request_id, waited=self._waited.pop(request_id, 0.0))

    def _counted(self, counters: EngineCounters) -> EngineCounters:
        """With what grammars did."""
        compilations, matchers = self._compilations, self._matchers
        grammars = GrammarCounters(
            compiling=sum("grammar" in needs for needs in self._needs.values()),
            compiled=compilations.compiled,
            cached=compilations.cached,
            refused=compilations.refused,
            masked_rows=matchers.masked,
            postponed_rows=matchers.postponed,
            failed_rows=matchers.failed,
            restrained_rows=matchers.restrained,
        )
        return structs.replace(counters, grammars=grammars)

    def _run_one_by_one(self, plan: Plan, masks: Masks) -> StepResult:
        """Find out whose fault it was: run each request of a lost step alone, once.

        A run changes nothing that a second run would not change in the same way, so the failed one left no trace.
        """
        parts: dict[str, list[PlannedRow]] = {}
        for row in plan.rows:
            parts.setdefault(row.sequence.request.request_id, []).append(row)
        results: dict[int, RowResult] = {}  # by the sequence's uid
        for rows in parts.values():
            part = plan if len(parts) == 1 else _part_of(plan, tuple(rows))
            results.update(zip((row.sequence.uid for row in rows), self._run_part(part, masks), strict=True))
        return StepResult(tuple(results[row.sequence.uid] for row in plan.rows))

    def _run_part(self, part: Plan, masks: Masks) -> tuple[RowResult, ...]:
        try:
            return self._runner.run(part, masks).rows
        except Exception:  # noqa: BLE001 - as in `run`
            request_id = part.rows[0].sequence.request.request_id
            self._log.exception("step %d failed for request %s alone", part.step, request_id)
            return (RowResult(error="the engine failed while computing this request"),) * len(part.rows)


def _ready(request_id: str, result: Compilation) -> GrammarReady:
    seconds = 0.0 if result.cached else result.seconds
    return GrammarReady(request_id, result.compiled.backend, seconds, result.compiled.nbytes)


def _report(query_id: int, result: Compilation | BaseException) -> GrammarReport:
    if isinstance(result, BaseException):
        kind, message = _failure(result)
        return GrammarReport(query_id=query_id, kind=kind, error=message)
    compiled = result.compiled
    return GrammarReport(
        query_id=query_id,
        backend=compiled.backend,
        seconds=result.seconds,
        nbytes=compiled.nbytes,
        cached=result.cached,
    )


def _failure(error: BaseException) -> tuple[FailureKind, str]:
    match error:
        case TooComplex():
            return "grammar_too_complex", str(error)
        case BadGrammar():
            return "bad_grammar", str(error)
        case CompilerUnavailable():
            return "unavailable", str(error)
        case GrammarError():
            return "engine_error", str(error)
        case _:
            return "engine_error", "the engine failed to compile the grammar"


def _part_of(plan: Plan, rows: tuple[PlannedRow, ...]) -> Plan:
    """The same step for some of its rows, with the copies into their pages.

    What is retired may be named again, but not a sequence that another part has just brought back.
    """
    pages = {page for row in rows for page in row.sequence.pages}
    copies = tuple(copy for copy in plan.copies if copy.dst in pages)
    loads = tuple(load for load in plan.loads if load.page in pages)
    elsewhere = {row.sequence.uid for row in plan.rows} - {row.sequence.uid for row in rows}
    retired = tuple(uid for uid in plan.retired if uid not in elsewhere)
    return Plan(plan.step, rows, copies, retired, loads=loads)

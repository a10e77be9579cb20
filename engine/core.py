"""Scheduler and runner put together: what an engine is, whichever door the requests come through.

Both doors, the socket (`loop`) and the library (`llm`), do the same five things with it: submit, plan, run, commit,
take the news. Exceptions end the requests they concern here and go no further, with one exception: a scheduler that
cannot plan is beyond repair, and its process is better started anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .batch import NO_MASKS, Plan, PlannedRow, RowResult, Runner, RunnerInfo, StepResult
from .errors import BadRequest
from .failpoints import Failpoints
from .prepare import check_request
from .request import FailureKind, GenerationRequest, RequestFailed, StepOutput
from .scheduler import Scheduler
from .throttled_log import ThrottledLog
from .totals import Census

_log = logging.getLogger(__name__)


class Engine:
    """For one thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        failpoints: Failpoints | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._failpoints = failpoints
        self._refused: list[RequestFailed] = []
        self._log = ThrottledLog(_log, clock)

    @property
    def info(self) -> RunnerInfo:
        return self._runner.info

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together: what the model and the pages allow."""
        return self._scheduler.max_length

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def submit(self, request: GenerationRequest) -> None:
        """Take a request in. One that cannot be served is refused in the next news."""
        try:
            check_request(request, vocab_size=self.info.vocab_size, max_model_len=self.max_length)
            self._scheduler.submit(request)
        except BadRequest as error:
            self._refuse(request, "bad_request", str(error))
        except Exception:  # noqa: BLE001 - whatever is wrong with this request, the others know nothing of it
            self._log.exception("a request could not be queued")
            self._refuse(request, "engine_error", "the engine failed to queue this request")

    def abort(self, request_id: str, index: int | None = None) -> None:
        self._scheduler.abort(request_id, index)

    def flush(self) -> None:
        self._scheduler.flush()

    def plan(self) -> Plan | None:
        return self._scheduler.plan()

    def run(self, plan: Plan) -> StepResult:
        """Carry a plan out. Rows of requests that make the runner raise come back as errors; the others are computed."""
        try:
            return self._runner.run(plan, NO_MASKS)
        except Exception:  # noqa: BLE001 - a runner may fail in any way
            self._log.exception("step %d failed", plan.step)
        return self._run_one_by_one(plan)

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
        self._refused.clear()
        if not (events.deltas or events.started or failed):
            return None
        return StepOutput(events.deltas, events.started, failed, self._scheduler.counters())

    def census(self) -> Census:
        return self._scheduler.census()

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

    def _run_one_by_one(self, plan: Plan) -> StepResult:
        """Find out whose fault it was: run each request of a lost step alone, once.

        A run changes nothing that a second run would not change in the same way, so the failed one left no trace.
        """
        parts: dict[str, list[PlannedRow]] = {}
        for row in plan.rows:
            parts.setdefault(row.sequence.request.request_id, []).append(row)
        results: dict[int, RowResult] = {}  # by the sequence's uid
        for rows in parts.values():
            part = plan if len(parts) == 1 else _part_of(plan, tuple(rows))
            results.update(zip((row.sequence.uid for row in rows), self._run_part(part), strict=True))
        return StepResult(tuple(results[row.sequence.uid] for row in plan.rows))

    def _run_part(self, part: Plan) -> tuple[RowResult, ...]:
        try:
            return self._runner.run(part, NO_MASKS).rows
        except Exception:  # noqa: BLE001 - as in `run`
            request_id = part.rows[0].sequence.request.request_id
            self._log.exception("step %d failed for request %s alone", part.step, request_id)
            return (RowResult(error="the engine failed while computing this request"),) * len(part.rows)


def _part_of(plan: Plan, rows: tuple[PlannedRow, ...]) -> Plan:
    """The same step for some of its rows, with the copies into their pages.

    What is retired may be named again, but not a sequence that another part has just brought back.
    """
    pages = {page for row in rows for page in row.sequence.pages}
    copies = tuple(copy for copy in plan.copies if copy.dst in pages)
    elsewhere = {row.sequence.uid for row in plan.rows} - {row.sequence.uid for row in rows}
    return Plan(plan.step, rows, copies, tuple(uid for uid in plan.retired if uid not in elsewhere))

"""Named faults, for tests only: an engine that was not started in test mode has none of this.

    forward_raises=K        the K-th step from now raises, however its rows are run
    row_raises=K            the K-th step raises whenever the first request of it is among its rows
    nan_logits=K            the first row of the K-th step comes back as a runner reports logits that are not finite
    slow_step=K:SECONDS     the K-th step takes that much longer
    freeze=K                the process stops itself (SIGSTOP) before the K-th step
    crash=K                 the process aborts (SIGABRT) before the K-th step
    alloc_fails=N           the next N page allocations fail
    disk_fails=N            the next N reads and writes of cached pages on disk fail
    off                     disarm all

The first three take `K:every` for every K-th step. A step counts once, however often it is run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from .batch import Masks, PageMemory, Plan, RowResult, Runner, RunnerInfo, StepResult
from .errors import BadRequest

OFF = "off"
NOT_FINITE = "the model gave logits that are not finite"
_REPEATABLE = ("forward_raises", "row_raises", "nan_logits")
_ONCE = ("freeze", "crash")
LONGEST_STEP = 3600.0


@dataclass(frozen=True, slots=True)
class Failpoint:
    """`number` is K or N above, `seconds` a slow step's delay."""

    spec: str
    name: str
    number: int
    every: bool = False
    seconds: float = 0.0


def check_failpoint(spec: str) -> None:
    """Raises BadRequest if it could not be set in test mode."""
    if spec != OFF:
        parse_failpoint(spec)


def parse_failpoint(spec: str) -> Failpoint:
    """Raises BadRequest that says what is wrong with it."""
    name, _, value = spec.partition("=")
    number, _, extra = value.partition(":")
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:12]) < 10**9):
        raise BadRequest(f"failpoint {spec!r} is not NAME=NUMBER with a number from 1")
    if name == "slow_step":
        return Failpoint(spec, name, int(number), seconds=_seconds(spec, extra))
    if name in _REPEATABLE and extra in ("", "every"):
        return Failpoint(spec, name, int(number), every=bool(extra))
    if name in (*_ONCE, "alloc_fails", "disk_fails") and not extra:
        return Failpoint(spec, name, int(number))
    raise BadRequest(f"there is no failpoint {spec!r}")


def _seconds(spec: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= LONGEST_STEP:
        raise BadRequest(f"failpoint {spec!r} needs seconds up to {LONGEST_STEP:g} after its step")
    return seconds


class Failpoints:
    """What is armed. `deny_pages(n)` makes the next n page allocations fail, `deny_disk(n)` as many reads and writes."""

    def __init__(
        self, deny_pages: Callable[[int], None], deny_disk: Callable[[int], None] = lambda count: None
    ) -> None:
        self._deny_pages = deny_pages
        self._deny_disk = deny_disk
        self._armed: list[tuple[Failpoint, int]] = []  # with the step it was armed before
        self._step = 0
        self._due: tuple[Failpoint, ...] = ()

    @property
    def armed(self) -> tuple[str, ...]:
        return tuple(failpoint.spec for failpoint, _ in self._armed)

    def set(self, spec: str) -> None:
        """Raises BadRequest for a spec that is none."""
        if spec == OFF:
            self._armed.clear()
            self._deny_pages(0)
            self._deny_disk(0)
            return
        failpoint = parse_failpoint(spec)
        if failpoint.name == "alloc_fails":
            self._deny_pages(failpoint.number)
        elif failpoint.name == "disk_fails":
            self._deny_disk(failpoint.number)
        else:
            self._armed.append((failpoint, self._step))

    def due(self, step: int) -> tuple[Failpoint, ...]:
        """What strikes at this step. The same answer again for the same step."""
        if step != self._step:
            self._step = step
            self._due = tuple(f for f, since in self._armed if _strikes(f, step - since))
            self._armed = [(f, since) for f, since in self._armed if f.every or f not in self._due]
        return self._due


def _strikes(failpoint: Failpoint, age: int) -> bool:
    return age % failpoint.number == 0 if failpoint.every else age == failpoint.number


class FaultyRunner:
    """A runner with the armed faults in its way."""

    def __init__(self, runner: Runner, failpoints: Failpoints) -> None:
        self._runner = runner
        self._failpoints = failpoints
        self._victim: tuple[int, str] = (0, "")  # of `row_raises`: the step and the request

    @property
    def info(self) -> RunnerInfo:
        return self._runner.info

    @property
    def memory(self) -> PageMemory:
        return self._runner.memory

    def run(self, plan: Plan, masks: Masks) -> StepResult:
        due = self._failpoints.due(plan.step)
        for failpoint in due:
            self._strike(failpoint, plan)
        result = self._runner.run(plan, masks)
        if any(failpoint.name == "nan_logits" for failpoint in due):
            return StepResult((RowResult(error=NOT_FINITE), *result.rows[1:]))
        return result

    def _strike(self, failpoint: Failpoint, plan: Plan) -> None:
        match failpoint.name:
            case "slow_step":
                time.sleep(failpoint.seconds)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "crash":
                os.abort()
            case "forward_raises":
                raise InjectedFault(failpoint.spec)
            case "row_raises":
                request_ids = [row.sequence.request.request_id for row in plan.rows]
                if self._victim[0] != plan.step:
                    self._victim = (plan.step, request_ids[0])
                if self._victim[1] in request_ids:
                    raise InjectedFault(failpoint.spec)


class InjectedFault(Exception):
    """What a failpoint raises. No EngineError: the engine must not be prepared for it."""

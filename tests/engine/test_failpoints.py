import pytest

from engine.batch import NO_MASKS, Masks, Plan, PlannedRow, RowResult, RunnerInfo, StepResult
from engine.errors import BadRequest
from engine.failpoints import NOT_FINITE, Failpoints, FaultyRunner, InjectedFault, parse_failpoint
from engine.request import GenerationRequest, SamplingParams
from engine.sequence import Sequence


class CountingRunner:
    """Gives every row the token 7 and counts its runs."""

    runs = 0

    @property
    def info(self) -> RunnerInfo:
        raise NotImplementedError

    def run(self, plan: Plan, masks: Masks) -> StepResult:
        self.runs += 1
        return StepResult((RowResult(token=7),) * len(plan.rows))


def plan(step: int, *request_ids: str) -> Plan:
    def row(uid: int, request_id: str) -> PlannedRow:
        request = GenerationRequest(request_id=request_id, prompt=[1], sampling=SamplingParams(max_tokens=1))
        return PlannedRow(Sequence(uid, request, 0, [1], 1, 0.0), 0, 1, sample=True)

    return Plan(step, tuple(row(uid, name) for uid, name in enumerate(request_ids)))


def raised_at(runner: FaultyRunner, steps: range) -> list[int]:
    raised = []
    for step in steps:
        try:
            runner.run(plan(step, "a"), NO_MASKS)
        except InjectedFault:
            raised.append(step)
    return raised


@pytest.fixture
def denied() -> list[int]:
    return []


@pytest.fixture
def failpoints(denied: list[int]) -> Failpoints:
    return Failpoints(denied.append)


@pytest.fixture
def runner(failpoints: Failpoints) -> FaultyRunner:
    return FaultyRunner(CountingRunner(), failpoints)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "forward_raises",
        "forward_raises=",
        "forward_raises=0",
        "forward_raises=-1",
        "forward_raises=1e3",
        "forward_raises=²",
        "forward_raises=99999999999999999999",
        "forward_raises=1:often",
        "slow_step=1",
        "slow_step=1:nan",
        "slow_step=1:inf",
        "slow_step=1:-1",
        "slow_step=1:99999",
        "crash=1:every",
        "alloc_fails=3:4",
        "disk_fails=3:4",
        "rm -rf=1",
    ],
)
def test_what_is_none_is_refused(spec: str, failpoints: Failpoints) -> None:
    with pytest.raises(BadRequest, match="failpoint"):
        parse_failpoint(spec)
    with pytest.raises(BadRequest):
        failpoints.set(spec)
    assert failpoints.armed == ()


def test_strikes_once_at_its_step(failpoints: Failpoints, runner: FaultyRunner) -> None:
    failpoints.set("forward_raises=3")
    assert failpoints.armed == ("forward_raises=3",)
    assert raised_at(runner, range(1, 10)) == [3]
    assert failpoints.armed == ()


def test_counts_from_when_it_was_armed_and_can_repeat(failpoints: Failpoints, runner: FaultyRunner) -> None:
    assert raised_at(runner, range(1, 11)) == []
    failpoints.set("forward_raises=2:every")
    assert raised_at(runner, range(11, 17)) == [12, 14, 16]
    failpoints.set("off")
    assert failpoints.armed == ()
    assert raised_at(runner, range(17, 20)) == []


def test_a_step_raises_however_often_it_is_run(failpoints: Failpoints, runner: FaultyRunner) -> None:
    failpoints.set("forward_raises=1")
    assert raised_at(runner, range(1, 2)) == [1]
    assert raised_at(runner, range(1, 2)) == [1]
    assert raised_at(runner, range(2, 3)) == []


def test_one_row_poisons_every_run_it_is_in(failpoints: Failpoints, runner: FaultyRunner) -> None:
    failpoints.set("row_raises=1")
    for names in (("a", "b", "c"), ("a",), ("b", "a")):
        with pytest.raises(InjectedFault):
            runner.run(plan(1, *names), NO_MASKS)
    assert runner.run(plan(1, "b", "c"), NO_MASKS).rows == (RowResult(token=7),) * 2
    assert runner.run(plan(2, "a"), NO_MASKS).rows == (RowResult(token=7),)


def test_a_row_that_is_not_finite(failpoints: Failpoints, runner: FaultyRunner) -> None:
    failpoints.set("nan_logits=1")
    assert runner.run(plan(1, "a", "b"), NO_MASKS).rows == (RowResult(error=NOT_FINITE), RowResult(token=7))


def test_a_slow_step_sleeps(
    failpoints: Failpoints, runner: FaultyRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("engine.failpoints.time.sleep", slept.append)
    failpoints.set("slow_step=2:1.5")
    raised_at(runner, range(1, 4))
    assert slept == [1.5]


def test_allocations_fail_through_the_pool(failpoints: Failpoints, denied: list[int]) -> None:
    failpoints.set("alloc_fails=4")
    assert denied == [4]
    assert failpoints.armed == ()

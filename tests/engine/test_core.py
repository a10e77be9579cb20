import logging
from dataclasses import dataclass, field

import pytest

from cache.lease import TenantLimits
from engine.assemble import assemble
from engine.batch import Masks, PageCopy, Plan, PlannedRow, RunnerInfo, StepResult
from engine.config import EngineConfig, HashModelConfig
from engine.core import Engine, _part_of
from engine.errors import StartError
from engine.hash_model import HashRunner, reference
from engine.request import FinishReason, GenerationRequest, RequestFailed, SamplingParams
from engine.sequence import Sequence

CONFIG = EngineConfig(
    hash_model=HashModelConfig(), pages=64, page_size=4, max_running=16, max_step_tokens=32, test_mode=True
)
SHARED = list(range(40, 60))


def request(name: str, *, max_tokens: int = 12, n: int = 1, seed: int = 0) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt=[*SHARED, *name.encode()],
        sampling=SamplingParams(max_tokens=max_tokens, seed=seed),
        n=n,
    )


def expected(one: GenerationRequest, index: int = 0) -> list[int]:
    return reference(one.prompt, one.sampling, index)


@dataclass
class Outcome:
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    finished: dict[tuple[str, int], FinishReason] = field(default_factory=dict)
    failed: dict[str, RequestFailed] = field(default_factory=dict)


def serve(engine: Engine, *requests: GenerationRequest) -> Outcome:
    for one in requests:
        engine.submit(one)
    outcome = Outcome()
    for _ in range(1000):
        plan = engine.plan()
        if plan is not None:
            engine.commit(plan, engine.run(plan))
        news = engine.take_news()
        for delta in () if news is None else news.deltas:
            key = delta.request_id, delta.index
            outcome.tokens.setdefault(key, []).extend(delta.tokens)
            if delta.finish is not None:
                outcome.finished[key] = delta.finish
        for failed in () if news is None else news.failed:
            assert failed.request_id not in outcome.failed, "failed twice"
            outcome.failed[failed.request_id] = failed
        if not engine.has_work:
            return outcome
    raise AssertionError("the engine did not come to rest")


class PoisonedRunner:
    """The hash model, but a step with one of the `poisonous` requests in it raises, after doing its work."""

    def __init__(self, *poisonous: str) -> None:
        self._inner = HashRunner(CONFIG)
        self._poisonous = set(poisonous)
        self.failures = 0

    @property
    def info(self) -> RunnerInfo:
        return self._inner.info

    def run(self, plan: Plan, masks: Masks) -> StepResult:
        result = self._inner.run(plan, masks)
        if any(row.sequence.request.request_id in self._poisonous for row in plan.rows):
            self.failures += 1
            raise ZeroDivisionError("integer division or modulo by zero")
        return result


def poisoned(engine: Engine, *poisonous: str) -> PoisonedRunner:
    engine._runner = runner = PoisonedRunner(*poisonous)
    return runner


@pytest.fixture
def engine() -> Engine:
    return assemble(CONFIG)


def at_rest(engine: Engine) -> bool:
    census = engine.census()
    engine._scheduler.check()
    return census.pages_held == 0 and census.counters.running == census.counters.waiting == 0


def test_only_the_request_that_makes_a_step_fail_fails(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    poisoned(engine, "bad")
    good = [request(name) for name in ("one", "two", "three")]
    outcome = serve(engine, good[0], request("bad"), *good[1:])
    assert outcome.failed.keys() == {"bad"}
    assert outcome.failed["bad"].kind == "engine_error"
    assert "division" not in outcome.failed["bad"].message
    for one in good:
        assert outcome.tokens[one.request_id, 0] == expected(one)
    assert at_rest(engine)
    assert "ZeroDivisionError" in caplog.text


def test_the_choices_of_a_failed_request_fail_together(engine: Engine) -> None:
    poisoned(engine, "bad")
    good = request("good", n=3)
    outcome = serve(engine, request("bad", n=3), good)
    assert outcome.failed.keys() == {"bad"}
    for index in range(3):
        assert outcome.tokens["good", index] == expected(good, index)
    assert at_rest(engine)


def test_a_lone_request_is_tried_again_once(engine: Engine) -> None:
    runner = poisoned(engine, "bad")
    assert serve(engine, request("bad")).failed.keys() == {"bad"}
    assert runner.failures == 2


def test_many_failures_are_logged_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    poisoned(engine, *(f"bad{i}" for i in range(20)))
    with caplog.at_level(logging.ERROR):
        outcome = serve(engine, *(request(f"bad{i}") for i in range(20)))
    assert len(outcome.failed) == 20
    assert len(caplog.records) <= 2


def test_preempted_and_poisoned_at_once() -> None:
    engine = assemble(
        EngineConfig(hash_model=HashModelConfig(), pages=24, page_size=4, max_step_tokens=64, max_running=8)
    )
    engine._runner = HashRunner(CONFIG)
    runner = PoisonedRunner("bad0", "bad1")
    runner._inner = HashRunner(EngineConfig(hash_model=HashModelConfig(), pages=24, page_size=4))
    engine._runner = runner
    good = [request(f"good{i}", max_tokens=20, seed=i) for i in range(8)]
    outcome = serve(engine, *good[:4], request("bad0"), *good[4:], request("bad1"))
    assert outcome.failed.keys() == {"bad0", "bad1"}
    for one in good:
        assert outcome.tokens[one.request_id, 0] == expected(one)
    assert engine.census().counters.preemptions > 0
    assert at_rest(engine)


@pytest.mark.parametrize("broken", ["commit", "cache.publish"])
def test_a_commit_that_breaks_fails_its_requests_and_no_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def breaks(*args: object) -> None:
        monkeypatch.undo()
        raise KeyError("a bug")

    owner = engine._scheduler if broken == "commit" else engine._scheduler.cache
    monkeypatch.setattr(owner, broken.rpartition(".")[2], breaks)
    follower, later = request("b"), request("c")  # `b` waits for what `a` computes
    outcome = serve(engine, request("a"), follower)
    assert outcome.failed.keys() == {"a"}
    assert outcome.tokens["b", 0] == expected(follower)
    assert serve(engine, later).tokens["c", 0] == expected(later)
    assert at_rest(engine)


def test_a_commit_that_breaks_gives_back_what_was_aborted_during_its_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise KeyError("a bug")

    one = request("a")
    engine.submit(one)
    plan = engine.plan()
    assert plan is not None
    result = engine.run(plan)
    engine.abort(one.request_id)
    monkeypatch.setattr(engine._scheduler, "commit", breaks)
    engine.commit(plan, result)
    engine.take_news()
    assert at_rest(engine)


def test_what_cannot_be_served_is_refused_and_named(engine: Engine) -> None:
    good = request("good")
    bad = GenerationRequest(request_id="bad", prompt=[-1], sampling=good.sampling)
    outcome = serve(engine, bad, good)
    assert outcome.failed.keys() == {"bad"}
    assert outcome.failed["bad"].kind == "bad_request"
    assert "token id" in outcome.failed["bad"].message
    assert outcome.tokens["good", 0] == expected(good)


@pytest.mark.parametrize("spec", ["alloc_fails=7", "nan_logits=3", "row_raises=3", "forward_raises=4"])
def test_after_any_fault_the_rest_is_right(engine: Engine, spec: str) -> None:
    engine.set_failpoint(spec)
    many = [request(f"r{i}", n=1 + i % 2, seed=i) for i in range(6)]
    outcome = serve(engine, *many)
    assert len(outcome.failed) < (1 if spec.startswith("alloc") else 7)
    for one in many:
        for index in range(one.n):
            tokens = outcome.tokens.get((one.request_id, index), [])
            whole = expected(one, index)
            assert tokens == (whole[: len(tokens)] if one.request_id in outcome.failed else whole)
    assert at_rest(engine)


def test_a_part_takes_its_own_copies_and_brings_nobody_back_twice() -> None:
    def row(uid: int, pages: list[int]) -> PlannedRow:
        sequence = Sequence(uid, request(f"r{uid}"), 0, [1], 1, 0.0, pages=pages)
        return PlannedRow(sequence, 0, 1, sample=True)

    first, second = row(1, [10, 11]), row(2, [20])
    copies = (PageCopy(5, 11, 3), PageCopy(6, 20, 1))
    plan = Plan(9, (first, second), copies, retired=(1, 2, 3))
    assert _part_of(plan, (first,)) == Plan(9, (first,), copies[:1], (1, 3))
    assert _part_of(plan, (second,)) == Plan(9, (second,), copies[1:], (2, 3))


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(hash_model=HashModelConfig(), failpoints=("crash=1",)),
        EngineConfig(hash_model=HashModelConfig(), failpoints=("no such=1",), test_mode=True),
        EngineConfig(hash_model=HashModelConfig(), max_running=64, max_step_tokens=8),
        EngineConfig(hash_model=HashModelConfig(vocab_size=3)),
    ],
)
def test_a_configuration_that_cannot_be(config: EngineConfig) -> None:
    with pytest.raises(StartError):
        assemble(config)


def test_shares_that_leave_no_room_for_the_longest_request_are_refused() -> None:
    """Half of the pages pinned leave half to a sequence: one page more of it, and nothing would start."""

    def start(max_model_len: int) -> None:
        hash_model = HashModelConfig(max_model_len=max_model_len)
        tenants = {"a": TenantLimits(pins=0.3), "b": TenantLimits(floor=0.2, pins=0.1)}
        assemble(EngineConfig(hash_model=hash_model, pages=100, page_size=4, tenants=tenants)).close()

    start(200)
    with pytest.raises(StartError, match="a sequence of maximum length needs 51"):
        start(201)

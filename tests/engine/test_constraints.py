"""Grammars through the engine: compiled aside, followed row by row, and nobody else's affair."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from engine.assemble import assemble
from engine.batch import Masks, Plan, RunnerInfo, StepResult
from engine.config import EngineConfig, HashModelConfig
from engine.core import Engine
from engine.hash_model import IM_END, HashRunner, mix64, reference
from engine.request import (
    GenerationRequest,
    GrammarReady,
    GrammarReport,
    RequestFailed,
    RequestStarted,
    SamplingParams,
    SequenceDelta,
)
from grammar.backends.base import Bits
from grammar.errors import BadGrammar, MatcherError, TooComplex
from grammar.spec import Grammar, Lark, Regex
from tests.fakes import DiceCursor, DiceGrammar, FakeCompiler

CONFIG = EngineConfig(
    hash_model=HashModelConfig(), pages=64, page_size=4, max_running=16, max_step_tokens=64, test_mode=True
)


def request(
    name: str,
    grammar: int | Grammar | None = None,
    *,
    n: int = 1,
    deadline: float | None = None,
    **sampling: object,
) -> GenerationRequest:
    """The grammar of a number is what `FakeCompiler` makes of it."""
    params = {"max_tokens": 30, "seed": len(name), "stop_token_ids": (IM_END,), **sampling}
    return GenerationRequest(
        request_id=name,
        prompt=[*range(40, 60), *name.encode()],
        sampling=SamplingParams(**params),  # type: ignore[arg-type]
        n=n,
        deadline=deadline,
        grammar=Lark(str(grammar)) if isinstance(grammar, int) else grammar,
    )


def expected(one: GenerationRequest, index: int = 0) -> list[int]:
    if one.grammar is None:
        return reference(one.prompt, one.sampling, index)
    assert isinstance(one.grammar, Lark)
    grammar = DiceGrammar(int(one.grammar.text))
    ends = one.sampling.stop_token_ids
    return reference(one.prompt, one.sampling, index, allowed=lambda tokens: grammar.allowed(tokens, ends))


@dataclass
class Served:
    """An engine with a compiler that waits to be told, and what its clients have heard."""

    engine: Engine
    compiler: FakeCompiler
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    finished: dict[tuple[str, int], str] = field(default_factory=dict)
    failed: dict[str, RequestFailed] = field(default_factory=dict)
    ready: dict[str, GrammarReady] = field(default_factory=dict)
    started: dict[str, RequestStarted] = field(default_factory=dict)
    deltas: list[SequenceDelta] = field(default_factory=list)

    def submit(self, *requests: GenerationRequest) -> None:
        for one in requests:
            self.engine.submit(one)

    def step(self) -> bool:
        """False if there was none to make."""
        plan = self.engine.plan()
        if plan is not None:
            self.engine.commit(plan, self.engine.run(plan))
        self.hear()
        return plan is not None

    def finish(self, *, limit: int = 1000) -> None:
        for _ in range(limit):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "it does not come to rest"
        self.check_rest()

    def hear(self) -> None:
        news = self.engine.take_news()
        if news is None:
            return
        for ready in news.ready:
            assert ready.request_id not in self.ready
            self.ready[ready.request_id] = ready
        for started in news.started:
            self.started[started.request_id] = started
        for delta in news.deltas:
            self.deltas.append(delta)
            key = delta.request_id, delta.index
            assert key not in self.finished, "a delta after the last"
            self.tokens.setdefault(key, []).extend(delta.tokens)
            if delta.finish is not None:
                self.finished[key] = delta.finish
        for failed in news.failed:
            assert failed.request_id not in self.failed, "failed twice"
            self.failed[failed.request_id] = failed

    def check_answers(self, *requests: GenerationRequest) -> None:
        for one in requests:
            for index in range(one.n):
                assert self.tokens[one.request_id, index] == expected(one, index)
                assert self.finished[one.request_id, index] in ("stop", "length")

    def check_rest(self) -> None:
        census = self.engine.census()
        self.engine._scheduler.check()
        assert census.pages_held == census.counters.running == census.counters.waiting == 0
        assert census.counters.grammars.compiling == 0
        matchers = self.engine._matchers
        assert not matchers._grammars
        assert not matchers._places
        assert not self.engine._compilations._open


@pytest.fixture
def served() -> Iterator[Served]:
    compiler = FakeCompiler()
    engine = assemble(CONFIG, compiler=compiler.start)
    yield Served(engine, compiler)
    engine.close()
    assert compiler.closed


# ---- compiling -------------------------------------------------------------------------------------------------------


def test_a_request_is_told_when_its_grammar_is_ready_and_starts_then(served: Served) -> None:
    one = request("a", 1)
    served.submit(one)
    assert not served.step()
    assert served.engine.has_work
    assert served.engine.census().counters.waiting == 1
    assert served.engine.census().counters.grammars.compiling == 1
    served.compiler.finish()
    plan = served.engine.plan()
    assert plan is not None
    news = served.engine.take_news()
    assert news is not None
    assert news.ready == (GrammarReady("a", "llguidance", 0.5, 1000),)
    assert [started.request_id for started in news.started] == ["a"]
    served.engine.commit(plan, served.engine.run(plan))
    served.finish()
    served.check_answers(one)


def test_a_grammar_that_was_kept_takes_no_time(served: Served) -> None:
    served.compiler.at_once = True
    served.submit(request("a", 7))
    served.finish()
    served.submit(request("b", 7))
    served.finish()
    assert (served.ready["a"].seconds, served.ready["b"].seconds) == (0.5, 0.0)
    counters = served.engine.census().counters.grammars
    assert (counters.compiled, counters.cached, counters.refused) == (1, 1, 0)


def test_others_go_on_while_one_waits_for_its_grammar(served: Served) -> None:
    late, free = request("late", 1), request("free")
    served.submit(late, free)
    while not served.finished:
        served.step()
    assert set(served.finished) == {("free", 0)}
    served.compiler.finish()
    served.finish()
    served.check_answers(late, free)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadGrammar("no such rule"), "bad_grammar"),
        (TooComplex("too many states"), "grammar_too_complex"),
        (RuntimeError("a bug"), "engine_error"),
    ],
    ids=str,
)
def test_a_grammar_that_cannot_be_had_fails_its_request_with_the_reason(
    served: Served, error: Exception, kind: str
) -> None:
    served.submit(request("bad", 1, n=2), free := request("free"))
    served.compiler.finish(error=error)
    served.finish()
    assert served.failed.keys() == {"bad"}
    failed = served.failed["bad"]
    assert failed.kind == kind
    assert (failed.message == str(error)) == (kind != "engine_error")
    served.check_answers(free)


def test_a_compiler_that_raises_at_once_fails_one_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(grammar: Grammar) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(served.compiler, "submit", breaks)
    served.submit(request("a", 1), free := request("free"))
    served.finish()
    assert served.failed["a"].kind == "engine_error"
    served.check_answers(free)


def test_what_is_aborted_while_it_compiles_is_gone(served: Served) -> None:
    served.submit(request("a", 1, n=3), request("b", 2, n=2))
    served.engine.abort("a")
    served.hear()
    assert served.finished == {("a", index): "abort" for index in range(3)}
    assert served.engine.census().counters.aborted == 3
    served.engine.abort("b", 0)
    served.engine.abort("b", 1)
    served.hear()
    assert not served.engine.has_work
    served.check_rest()
    assert all(future.cancelled() for _, future in served.compiler.pending), (
        "it costs the others nothing more"
    )
    served.compiler.finish()
    assert not served.step()
    assert not served.ready
    served.check_rest()


def test_an_id_that_comes_again_waits_for_its_own_grammar(served: Served) -> None:
    served.submit(request("a", 1))
    served.engine.abort("a")
    served.submit(again := request("a", 2))
    served.compiler.finish(1)
    assert not served.step()
    del served.finished["a", 0]
    served.compiler.finish()
    served.finish()
    served.check_answers(again)


def test_the_choices_that_are_left_go_on_when_one_was_aborted_early(served: Served) -> None:
    one = request("a", 1, n=3)
    served.submit(one)
    served.engine.abort("a", 1)
    served.compiler.finish()
    served.finish()
    assert served.finished["a", 1] == "abort"
    for index in (0, 2):
        assert served.tokens["a", index] == expected(one, index)


def test_a_deadline_counts_from_receipt(served: Served) -> None:
    served.submit(request("a", 1, deadline=0.05))
    began = time.monotonic()
    while not served.failed:
        served.step()
        if not served.failed:
            rest = served.engine.rest
            assert rest is not None
            assert rest > 0, "asked again and again for nothing"
            served.engine.wakeup.wait(rest)
    assert 0.04 < time.monotonic() - began < 1.0
    assert served.failed["a"].kind == "deadline"
    served.compiler.finish()
    served.finish()
    assert not served.ready


def test_with_nothing_but_grammars_to_wait_for_the_engine_sleeps_until_one_is_there(served: Served) -> None:
    served.submit(one := request("a", 1))
    assert not served.step()
    assert served.engine.rest is None
    threading.Timer(0.05, served.compiler.finish).start()
    served.engine.wakeup.wait(10)
    assert served.step()
    served.finish()
    served.check_answers(one)


def test_an_id_in_use_is_refused_while_it_compiles_too(served: Served) -> None:
    one = request("a", 1)
    served.submit(one, request("a", 2))
    served.hear()
    assert served.failed.keys() == {"a"}
    assert len(served.compiler.pending) == 1, "the second's grammar is nobody's"
    served.compiler.finish()
    served.finish()
    assert served.tokens["a", 0] == expected(one)


@pytest.mark.parametrize(
    ("options", "param"), [({"min_tokens": 1}, "min_tokens"), ({"stop_token_ids": ()}, "stop token")]
)
def test_what_does_not_go_with_a_grammar(served: Served, options: dict[str, object], param: str) -> None:
    served.submit(request("a", 1, **options))
    served.hear()
    assert served.failed["a"].kind == "bad_request"
    assert param in served.failed["a"].message


def test_a_grammar_may_be_checked_for_nobody(served: Served) -> None:
    engine = served.engine
    engine.check_grammar(5, Lark("1"))
    engine.check_grammar(6, Regex("("))
    assert not engine.has_work
    served.compiler.finish()
    assert engine.plan() is None
    assert engine.take_reports() == (
        GrammarReport(query_id=5, backend="llguidance", seconds=0.5, nbytes=1000),
        GrammarReport(query_id=6, kind="bad_grammar", error="this is no grammar"),
    )
    assert engine.take_reports() == ()
    engine.check_grammar(7, Lark("1"))
    served.compiler.finish()
    engine.plan()
    assert engine.take_reports()[0].cached


def test_what_the_first_grammar_would_wait_for_begins_when_told(served: Served) -> None:
    assert not served.compiler.warm
    served.engine.prewarm()
    assert served.compiler.warm


def test_a_compilation_that_ends_after_the_engine_was_closed_is_nobodys() -> None:
    compiler = FakeCompiler()
    engine = assemble(CONFIG, compiler=compiler.start)
    engine.submit(request("a", 1))
    engine.close()
    compiler.finish()


# ---- following -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forced", [True, False])
def test_constrained_and_free_rows_of_one_batch_do_not_meet(forced: bool) -> None:
    """Two grammars, several choices, free rows, too few pages: each answer is what it would be alone."""
    compiler = FakeCompiler()
    compiler.at_once = True
    config = EngineConfig(
        hash_model=HashModelConfig(),
        pages=40,
        page_size=4,
        max_running=8,
        max_step_tokens=32,
        forced_tokens=forced,
    )
    served = Served(assemble(config, compiler=compiler.start), compiler)
    requests = [
        request(f"r{i}", (None, 11, 12)[i % 3], n=1 + i % 2, temperature=float(i % 2)) for i in range(12)
    ]
    served.submit(*requests)
    served.finish()
    served.check_answers(*requests)
    counters = served.engine.census().counters
    assert counters.preemptions > 0
    assert (counters.forced_tokens > 0) == forced
    constrained = sum(
        len(served.tokens[one.request_id, index])
        for one in requests
        if one.grammar is not None
        for index in range(one.n)
    )
    assert counters.grammars.masked_rows + counters.forced_tokens == constrained
    served.engine.close()


def test_nothing_is_forced_when_every_token_needs_its_log_probability(served: Served) -> None:
    served.compiler.at_once = True
    served.submit(one := request("a", 1, logprobs=2))
    served.finish()
    served.check_answers(one)
    assert served.engine.census().counters.forced_tokens == 0
    for delta in served.deltas:
        assert delta.logprobs is not None
        assert [item.token for item in delta.logprobs] == list(delta.tokens)


def test_a_forced_run_ends_at_max_tokens(served: Served) -> None:
    served.compiler.at_once = True
    requests = [request(f"r{n}", 3, max_tokens=n) for n in range(1, 20)]
    served.submit(*requests)
    served.finish()
    served.check_answers(*requests)


class UnluckyRunner:
    """The hash model, but the first attempts at some steps raise after their work is done."""

    def __init__(self, *, every: int, victim: str | None = None) -> None:
        self._inner = HashRunner(CONFIG)
        self._every = every
        self._victim = victim
        self._step = 0

    @property
    def info(self) -> RunnerInfo:
        return self._inner.info

    def run(self, plan: Plan, masks: Masks) -> StepResult:
        result = self._inner.run(plan, masks)
        first, self._step = self._step != plan.step, plan.step
        names = {row.sequence.request.request_id for row in plan.rows}
        if (first and plan.step % self._every == 0) or self._victim in names:
            raise ZeroDivisionError
        return result


def test_a_step_that_is_run_again_accepts_its_tokens_once(served: Served) -> None:
    served.engine._runner = UnluckyRunner(every=2, victim="bad")
    served.compiler.at_once = True
    good = [request(f"r{i}", (i % 3) or None, n=1 + i % 2) for i in range(6)]
    served.submit(*good[:3], request("bad", 5), *good[3:])
    served.finish()
    assert served.failed.keys() == {"bad"}
    served.check_answers(*good)


class BrokenCursor(DiceCursor):
    """Fails at the fifth token, in one of its methods."""

    broken = ""
    error: Exception = MatcherError("the lexer ran out of fuel")

    def _strike(self, name: str) -> None:
        if name == self.broken and len(self.dice) > 5:
            raise self.error

    def fill(self, row: Bits) -> None:
        self._strike("fill")
        DiceCursor.fill(self, row)

    def accept(self, token: int) -> bool:
        self._strike("accept")
        return DiceCursor.accept(self, token)

    def forced(self) -> list[int]:
        self._strike("forced")
        return DiceCursor.forced(self)


@pytest.mark.parametrize("broken", ["fill", "accept", "forced"])
@pytest.mark.parametrize("error", [MatcherError("out of fuel"), RuntimeError("a bug")], ids=str)
def test_a_matcher_that_breaks_ends_its_own_request(
    served: Served, monkeypatch: pytest.MonkeyPatch, broken: str, error: Exception
) -> None:
    def start(grammar: DiceGrammar) -> DiceCursor:
        if grammar.seed != 13:
            return DiceCursor(grammar, [start_dice(grammar.seed)])
        cursor = BrokenCursor(grammar, [start_dice(13)])
        cursor.broken, cursor.error = broken, error
        return cursor

    monkeypatch.setattr(DiceGrammar, "start", start)
    served.compiler.at_once = True
    good = [request("free"), request("good", 1)]
    served.submit(good[0], request("bad", 13, n=2), good[1])
    served.finish()
    assert served.failed.keys() == {"bad"}
    failed = served.failed["bad"]
    assert failed.kind == "engine_error"
    assert ("fuel" in failed.message) == isinstance(error, MatcherError)
    assert "a bug" not in failed.message
    assert served.engine.census().counters.grammars.failed_rows >= 1
    served.check_answers(*good)


def start_dice(seed: int) -> int:
    return mix64(seed)


def test_a_grammar_that_leads_nowhere_is_the_clients_mistake(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = DiceGrammar.rule
    monkeypatch.setattr(
        DiceGrammar, "rule", lambda self, dice: (0, False) if self.seed == 13 else rule(self, dice)
    )
    served.compiler.at_once = True
    served.submit(request("bad", 13), free := request("free"), good := request("good", 1))
    served.finish()
    assert served.failed["bad"].kind == "bad_grammar"
    assert "no token" in served.failed["bad"].message
    served.check_answers(free, good)


def test_a_mask_that_takes_long_holds_up_its_own_row_only(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    class SlowCursor(DiceCursor):
        def fill(self, row: Bits) -> None:
            assert go_on.wait(10)
            DiceCursor.fill(self, row)

    def start(grammar: DiceGrammar) -> DiceCursor:
        return (SlowCursor if grammar.seed == 13 else DiceCursor)(grammar, [start_dice(grammar.seed)])

    monkeypatch.setattr(DiceGrammar, "start", start)
    served.compiler.at_once = True
    slow = request("slow", 13)
    others = [request("free"), request("good", 1)]
    served.submit(slow, *others)
    for _ in range(200):
        served.step()
        if len(served.finished) == 2:
            break
    assert {name for name, _ in served.finished} == {"free", "good"}
    served.check_answers(*others)
    assert served.engine.census().counters.grammars.postponed_rows > 2
    go_on.set()
    served.finish()
    served.check_answers(slow)


def test_a_request_that_is_aborted_while_its_mask_is_filled(served: Served) -> None:
    served.compiler.at_once = True
    served.submit(request("a", 1), free := request("free"))
    plan = served.engine.plan()
    assert plan is not None
    served.engine.abort("a")
    served.hear()
    served.engine.commit(plan, served.engine.run(plan))
    served.hear()
    served.finish()
    assert served.finished["a", 0] == "abort"
    served.check_answers(free)

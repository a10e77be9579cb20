"""The compiler in front of real worker processes, with backends that do what a test wants of them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from grammar.compile_limits import CompileLimits
from grammar.compiler import REFUSAL_SECONDS, Compilation, Compiler
from grammar.errors import BadGrammar, BadSchema, CompilerUnavailable, GrammarError, TooComplex
from grammar.kept import OVERHEAD, Entry, Kept
from grammar.refusals import Refusals
from grammar.spec import Grammar, Literal, Repeat
from grammar.vocabulary import byte_vocabulary

from .scripted_backends import ScriptedGrammar, script

BACKENDS = "tests.grammar.scripted_backends"
PATIENCE = 20.0
"""Seconds that nothing here takes unless it hangs."""
LIMITS = CompileLimits(
    deadline=1.5, patience=2.0, mask=0.05, memory=128 * 2**20, kept=10 * (2**20 + OVERHEAD)
)


class Wakes:
    def __init__(self) -> None:
        self.count = 0
        self.threads: set[int] = set()

    def __call__(self) -> None:
        self.count += 1
        self.threads.add(threading.get_ident())


@pytest.fixture(scope="module")
def wakes() -> Wakes:
    return Wakes()


@pytest.fixture(scope="module")
def compiler(wakes: Wakes) -> Iterator[Compiler]:
    compiler = Compiler(byte_vocabulary(300, {}), LIMITS, wake=wakes, backends=BACKENDS)
    yield compiler
    compiler.close()


def answer(future: Future[Compilation]) -> Compilation:
    return future.result(PATIENCE)


def compiled(compiler: Compiler, grammar: Grammar) -> ScriptedGrammar:
    grammar_ = answer(compiler.submit(grammar)).compiled
    assert isinstance(grammar_, ScriptedGrammar)
    return grammar_


def test_a_grammar_is_compiled_once_and_in_another_process(compiler: Compiler, wakes: Wakes) -> None:
    woken = wakes.count
    first = compiler.submit(script("ok"))
    result = answer(first)
    assert not result.cached
    assert 0 < result.seconds < 1
    assert isinstance(result.compiled, ScriptedGrammar)
    assert result.compiled.worker not in (0, os.getpid())
    while wakes.count == woken:
        time.sleep(0.001)
    assert threading.get_ident() not in wakes.threads
    again = compiler.submit(script("ok"))
    assert again.done()
    assert answer(again).cached
    assert answer(again).compiled is result.compiled
    assert answer(again).seconds == result.seconds
    assert wakes.count == woken + 1


def test_those_who_ask_at_the_same_time_share_a_compilation(compiler: Compiler) -> None:
    futures = [compiler.submit(script("take 0.2")) for _ in range(5)]
    results = [answer(future) for future in futures]
    assert len({id(result.compiled) for result in results}) == 1
    assert not any(result.cached for result in results)


HOSTILE: dict[str, tuple[type[GrammarError], str]] = {
    "hang": (TooComplex, "more than 1.5 s"),
    "sleep": (TooComplex, "more than 1.5 s"),
    "eat": (TooComplex, "memory"),
    "crash": (TooComplex, "memory or stack"),
    "abort": (TooComplex, "memory or stack"),
    "die": (TooComplex, "memory or stack"),
    "exit": (TooComplex, "memory or stack"),
    "slow mask": (TooComplex, "more than 50 ms for a token"),
    "slow step": (TooComplex, "more than 50 ms for a token"),
    "stuck": (TooComplex, "no way on"),
    "lying mask": (TooComplex, "a token in the mask is refused"),
    "dead end": (BadGrammar, "no text at all"),
    "bad": (BadGrammar, "llguidance says no"),
    "bad schema": (BadSchema, "no such type"),
    "too complex": (TooComplex, "llguidance gives up"),
    "unloadable": (BadGrammar, "damaged"),
    "bug": (GrammarError, "failed on this grammar"),
    "panic": (GrammarError, "failed on this grammar"),
    "panic at load": (GrammarError, "failed on this grammar"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_grammar_harms_nobody_else(what: str, compiler: Compiler) -> None:
    error, message = HOSTILE[what]
    hostile = compiler.submit(script(what))
    innocent = compiler.submit(script("ok", note=f"beside {what}"))
    assert not answer(innocent).cached
    if what in ("hang", "sleep"):
        assert not hostile.done()  # nobody waited for it
    with pytest.raises(error, match=message) as raised:
        answer(hostile)
    assert type(raised.value) is error
    assert "\n" not in str(raised.value)
    assert not answer(compiler.submit(script("ok", note=f"after {what}"))).cached


def test_where_a_schema_is_wrong_survives_the_way_back(compiler: Compiler) -> None:
    for _ in range(2):  # from the worker, then from memory
        with pytest.raises(BadSchema) as raised:
            answer(compiler.submit(script("bad schema", note="place")))
        assert (raised.value.path, raised.value.keyword) == ("/a", "type")


def test_what_would_take_too_long_to_compile_again_is_refused(compiler: Compiler) -> None:
    assert compiled(compiler, script("again 0.1")).what == "again 0.1"
    began = time.monotonic()
    with pytest.raises(TooComplex, match="takes more than"):
        answer(compiler.submit(script("again 1.0")))
    assert time.monotonic() - began < 1.5


def test_a_refused_grammar_is_refused_again_at_once(compiler: Compiler) -> None:
    with pytest.raises(TooComplex):
        answer(compiler.submit(script("hang", note="again")))
    futures = [compiler.submit(script("hang", note="again")) for _ in range(100)]
    errors = [future.exception(0) for future in futures]
    assert {type(error) for error in errors} == {TooComplex}
    assert len({id(error) for error in errors}) == 100


def test_what_is_beyond_the_limits_is_refused_by_name(compiler: Compiler) -> None:
    with pytest.raises(TooComplex, match="multiply to more than 10,000"):
        answer(compiler.submit(Repeat(Literal("x"), most=10**6)))


def test_what_cannot_be_encoded_is_refused(compiler: Compiler) -> None:
    assert isinstance(compiler.submit(Literal("\ud800")).exception(0), BadGrammar)


def test_the_next_backend_is_tried_when_the_first_refuses(compiler: Compiler) -> None:
    with pytest.raises(BadGrammar, match="llguidance says no"):
        answer(compiler.submit(script("bad", "llguidance", "xgrammar")))
    assert compiled(compiler, script("ok", "xgrammar", "llguidance")).backend == "xgrammar"


def test_a_backend_that_does_not_load_is_not_the_grammar_s_fault(compiler: Compiler) -> None:
    with pytest.raises(GrammarError, match="could not be loaded") as raised:
        answer(compiler.submit(script("ok", "outlines")))
    assert type(raised.value) is GrammarError
    compiled(compiler, script("ok", note="after outlines"))


def test_a_worker_that_grew_is_replaced(compiler: Compiler) -> None:
    grower = answer(compiler.submit(script("grow"))).compiled
    assert isinstance(grower, ScriptedGrammar)
    later = {compiled(compiler, script("ok", note=f"grown {n}")).worker for n in range(20)}
    assert grower.worker not in later


def test_a_template_that_dies_is_replaced(compiler: Compiler, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(CompilerUnavailable):
        answer(compiler.submit(script("orphan")))
    assert "template process died" in caplog.text
    compiled(compiler, script("ok", note="after the template"))


def test_kept_grammars_are_bounded_by_their_bytes(compiler: Compiler) -> None:
    for number in range(25):
        compiled(compiler, script("ok", note=f"fill {number}"))
    assert answer(compiler.submit(script("ok", note="fill 24"))).cached
    assert answer(compiler.submit(script("ok", note="fill 16"))).cached
    assert not answer(compiler.submit(script("ok", note="fill 0"))).cached


def test_nobody_waits_longer_than_patience_however_many_ask(compiler: Compiler) -> None:
    began = time.monotonic()
    futures = [compiler.submit(script("sleep", note=f"flood {n}")) for n in range(10)]
    innocent = compiler.submit(script("ok", note="behind a flood"))
    _, waiting = wait([*futures, innocent], LIMITS.patience + 1)
    assert not waiting
    assert time.monotonic() - began > LIMITS.deadline
    kinds = [type(future.exception()) for future in futures]
    assert kinds.count(TooComplex) == LIMITS.workers
    assert kinds.count(CompilerUnavailable) == len(futures) - LIMITS.workers
    # none of them was found too complex without its whole time, and it may ask again
    assert isinstance(innocent.exception(), CompilerUnavailable)
    compiled(compiler, script("ok", note="behind a flood"))


def test_the_queue_is_bounded() -> None:
    compiler = Compiler(
        byte_vocabulary(300, {}), CompileLimits(queue=3, workers=1), wake=lambda: None, backends=BACKENDS
    )
    futures = [compiler.submit(script("sleep", note=str(n))) for n in range(10)]
    assert sum(future.done() for future in futures) >= 6
    compiler.close()
    assert all(isinstance(future.exception(0), CompilerUnavailable) for future in futures)


def test_what_nobody_waits_for_any_more_is_not_compiled() -> None:
    limits = CompileLimits(deadline=0.3, patience=60, workers=1)
    compiler = Compiler(byte_vocabulary(300, {}), limits, wake=lambda: None, backends=BACKENDS)
    futures = [compiler.submit(script("sleep", note=str(n))) for n in range(30)]
    while not futures[0].done():
        time.sleep(0.01)
    for future in futures[2:]:
        assert future.cancel()
    began = time.monotonic()
    compiled(compiler, script("ok"))
    assert time.monotonic() - began < 2
    compiler.close()


def test_what_nobody_waits_for_any_more_takes_no_place_in_the_queue() -> None:
    limits = CompileLimits(deadline=60, patience=60, workers=1, queue=2)
    compiler = Compiler(byte_vocabulary(300, {}), limits, wake=lambda: None, backends=BACKENDS)
    compiler.submit(script("hang"))
    while compiler._waiting:
        time.sleep(0.01)
    queued = [compiler.submit(script("ok", note=str(n))) for n in range(2)]
    refused = compiler.submit(script("ok", note="refused"))
    assert isinstance(refused.exception(0), CompilerUnavailable)
    assert queued[0].cancel()
    assert not compiler.submit(script("ok", note="taken")).done()
    compiler.close()


def test_closing_leaves_no_thread_and_no_process() -> None:
    before = set(threading.enumerate())
    compiler = Compiler(byte_vocabulary(300, {}), wake=lambda: None, backends=BACKENDS)
    compiler.prewarm()
    worker = compiled(compiler, script("ok")).worker
    template = parents()[worker]
    workers = {pid for pid, parent in parents().items() if parent == template}
    stuck = compiler.submit(script("hang"))
    time.sleep(0.1)
    began = time.monotonic()
    compiler.close()
    assert time.monotonic() - began < 1
    assert isinstance(stuck.exception(0), CompilerUnavailable)
    assert set(threading.enumerate()) == before
    assert not {template, *workers} & parents().keys()
    assert isinstance(compiler.submit(script("ok", note="late")).exception(0), CompilerUnavailable)
    compiler.close()


def test_closing_one_that_was_never_used_starts_nothing() -> None:
    before = set(threading.enumerate())
    compiler = Compiler(byte_vocabulary(300, {}), wake=lambda: None, backends=BACKENDS)
    compiler.close()
    compiler.prewarm()
    assert set(threading.enumerate()) == before


def parents() -> dict[int, int]:
    """The parent of each process there is, zombies too."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    return found


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_the_least_recently_used_grammar_goes_first() -> None:
    entry = Entry(ScriptedGrammar("llguidance", ""), 0.1)
    kept = Kept(3 * entry.nbytes)
    for key in b"abc":
        kept.put(bytes([key]), entry)
    assert kept.get(b"a") is entry
    kept.put(b"d", entry)
    assert [key for key in b"abcd" if kept.get(bytes([key]))] == list(b"acd")
    assert kept.nbytes == 3 * entry.nbytes


def test_a_grammar_put_again_counts_once_and_one_too_large_is_not_kept() -> None:
    entry = Entry(ScriptedGrammar("llguidance", ""), 0.1)
    kept = Kept(2 * entry.nbytes)
    kept.put(b"a", entry)
    kept.put(b"a", entry)
    assert (len(kept), kept.nbytes) == (1, entry.nbytes)
    small = Kept(entry.nbytes - 1)
    small.put(b"a", entry)
    assert (len(small), small.nbytes) == (0, 0)


def test_refusals_are_forgotten() -> None:
    now = 0.0
    refusals = Refusals(seconds=REFUSAL_SECONDS, most=2, clock=lambda: now)
    for key in (b"a", b"b", b"c"):
        refusals.put(key, BadSchema("no", path="/x"))
    assert refusals.get(b"a") is None
    found = refusals.get(b"b")
    assert isinstance(found, BadSchema)
    assert found.path == "/x"
    now = REFUSAL_SECONDS
    assert refusals.get(b"b") is None

"""Compiling a grammar where that is harmless, and following it a few steps.

What passes here costs whoever follows it about the same: the compilation is repeatable, and an automaton that grows
beyond measure while it is followed shows in the first dozens of masks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import numpy as np

from .backends.base import Backend, Compiled
from .errors import BadGrammar, BadSchema, DeadEnd, MatcherError, TooComplex
from .limits import check_grammar
from .shelf import Shelf
from .wire import FromWorker, Missing, Passed, RefusalKind, Refused, Try

STEPS = 48
"""Tokens that a trial follows a grammar for. The first one opens most of it; random text is the worst after that."""
MOST_TO_ACCEPT = 0.1
"""Seconds of a CPU to go on by a token. An engine's step waits for that, as it does not for a mask."""

T = TypeVar("T")


def run_trial(task: Try, shelf: Shelf, words: int) -> FromWorker:
    """Whether some backend takes the grammar, in the order of preference. `words` of int32 are a row of a mask.

    The refusal of the first backend is the one reported: it is the one whose language the grammar was written for.
    """
    refusal: Refused | None = None
    try:
        check_grammar(task.grammar)
        for name in shelf.candidates(task.grammar):
            if name not in shelf.names:
                return Missing(name)
            backend = shelf.get(name)
            try:
                return _try(backend, task, words)
            except BadGrammar as error:
                refusal = refusal or _refused(error)
    except BadGrammar as error:
        return _refused(error)
    return refusal or Refused("bad_grammar", "no constraint engine has a form for this grammar")


def _try(backend: Backend, task: Try, words: int) -> Passed:
    began = time.monotonic()
    compiled = backend.compile(task.grammar)
    seconds = time.monotonic() - began
    try:
        _follow(compiled, task, words)
    except DeadEnd as error:
        raise BadGrammar(str(error)) from None
    except MatcherError as error:
        raise TooComplex(str(error)) from None
    return Passed(backend.name, backend.export(compiled), seconds)


def _follow(compiled: Compiled, task: Try, words: int) -> None:
    """Some way into the grammar, by tokens of which every other is drawn at random and every other is the first allowed.

    The first ones of a vocabulary are single characters: they end strings, so that the walk sees more than one of them.
    """
    cursor = compiled.start()
    row = np.zeros(words, np.int32)
    noise = random.Random(0)  # noqa: S311 - the same walk each time
    for step in range(STEPS):
        _within(task.mask_seconds, lambda: cursor.fill(row))
        filled = np.flatnonzero(row)
        if not filled.size:
            if step == 0 and not cursor.accepting():
                raise DeadEnd("no text at all fits the grammar")
            return
        word = int(filled[0] if step % 2 else noise.choice(filled))
        bits = list(_bits(int(row[word])))
        token = word * 32 + (bits[0] if step % 2 else noise.choice(bits))
        if not _within(min(task.mask_seconds, MOST_TO_ACCEPT), partial(cursor.accept, token)):
            raise MatcherError("a token in the mask is refused")


def _within(most: float, work: Callable[[], T]) -> T:
    began = time.thread_time()  # of this thread: others may be busy
    done = work()
    if time.thread_time() - began > most:
        raise TooComplex(f"following the grammar takes more than {most * 1000:.0f} ms for a token")
    return done


def _bits(word: int) -> Iterator[int]:
    return (bit for bit in range(32) if word >> bit & 1)


def _refused(error: BadGrammar) -> Refused:
    kind: RefusalKind = "bad_grammar"
    if isinstance(error, BadSchema):
        kind = "bad_schema"
    elif isinstance(error, TooComplex):
        kind = "too_complex"
    return Refused(kind, str(error), error.path, error.keyword)

"""Grammars that are being compiled, and for what. Where that is done, and within which limits, the compiler knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from grammar.compiler import Compilation
from grammar.errors import BadGrammar, GrammarError
from grammar.spec import Grammar

Purpose = str | int
"""The id of the request that brought a grammar, or the number of the query that asks about one."""


class GrammarCompiler(Protocol):
    """Implementations: `grammar.compiler.Compiler`, `NoCompiler`, and the fake of the tests."""

    def submit(self, grammar: Grammar) -> Future[Compilation]:
        """Never waits. The future ends with a GrammarError if the grammar cannot be had."""
        ...

    def prewarm(self) -> None:
        """Begin, in the background, what the first grammar would wait for."""
        ...

    def close(self) -> None:
        """End what is being compiled, and whatever thread or process does it."""
        ...


class NoCompiler:
    """For a model whose tokens nobody knows the text of."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def submit(self, grammar: Grammar) -> Future[Compilation]:
        future: Future[Compilation] = Future()
        future.set_exception(BadGrammar(f"this model takes no grammar: {self._reason}"))
        return future

    def prewarm(self) -> None:
        pass

    def close(self) -> None:
        pass


MakeCompiler = Callable[[Callable[[], None]], GrammarCompiler]
"""Makes a compiler that calls what it is given, on some thread, after it has resolved futures that it left open before."""


class Compilations:
    """For one thread. Compiler and futures may work on any."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._open: dict[Purpose, Future[Compilation]] = {}
        self._done: deque[tuple[Purpose, Future[Compilation]]] = deque()
        self.compiled = 0
        self.cached = 0
        self.refused = 0

    def start(self, purpose: Purpose, grammar: Grammar) -> None:
        future = self._open[purpose] = self._compiler.submit(grammar)
        future.add_done_callback(partial(self._end, purpose))

    def drop(self, purpose: Purpose) -> None:
        """Nothing of this will be taken any more. What nobody else waits for and has not begun is not compiled."""
        if (future := self._open.pop(purpose, None)) is not None:
            future.cancel()

    def take(self) -> list[tuple[Purpose, Compilation | BaseException]]:
        """What has come of them since the last time: a compiled grammar, or why there is none."""
        taken: list[tuple[Purpose, Compilation | BaseException]] = []
        while self._done:
            purpose, future = self._done.popleft()
            if self._open.get(purpose) is not future:
                continue  # it was dropped
            del self._open[purpose]
            error = future.exception()
            taken.append((purpose, error or future.result()))
            self._count(taken[-1][1])
        return taken

    def prewarm(self) -> None:
        self._compiler.prewarm()

    def close(self) -> None:
        self._compiler.close()

    def _end(self, purpose: Purpose, future: Future[Compilation]) -> None:
        """On whatever thread the compiler ends its work."""
        self._done.append((purpose, future))

    def _count(self, result: Compilation | BaseException) -> None:
        if isinstance(result, GrammarError):
            self.refused += 1
        elif isinstance(result, BaseException):
            pass
        elif result.cached:
            self.cached += 1
        else:
            self.compiled += 1

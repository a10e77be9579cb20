"""Where one thread of the compiler works: it tries grammars in a worker and brings what passed into this process."""

from __future__ import annotations

import logging
import signal
import time
from typing import NoReturn

from .backends.base import Compiled
from .compile_limits import CompileLimits
from .errors import BadGrammar, BadSchema, CompilerUnavailable, GrammarError, TooComplex
from .shelf import Shelf
from .spec import Grammar
from .wire import Missing, Passed, Refused, Try
from .worker_pool import Worker, WorkerPool

log = logging.getLogger(__name__)

ATTEMPTS = 4
"""One for each backend that a worker may turn out to lack, and one for a template that dies."""
_ERRORS: dict[str, type[BadGrammar]] = {
    "bad_grammar": BadGrammar,
    "bad_schema": BadSchema,
    "too_complex": TooComplex,
}


class Bench:
    """Owns at most one living worker. For one thread."""

    def __init__(self, pool: WorkerPool, shelf: Shelf, limits: CompileLimits) -> None:
        self._pool = pool
        self._shelf = shelf
        self._limits = limits
        self._worker: Worker | None = None
        self._interrupted = False
        self._finished: list[Worker] = []  # to be buried; some are dead through no deed of ours

    def compile(self, grammar: Grammar, waited: float) -> Compiled:
        """Raises BadGrammar and its kinds, CompilerUnavailable, or GrammarError for a bug. `waited` is in seconds."""
        seconds = min(self._limits.deadline, self._limits.patience - waited)
        if seconds <= 0:
            raise CompilerUnavailable("too many grammars are being compiled; try again in a few seconds")
        for _ in range(ATTEMPTS):
            began = time.monotonic()
            reply = self._try(grammar, seconds)
            match reply:
                case Passed():
                    self._check_again(reply, time.monotonic() - began)
                    return self._shelf.get(reply.backend).load(grammar, reply.exported)
                case Refused():
                    _refuse(reply)
                case Missing(name):
                    if name not in self._pool.load((name,)):
                        raise GrammarError(f"the grammar needs {name}, which could not be loaded")
                case None:
                    pass
        raise CompilerUnavailable("the grammar compiler keeps losing its processes; try again")

    def prepare(self) -> None:
        """Have a worker ready for the next grammar, and be rid of those that are not. Raises CompilerUnavailable."""
        if self._worker is not None and not self._worker.is_alive():
            self._finish_with(self._worker)
        while self._finished:
            worker = self._finished.pop()
            returncode = worker.end()
            if returncode and not worker.killed:
                log.warning("a grammar worker died: %s", _describe(returncode))
        if self._worker is None:
            self._worker = self._pool.hire()
            if self._interrupted:
                self._worker.kill()

    def interrupt(self) -> None:
        """End what is being compiled, now and from here on. For any thread."""
        self._interrupted = True
        if (worker := self._worker) is not None:
            worker.kill()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._finish_with(self._worker)
        for worker in self._finished:
            worker.end()

    def _try(self, grammar: Grammar, seconds: float) -> Passed | Refused | Missing | None:
        """None if the worker died with its template, which is not the grammar's doing."""
        self.prepare()
        worker = self._worker
        assert worker is not None
        limits = self._limits
        try:
            reply = worker.run(Try(grammar, limits.deadline, limits.mask), seconds)
        except TimeoutError:
            worker.kill()
            self._finish_with(worker)
            log.warning("a grammar took more than %.2f s to compile; its worker was killed", seconds)
            if seconds < limits.deadline:
                raise CompilerUnavailable("too many grammars are being compiled; try again") from None
            raise TooComplex(
                f"the grammar is too complex: compiling it takes more than {limits.deadline:g} s"
            ) from None
        except (EOFError, OSError):
            self._finish_with(worker)
            if not worker.has_template():
                return None
            raise TooComplex(
                "the grammar is too complex: compiling it takes too much memory or stack"
            ) from None
        if isinstance(reply, Missing) or reply.spent:
            worker.kill()
            self._finish_with(worker)
        return reply

    def _check_again(self, passed: Passed, spent: float) -> None:
        """Compiling again cannot be interrupted: whether it would be done in time is known now."""
        deadline = self._limits.deadline
        if not passed.exported and spent + passed.seconds > deadline:
            raise TooComplex(f"the grammar is too complex: compiling it takes more than {deadline:g} s")

    def _finish_with(self, worker: Worker) -> None:
        self._finished.append(worker)
        self._worker = None


def _refuse(refused: Refused) -> NoReturn:
    if refused.kind == "broken":
        log.error("compiling a grammar failed\n%s", refused.message)
        raise GrammarError("the grammar compiler failed on this grammar")
    raise _ERRORS[refused.kind](refused.message, path=refused.path, keyword=refused.keyword)


def _describe(returncode: int) -> str:
    if returncode > 0:
        return f"exit code {returncode}"
    return f"killed by {signal.Signals(-returncode).name}"

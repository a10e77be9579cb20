"""Grammars compiled once, aside from the engine's steps, and never at the expense of anybody else.

A grammar that is not kept from before goes through a trial in a worker process first, which has limits on memory, stack,
CPU and time and is killed when it passes them. What passed is then brought into this process in a thread of the
compiler's: by the backend's own serialisation, or by compiling it again, which is known to be harmless now.

Answers come within `CompileLimits.patience` of the question, whatever else is being compiled.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import get_args

from .backends.base import Compiled
from .bench import Bench
from .compile_limits import CompileLimits
from .errors import BadGrammar, CompilerUnavailable, GrammarError
from .kept import Entry, Kept
from .refusals import Refusals
from .shelf import BACKENDS, Shelf
from .spec import BackendName, Grammar, digest
from .vocabulary import Vocabulary
from .worker_pool import WorkerPool

log = logging.getLogger(__name__)

FIRST: BackendName = "llguidance"
"""The backend that takes nearly everything. The others are loaded while nobody waits: two seconds and 200 MB."""
REFUSAL_SECONDS = 60.0
"""For how long a grammar that was refused is refused again unseen."""
REFUSALS = 1024
IDLE_SECONDS = 5.0
"""Until the engines that are slow to load are loaded too."""
PREWARM_SECONDS = 2.0
"""After which everything is made ready for a first grammar that has not come yet."""
CLOSE_SECONDS = 1.0
"""For threads and processes to end in good order before they are made to."""
STACK = 16 * 2**20
"""Bytes, for threads that compile again what a worker compiled with far less."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """`seconds` is what compiling took, now or when it was done; `cached`: it was kept from before."""

    compiled: Compiled
    seconds: float
    cached: bool


class Compiler:
    """`submit` and `close` are for one thread, which never waits in the first. Processes and threads start with the first
    grammar, or with `prewarm`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: CompileLimits | None = None,
        *,
        wake: Callable[[], None],
        backends: str = BACKENDS,
    ) -> None:
        """`wake` is called, in another thread, after futures were resolved that `submit` had left open."""
        self._limits = limits or CompileLimits()
        self._wake = wake
        self._shelf = Shelf(vocabulary, backends)
        self._pool = WorkerPool(vocabulary, memory=self._limits.memory, backends=backends)
        self._kept = Kept(self._limits.kept)
        self._refusals = Refusals(seconds=REFUSAL_SECONDS, most=REFUSALS, clock=time.monotonic)
        self._jobs: dict[bytes, _Job] = {}  # waiting or being compiled
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()  # guards everything from `_kept` on
        self._benches: list[Bench] = []
        self._leaving = threading.Barrier(self._limits.workers)
        self._threads: list[threading.Thread] = []
        self._rest_begun = False  # to load the backends other than FIRST
        self._started = 0.0  # when the threads had what they need; nobody's patience is measured before
        self._closed = False

    def submit(self, grammar: Grammar) -> Future[Compilation]:
        """Raises nothing itself. The future, already done for what is known, ends in

        * BadGrammar, BadSchema or TooComplex: the grammar's fault, the same for whoever asks again soon;
        * CompilerUnavailable: not its fault, it may do a little later;
        * GrammarError: a bug, of ours or of a constraint engine, which is logged.

        One that is cancelled before its turn costs nothing more.
        """
        future: Future[Compilation] = Future()
        try:
            key = digest(grammar)
        except (RecursionError, ValueError):  # nested without end, half of a surrogate pair
            future.set_exception(BadGrammar("the grammar cannot be encoded"))
            return future
        with self._changed:
            if (entry := self._kept.get(key)) is not None:
                future.set_result(Compilation(entry.compiled, entry.seconds, cached=True))
            elif (refusal := self._refusals.get(key)) is not None:
                future.set_exception(refusal)
            elif (job := self._jobs.get(key)) is not None:
                job.futures.append(future)
            elif self._closed:
                future.set_exception(CompilerUnavailable("the grammar compiler is closed"))
            elif len(self._waiting) >= self._limits.queue and not self._drop_unwanted():
                future.set_exception(CompilerUnavailable("too many grammars are waiting to be compiled"))
            else:
                self._enqueue(_Job(key, grammar, time.monotonic(), [future]))
        return future

    def prewarm(self) -> None:
        """Start in the background, after a moment, what the first grammar would otherwise wait for."""
        with self._changed:
            self._start_threads()

    def close(self) -> None:
        """End every thread and process; open futures end in CompilerUnavailable, and nobody is woken. Idempotent."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            abandoned = list(self._jobs.values())
            self._jobs.clear()
            self._changed.notify_all()
        for job in abandoned:
            job.resolve(CompilerUnavailable("the grammar compiler is closed"))
        for bench in self._benches:
            bench.interrupt()
        for thread in self._threads:  # each ends its worker
            thread.join(CLOSE_SECONDS)
        self._pool.close()
        for thread in self._threads:
            thread.join()

    def _drop_unwanted(self) -> bool:
        """Whether that made room in the queue."""
        unwanted = [job for job in self._waiting if not job.is_wanted()]
        for job in unwanted:
            self._waiting.remove(job)
            del self._jobs[job.key]
        return bool(unwanted)

    def _enqueue(self, job: _Job) -> None:
        self._jobs[job.key] = job
        self._waiting.append(job)
        self._start_threads()
        self._changed.notify()

    def _start_threads(self) -> None:
        if self._threads or self._closed:
            return
        before = threading.stack_size(STACK)
        try:
            for number in range(self._limits.workers):
                bench = Bench(self._pool, self._shelf, self._limits)
                self._benches.append(bench)
                name = f"grammar-compiler-{number}"
                thread = threading.Thread(target=self._work, args=(bench,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        finally:
            threading.stack_size(before)

    # ---- in the compiler's threads -----------------------------------------------------------------------------------

    def _work(self, bench: Bench) -> None:
        with self._changed:  # a process that has just started has better things to do
            self._changed.wait_for(lambda: self._waiting or self._closed, PREWARM_SECONDS)
        if not self._closed:
            self._load_first()
            self._prepare(bench)
            self._started = time.monotonic()
        while not self._closed:
            if (job := self._take()) is not None:
                self._finish(job, self._compile(job, bench))
                if not self._closed:
                    self._prepare(bench)
            elif self._begin_loading():
                self._load_rest()
        bench.close()
        # The template ends with the thread that started it: it is to live until the last bench is cleared.
        with contextlib.suppress(threading.BrokenBarrierError):
            self._leaving.wait(CLOSE_SECONDS)

    def _load_first(self) -> None:
        with contextlib.suppress(CompilerUnavailable):
            self._pool.load((FIRST,))
        try:
            self._shelf.get(FIRST)
        except Exception:
            log.exception("a constraint engine could not be loaded")

    def _prepare(self, bench: Bench) -> None:
        """Do now, with nobody waiting, what the next grammar would wait for."""
        with contextlib.suppress(
            CompilerUnavailable
        ):  # logged; the next client hears of it if it happens again
            bench.prepare()

    def _take(self) -> _Job | None:
        """The next job that somebody still wants; None to look around: the end, or nothing to do for a while."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(None if self._rest_begun else IDLE_SECONDS)
            while self._waiting:
                job = self._waiting.popleft()
                if job.is_wanted():
                    return job
                del self._jobs[job.key]
        return None

    def _compile(self, job: _Job, bench: Bench) -> Entry | GrammarError:
        began = time.monotonic()
        try:
            compiled = bench.compile(job.grammar, began - max(job.submitted, self._started))
        except GrammarError as error:
            return error
        except BaseException:  # an engine's panic is one; it ends this job alone
            log.exception("a grammar could not be compiled")
            return GrammarError("the grammar compiler failed on this grammar")
        return Entry(compiled, time.monotonic() - began)

    def _finish(self, job: _Job, result: Entry | GrammarError) -> None:
        with self._changed:
            if self._jobs.pop(job.key, None) is None:
                return  # closed meanwhile
            if isinstance(result, Entry):
                self._kept.put(job.key, result)
            elif isinstance(result, BadGrammar):
                self._refusals.put(job.key, result)
        job.resolve(result)
        self._wake()

    def _begin_loading(self) -> bool:
        """Whether this thread is the one to load the rest."""
        with self._changed:
            if self._closed or self._jobs or self._rest_begun:
                return False
            self._rest_begun = True
            return True

    def _load_rest(self) -> None:
        with contextlib.suppress(CompilerUnavailable):  # logged; they are loaded when they are needed, then
            self._pool.load(get_args(BackendName))


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A grammar and everybody who waits for it."""

    key: bytes
    grammar: Grammar
    submitted: float
    futures: list[Future[Compilation]]

    def is_wanted(self) -> bool:
        return not all(future.cancelled() for future in self.futures)

    def resolve(self, result: Entry | GrammarError) -> None:
        for future in self.futures:
            if not future.set_running_or_notify_cancel():
                continue
            if isinstance(result, Entry):
                future.set_result(Compilation(result.compiled, result.seconds, cached=False))
            elif isinstance(result, BadGrammar):
                future.set_exception(type(result)(str(result), path=result.path, keyword=result.keyword))
            else:
                future.set_exception(type(result)(str(result)))

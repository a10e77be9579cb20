"""The compiler's side of its worker processes: the template they are forked from, and each of them."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import CompilerUnavailable
from .shelf import BACKENDS
from .spec import BackendName
from .vocabulary import Vocabulary
from .wire import (
    Begin,
    Buried,
    Bury,
    FromTemplate,
    FromWorker,
    Hire,
    Hired,
    Load,
    Loaded,
    ToTemplate,
    Try,
    Wire,
)

log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""A template that has not answered by then is broken. Loading every engine takes two to four, on a busy machine more."""
_STDERR = 2
_PACKAGES = Path(__file__).resolve().parent.parent
_ALONE = {
    # A process with more than one thread cannot be forked safely, nor one that has opened a GPU.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_BROKEN = (OSError, EOFError, TypeError, msgspec.MsgspecError)
"""What talking to a template that is dead, dying or mistaken can raise; a timeout is an OSError."""

_Answer = TypeVar("_Answer", Loaded, Hired, Buried)


class WorkerPool:
    """Starts the template when it is first needed, and again if it dies. For any thread.

    The template ends with the thread that started it, which therefore has to live until `close`.
    """

    def __init__(self, vocabulary: Vocabulary, *, memory: int, backends: str = BACKENDS) -> None:
        self._vocabulary = vocabulary
        self._memory = memory
        self._backends = backends
        self._lock = threading.Lock()
        self._template: _Template | None = None
        self._closed = False

    def load(self, names: tuple[BackendName, ...]) -> tuple[BackendName, ...]:
        """Have workers born with these backends from here on, and say with which they are. Takes up to seconds the first
        time. Raises CompilerUnavailable."""
        with self._talk() as template:
            loaded = template.ask(Load(names), Loaded)
        if loaded.failure is not None:
            log.error("a constraint engine could not be loaded\n%s", loaded.failure)
        return loaded.names

    def hire(self) -> Worker:
        """A new worker. Takes milliseconds once the template runs. Raises CompilerUnavailable."""
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            with self._talk() as template:
                pid = template.ask(Hire(self._memory), Hired, attach=theirs).pid
            undo.pop_all()
        return Worker(self, template, pid, ours)

    def bury(self, template: _Template, pid: int) -> int | None:
        """A dead or dying worker's exit code; None if its template is gone, and with it who knew."""
        if self._template is not template:
            return None
        with contextlib.suppress(CompilerUnavailable), self._talk() as now:
            if now is template:
                return template.ask(Bury(pid), Buried).returncode
        return None

    def close(self) -> None:
        """End the template, whatever it does, and with it every worker. Idempotent."""
        self._closed = True
        if (template := self._template) is not None:
            template.kill()  # whoever talks to it stops waiting
        with self._lock:
            self._end_template()

    @contextlib.contextmanager
    def _talk(self) -> Iterator[_Template]:
        """The running template, to oneself. What breaks it makes the next one start afresh."""
        with self._lock:
            if self._closed:
                raise CompilerUnavailable("the grammar compiler is closed")
            try:
                if self._template is not None and not self._template.is_alive():
                    log.error("the grammar compiler's template process died; starting another")
                    self._end_template()
                if self._template is None:
                    self._template = _Template(self._vocabulary, self._backends)
                yield self._template
            except _BROKEN as error:
                self._end_template()
                if not self._closed:
                    log.exception("the grammar compiler's template process failed")
                raise CompilerUnavailable("the grammar compiler could not start a process") from error

    def _end_template(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None


class _Template:
    """Raises any of _BROKEN."""

    def __init__(self, vocabulary: Vocabulary, backends: str) -> None:
        ours, theirs = socket.socketpair()
        self._wire = Wire[ToTemplate, FromTemplate](ours, msgspec.msgpack.Decoder(FromTemplate))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "grammar.worker"],
                # `-m` looks in the working directory first: let it find this very package, and no stray file of a user's.
                cwd=_PACKAGES,
                env={**os.environ, **_ALONE},
                stdin=theirs.fileno(),
                stdout=_STDERR,
            )
        try:
            self.ask(Begin(vocabulary, os.getpid(), backends), Loaded)
        except _BROKEN:
            self.close()
            raise

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, message: ToTemplate, answer: type[_Answer], *, attach: socket.socket | None = None
    ) -> _Answer:
        self._wire.send(message, START_SECONDS, attach=attach)
        reply = self._wire.receive(START_SECONDS)
        if not isinstance(reply, answer):
            raise TypeError(f"the template answered {type(reply).__name__}, not {answer.__name__}")
        return reply

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._wire.close()


class Worker:
    """One worker process. For one thread, `kill` aside."""

    def __init__(self, pool: WorkerPool, template: _Template, pid: int, end: socket.socket) -> None:
        self._pool = pool
        self._template = template
        self._wire = Wire[Try, FromWorker](end, msgspec.msgpack.Decoder(FromWorker))
        self.pid = pid
        self.killed = False
        """By us."""
        self._lock = threading.Lock()
        self._ended = False

    def is_alive(self) -> bool:
        """Whether it waits for a grammar."""
        return self._wire.is_open()

    def has_template(self) -> bool:
        """Whether its template lives, without which it cannot."""
        return self._template.is_alive()

    def run(self, task: Try, seconds: float) -> FromWorker:
        """Raises TimeoutError, EOFError or OSError, after which it has to be ended."""
        until = time.monotonic() + seconds
        self._wire.send(task, seconds)
        return self._wire.receive(until - time.monotonic())

    def kill(self) -> None:
        """For any thread."""
        self.killed = True
        with self._lock:
            self._kill()

    def end(self) -> int | None:
        """Free everything. The exit code, as `subprocess` has it, if that can be known: its own if it was dead already."""
        with self._lock:
            self._kill()
            self._ended = True
        self._wire.close()
        return self._pool.bury(self._template, self.pid)

    def _kill(self) -> None:
        # Nobody waits for the process before `end`, so that its id is its own as long as its parent lives.
        if not self._ended and self._template.is_alive():
            os.kill(self.pid, signal.SIGKILL)

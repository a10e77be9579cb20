"""Processes in which grammars are compiled: a template, and the workers it forks. Started by `worker_pool` alone.

The template is a fresh interpreter with one thread, no CUDA and no file of the engine's. It loads the constraint engines
and forks workers that share their memory, so that a worker that was killed is replaced in milliseconds. A worker tries
one grammar after the other within limits on memory, stack and CPU; it may be killed at any time.

All of them end with the process that started the template, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import msgspec

from .shelf import Shelf
from .spec import BackendName
from .trial import run_trial
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
    Missing,
    Refused,
    ToTemplate,
    Try,
    Wire,
)

PR_SET_PDEATHSIG = 1  # prctl(2)
PR_SET_NAME = 15
NICENESS = 5
"""A compilation gets a quarter of a core that the model wants too: slower then, but within its deadline."""
STACK = 2 * 2**20
"""Bytes. Threads usually have four times as much, so what does not overflow here will not do so in the engine."""
SPENT = 48 * 2**20
"""Bytes that a worker may keep from earlier grammars before it makes room for another."""
_STDIN = 0
_STDOUT = 1
_STDERR = 2


def main() -> None:
    wire = Wire[FromTemplate, ToTemplate](socket.socket(fileno=_STDIN), msgspec.msgpack.Decoder(ToTemplate))
    # A Ctrl-C goes to the whole group and a service manager's SIGTERM often does: whoever started us ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(EOFError, ConnectionError):  # the compiler is gone
        begin = wire.receive()
        if not isinstance(begin, Begin):
            raise TypeError(f"{type(begin).__name__} before Begin")
        _die_with(begin.parent_pid)
        _name_process("grammar-template")
        os.nice(NICENESS)
        gc.disable()  # it has one long life; a collection would only unshare pages
        shelf = Shelf(begin.vocabulary, begin.backends)
        wire.send(Loaded(shelf.names))
        while True:
            _serve(wire, shelf, begin.vocabulary.words)


def _serve(wire: Wire[FromTemplate, ToTemplate], shelf: Shelf, words: int) -> None:
    message, attached = wire.receive_attached()
    match message:
        case Load(names):
            failure = _load(names, shelf)
            gc.freeze()
            wire.send(Loaded(shelf.names, failure))
        case Hire(memory) if attached is not None:
            template = os.getpid()
            pid = os.fork()
            if pid == 0:
                wire.close()
                _be_worker(attached, shelf, words, memory, template)
            attached.close()
            wire.send(Hired(pid))
        case Bury(pid):
            _, status = os.waitpid(pid, 0)
            wire.send(Buried(os.waitstatus_to_exitcode(status)))
        case _:
            raise TypeError(f"the template cannot make anything of {type(message).__name__}")


def _load(names: tuple[BackendName, ...], shelf: Shelf) -> str | None:
    for name in names:
        try:
            shelf.get(name)
        except Exception:  # noqa: BLE001 - one engine that does not load leaves the others
            return traceback.format_exc()
    return None


def _be_worker(end: socket.socket, shelf: Shelf, words: int, memory: int, parent: int) -> NoReturn:
    """Never returns: what is above it on the stack belongs to the template."""
    code = 1
    try:
        _die_with(parent)
        _name_process("grammar-worker")
        _silence()
        _limit(memory)
        gc.enable()
        with contextlib.suppress(
            EOFError, ConnectionError
        ):  # the compiler is gone, or has no more use for us
            _work(Wire[FromWorker, Try](end, msgspec.msgpack.Decoder(Try)), shelf, words)
        code = 0
    finally:
        os._exit(code)


def _work(wire: Wire[FromWorker, Try], shelf: Shelf, words: int) -> None:
    born_with = _peak_memory()
    spent = False
    while not spent:
        task = wire.receive()
        _limit_cpu(task.seconds)
        try:
            reply = run_trial(task, shelf, words)
        except MemoryError:
            reply = Refused("too_complex", "compiling the grammar takes too much memory")
        except BaseException:  # noqa: BLE001 - an engine's panic is a BaseException; the compiler logs it
            reply = Refused("broken", traceback.format_exc())
        spent = _peak_memory() - born_with > SPENT
        if not isinstance(reply, Missing):
            reply = msgspec.structs.replace(reply, spent=spent)
        wire.send(reply)


def _die_with(parent_pid: int) -> None:
    """The signal also ends a process that is busy or stopped; reading nothing more from a socket, one that waits."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _name_process(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name[:15].encode())


def _silence() -> None:
    """Engines print parts of a client's grammar when they warn or panic, which is no business of a log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        os.dup2(nothing, descriptor)
    if nothing > _STDERR:
        os.close(nothing)


def _limit(memory: int) -> None:
    _lower(resource.RLIMIT_AS, _address_space() + memory)
    _lower(resource.RLIMIT_STACK, STACK)
    _lower(resource.RLIMIT_CORE, 0)


def _limit_cpu(seconds: float) -> None:
    """For when nobody is left to keep the time: the compiler's own deadline comes first."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + seconds))


def _lower(limit: int, value: int) -> None:
    _, most = resource.getrlimit(limit)
    resource.setrlimit(limit, (value if most == resource.RLIM_INFINITY else min(value, most), most))


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()

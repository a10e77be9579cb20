"""The processes behind the compiler: what they are born with, how they are limited, and when they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grammar.errors import CompilerUnavailable
from grammar.vocabulary import byte_vocabulary
from grammar.wire import Missing, Passed, Refused, Try
from grammar.worker import NICENESS, STACK
from grammar.worker_pool import Worker, WorkerPool

from .scripted_backends import script
from .test_compiler import BACKENDS, PATIENCE, parents

MEMORY = 64 * 2**20


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(byte_vocabulary(300, {}), memory=MEMORY, backends=BACKENDS)
    yield pool
    pool.close()


@pytest.fixture
def worker(pool: WorkerPool) -> Iterator[Worker]:
    pool.load(("llguidance",))
    worker = pool.hire()
    yield worker
    worker.end()


def task(what: str, *, seconds: float = 1.0) -> Try:
    return Try(script(what), seconds=seconds, mask_seconds=0.25)


def status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{field}:"))


def test_a_worker_says_what_came_of_a_grammar(worker: Worker) -> None:
    passed = worker.run(task("ok"), PATIENCE)
    assert isinstance(passed, Passed)
    assert passed.backend == "llguidance"
    assert passed.exported == f"{worker.pid} ok".encode()
    assert worker.run(task("bad"), PATIENCE) == Refused("bad_grammar", "llguidance says no")
    broken = worker.run(task("bug"), PATIENCE)
    assert isinstance(broken, Refused)
    assert broken.kind == "broken"
    assert "ZeroDivisionError" in broken.message
    assert worker.is_alive()


def test_a_worker_knows_what_it_was_born_without(pool: WorkerPool) -> None:
    pool.load(("llguidance",))
    worker = pool.hire()
    other = Try(script("ok", "xgrammar"), 1.0, 0.25)
    assert worker.run(other, PATIENCE) == Missing("xgrammar")
    assert pool.load(("xgrammar",)) == ("llguidance", "xgrammar")
    assert worker.run(other, PATIENCE) == Missing("xgrammar")
    newer = pool.hire()
    assert isinstance(newer.run(other, PATIENCE), Passed)
    worker.end()
    newer.end()


def test_a_killed_worker_is_replaced_in_milliseconds(pool: WorkerPool, worker: Worker) -> None:
    with pytest.raises(TimeoutError):
        worker.run(task("hang"), 0.05)
    began = time.monotonic()
    assert worker.end() == -signal.SIGKILL
    replacement = pool.hire()
    assert isinstance(replacement.run(task("ok"), PATIENCE), Passed)
    assert time.monotonic() - began < 0.5
    assert worker.pid not in parents()
    replacement.end()


def test_how_a_worker_died_is_known(worker: Worker) -> None:
    with pytest.raises((EOFError, ConnectionError)):
        worker.run(task("crash"), PATIENCE)
    assert not worker.is_alive()
    assert worker.end() == -signal.SIGSEGV


def test_nobody_has_to_keep_the_time_for_a_worker(worker: Worker) -> None:
    with pytest.raises((EOFError, ConnectionError)):
        worker.run(task("hang", seconds=0.1), PATIENCE)
    assert worker.end() == -signal.SIGXCPU


def test_the_limits_of_a_worker(worker: Worker) -> None:
    worker.run(task("ok"), PATIENCE)
    limits = Path(f"/proc/{worker.pid}/limits").read_text()
    soft = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()[1:]}
    assert soft["Max stack size"] == str(STACK)
    assert soft["Max core file size"] == "0"
    assert (
        0 < int(soft["Max address space"]) - int(status(worker.pid, "VmSize").split()[0]) * 1024 < 2 * MEMORY
    )
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) >= NICENESS
    assert status(worker.pid, "Threads") == "1"


def test_a_worker_holds_no_file_of_ours(pool: WorkerPool, tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w") as ours, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        worker = pool.hire()
        worker.run(task("ok"), PATIENCE)
        names = [entry.readlink() for entry in Path(f"/proc/{worker.pid}/fd").iterdir()]
        assert not any(ours.name in str(name) for name in names)
        sockets = [str(name) for name in names if str(name).startswith("socket:")]
        assert len(sockets) == 1  # its own
        worker.end()


def test_an_interrupt_does_not_end_a_worker(worker: Worker) -> None:
    template = parents()[worker.pid]
    for pid in (worker.pid, template):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert isinstance(worker.run(task("ok"), PATIENCE), Passed)


def test_what_an_engine_prints_goes_nowhere(worker: Worker) -> None:
    worker.run(task("ok"), PATIENCE)
    for descriptor in (0, 1, 2):
        assert str(Path(f"/proc/{worker.pid}/fd/{descriptor}").readlink()) == "/dev/null"


def test_a_frozen_worker_is_killed_all_the_same(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        worker.run(task("ok"), 0.05)
    assert worker.end() == -signal.SIGKILL


def test_closing_ends_everything(pool: WorkerPool) -> None:
    worker = pool.hire()
    template = parents()[worker.pid]
    pool.close()
    assert template not in parents()
    assert gone([worker.pid])
    assert worker.end() is None
    with pytest.raises(CompilerUnavailable):
        pool.hire()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_its_compiler(how: signal.Signals) -> None:
    code = f"""
        import time
        from grammar.compiler import Compiler
        from grammar.vocabulary import byte_vocabulary
        from tests.grammar.scripted_backends import script
        compiler = Compiler(byte_vocabulary(300, {{}}), wake=lambda: None, backends={BACKENDS!r})
        compiler.submit(script("ok")).result()
        compiler.submit(script("hang"))
        time.sleep(0.2)
        print("ready", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as compiler:
        assert compiler.stdout is not None
        assert compiler.stdout.readline() == b"ready\n"
        theirs = descendants(compiler.pid)
        assert len(theirs) == 3
        compiler.send_signal(how)
    assert gone(theirs)


def descendants(pid: int) -> list[int]:
    found = [pid]
    for process, parent in sorted(parents().items()):  # a child's id may be lower only after a wrap-around
        if parent in found:
            found.append(process)
    return found[1:]


def gone(pids: list[int]) -> bool:
    """Within 2 s; a zombie that nobody has waited for yet has ended too."""
    until = time.monotonic() + 2.0
    while time.monotonic() < until:
        if all(not is_running(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def is_running(pid: int) -> bool:
    try:
        return status(pid, "State")[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

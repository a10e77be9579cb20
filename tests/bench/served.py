"""`headwater serve` as a child process, for measurements from outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready. `pid` is the gateway's."""

    root: str
    pid: int
    ready_after: float

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of the gateway and of its children together (the engine)."""
        lists = Path(f"/proc/{self.pid}/task").glob(
            "*/children"
        )  # a child belongs to the thread that started it
        children = [int(pid) for path in lists for pid in path.read_text().split()]
        return {"gateway": _cpu_seconds(self.pid), "engine": sum(map(_cpu_seconds, children))}


@contextmanager
def serve(model: str, *flags: str, timeout: float = 120.0) -> Iterator[Served]:
    """Start, wait until ready, and end it afterwards; no `model` is the demo model. Raises RuntimeError if it never becomes
    ready."""
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "gateway",
        "serve",
        *([model] if model else []),
        "--port",
        str(port),
        *flags,
    ]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield _when_ready(process, port, start, timeout)
        except RuntimeError:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:].decode())
            raise
        finally:
            _end(process)


def _when_ready(process: subprocess.Popen[bytes], port: int, start: float, timeout: float) -> Served:
    root = f"http://127.0.0.1:{port}"
    while not _ready(root):
        if process.poll() is not None or time.perf_counter() - start > timeout:
            raise RuntimeError(f"the server did not become ready (exit status {process.poll()})")
        time.sleep(0.05)
    return Served(root, process.pid, time.perf_counter() - start)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _ready(root: str) -> bool:
    try:
        with urllib.request.urlopen(f"{root}/health/ready", timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _cpu_seconds(pid: int) -> float:
    # the name, field 2, may hold spaces; user and system time are fields 14 and 15
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

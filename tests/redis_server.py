"""`redis-server` as a child process: started, spoiled in every way, and ended by its pid."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

PROGRAM = shutil.which("redis-server")
START_TIMEOUT = 10.0


def require_redis() -> None:
    if PROGRAM is None:
        pytest.skip("redis-server is not installed (on Debian and Ubuntu: apt-get install redis-server)")


class RedisServer:
    """Listens on a port of loopback and on a Unix socket. `directory` takes what it writes.

    Started with the `flags` of its configuration, or as a Sentinel from a configuration of its own.
    """

    def __init__(self, directory: Path, *flags: str, sentinel: str | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.flags = flags
        self.port = free_port()
        self.socket = directory / "s"
        self.password: str | None = None
        self._configuration: list[str] = []
        if sentinel is not None:
            file = directory / "sentinel.conf"
            file.write_text(sentinel)
            self._configuration = [str(file), "--sentinel"]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"unix://{self.socket}"

    def start(self, *, wait: bool = True) -> None:
        assert PROGRAM is not None
        places = ["--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket)]
        rest = ["--save", "", "--dir", str(self.directory), "--logfile", str(self.directory / "log")]
        self.process = subprocess.Popen(
            [PROGRAM, *self._configuration, *places, *([] if self._configuration else rest), *self.flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if wait:
            try:
                self.until(lambda: self.ask("PING"))
            except BaseException:
                self.kill()
                raise

    def ask(self, *command: str | bytes | int) -> Any:
        """The server's own reply to one command, on a connection of its own."""
        with redis.Redis(
            unix_socket_path=str(self.socket), password=self.password, socket_timeout=5.0, protocol=3
        ) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def until(self, condition: Callable[[], Any], within: float = START_TIMEOUT) -> None:
        deadline = time.monotonic() + within
        while True:
            try:
                if condition():
                    return
            except redis.RedisError:
                pass
            assert time.monotonic() < deadline, f"waited {within:g} s for Redis"
            time.sleep(0.02)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port

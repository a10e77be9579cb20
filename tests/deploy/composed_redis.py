"""Redis as the compose file starts it, with a real `redis-server`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.deploy import compose_file

PASSWORD = "c0ffee" * 8


class ComposedRedis:
    """The container's entry point with other places for its files, and its health check."""

    def __init__(self, directory: Path) -> None:
        service = compose_file.read()["services"]["redis"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (directory / "data").mkdir(exist_ok=True)
        (directory / "password").write_text(PASSWORD + "\n")
        given = (compose_file.ROOT / "deploy" / "redis" / "redis.conf").read_text("utf-8")
        for line, here in (
            ("port 6379", f"port {self.port}"),
            ("bind * -::*", "bind 127.0.0.1"),
            ("dir /data", f"dir {directory / 'data'}"),
        ):
            assert f"\n{line}\n" in given
            given = given.replace(line, here)
        (directory / "redis.conf").write_text(given)
        self._places = {
            "/run/secrets/redis_password": str(directory / "password"),
            "/etc/redis/redis.conf": str(directory / "redis.conf"),
            "redis-cli": f"redis-cli -p {self.port}",
        }
        self._check = self._here(service["healthcheck"]["test"][1])
        with (directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._here(word) for word in service["entrypoint"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _here(self, text: str) -> str:
        for place, here in self._places.items():
            text = text.replace(place, here)
        return text

    def healthy(self) -> bool:
        return (
            subprocess.run(["/bin/sh", "-c", self._check], check=False, capture_output=True).returncode == 0
        )

    def ask(self, *words: str, password: str | None = PASSWORD) -> str:
        environment = {**os.environ, **({} if password is None else {"REDISCLI_AUTH": password})}
        command = ["redis-cli", "-p", str(self.port), *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        return done.stdout.strip() + done.stderr.strip()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)

"""Redis as the compose file starts it, with a real `redis-server`: who gets in, what it keeps, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import compose_file
from tests.end_to_end.server import wait_for

PASSWORD = "c0ffee" * 8


class Redis:
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


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    started = Redis(tmp_path)
    try:
        wait_for(started.healthy, 10, (tmp_path / "log").read_text)
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def test_only_who_knows_the_password_gets_in(redis: Redis) -> None:
    assert redis.ask("PING", password=None).startswith("NOAUTH")
    assert "WRONGPASS" in redis.ask("PING", password="guess")
    assert redis.ask("SET", "k", "v") == "OK"
    for words in (("CONFIG", "GET", "*"), ("FLUSHALL",), ("KEYS", "*"), ("ACL", "LIST"), ("SHUTDOWN",)):
        assert redis.ask(*words).startswith("NOPERM"), words
    assert redis.ask("GET", "k") == "v"


def test_it_refuses_rather_than_forgets(redis: Redis) -> None:
    told = dict(line.split(":", 1) for line in redis.ask("INFO").splitlines() if ":" in line)
    assert told["maxmemory_policy"].strip() == "noeviction"
    assert int(told["maxmemory"]) == 256 * 2**20
    assert told["aof_enabled"].strip() == "1"


def test_the_password_can_be_seen_nowhere(redis: Redis, tmp_path: Path) -> None:
    process = Path("/proc") / str(redis.process.pid)
    for name in ("cmdline", "environ"):
        assert PASSWORD.encode() not in (process / name).read_bytes()
    assert PASSWORD not in (tmp_path / "log").read_text()


def test_it_ends_when_it_is_told_and_keeps_what_it_has(redis: Redis, tmp_path: Path) -> None:
    redis.ask("SET", "k", "v")
    assert redis.stop() == 0
    assert not redis.healthy()
    again = Redis(tmp_path)
    try:
        wait_for(again.healthy, 10, (tmp_path / "log").read_text)
        assert again.ask("GET", "k") == "v"
    finally:
        again.process.kill()
        again.process.wait()


@pytest.mark.parametrize("secret", ["", None])
def test_without_a_password_it_does_not_start(tmp_path: Path, secret: str | None) -> None:
    script = compose_file.read()["services"]["redis"]["entrypoint"]
    file = tmp_path / "password"
    if secret is not None:
        file.write_text(secret)
    words = [word.replace("/run/secrets/redis_password", str(file)) for word in script]
    words[-1] = words[-1].replace("redis-server", "echo started")
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "started" not in done.stdout

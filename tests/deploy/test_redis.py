"""Redis as the compose file starts it, with a real `redis-server`: who gets in, what it keeps, and how it ends."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deploy import compose_file
from tests.deploy.composed_redis import PASSWORD, ComposedRedis
from tests.end_to_end.server import wait_for


def test_only_who_knows_the_password_gets_in(redis: ComposedRedis) -> None:
    assert redis.ask("PING", password=None).startswith("NOAUTH")
    assert "WRONGPASS" in redis.ask("PING", password="guess")
    assert redis.ask("SET", "hw:k", "v") == "OK"
    for words in (
        ("SET", "k", "v"),
        ("CONFIG", "GET", "*"),
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("ACL", "LIST"),
        ("SHUTDOWN",),
    ):
        assert redis.ask(*words).startswith("NOPERM"), words
    assert redis.ask("GET", "hw:k") == "v"


def test_it_refuses_rather_than_forgets(redis: ComposedRedis) -> None:
    told = dict(line.split(":", 1) for line in redis.ask("INFO").splitlines() if ":" in line)
    assert told["maxmemory_policy"].strip() == "noeviction"
    assert int(told["maxmemory"]) == 256 * 2**20
    assert told["aof_enabled"].strip() == "1"


def test_the_password_can_be_seen_nowhere(redis: ComposedRedis, tmp_path: Path) -> None:
    process = Path("/proc") / str(redis.process.pid)
    for name in ("cmdline", "environ"):
        assert PASSWORD.encode() not in (process / name).read_bytes()
    assert PASSWORD not in (tmp_path / "log").read_text()


def test_it_ends_when_it_is_told_and_keeps_what_it_has(redis: ComposedRedis, tmp_path: Path) -> None:
    redis.ask("SET", "hw:k", "v")
    assert redis.stop() == 0
    assert not redis.healthy()
    again = ComposedRedis(tmp_path)
    try:
        wait_for(again.healthy, 10, (tmp_path / "log").read_text)
        assert again.ask("GET", "hw:k") == "v"
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

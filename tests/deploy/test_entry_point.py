"""The server as its container runs it: uid 10001 without capabilities, on a root that cannot be written to.

Needs root, to make a mount namespace in which all is read-only but the volumes and a `/tmp` that starts no programs.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import compose_file
from tests.deploy.composed_redis import PASSWORD, ComposedRedis
from tests.deploy.test_settings import environment
from tests.end_to_end.server import wait_for

UID = 10001
PACKAGES = ("gateway", "engine", "grammar", "cache", "adapters")
VOLUMES = ("models", "cache", "state")
METRICS_KEY, ADMIN_KEY = "sk-metrics", "sk-admin"
READY = 60.0

_ENTER = r"""
set -eu
places=$1 environment=$2 python=$3; shift 3
mount --make-rprivate /
mount --bind "$places" /mnt
mount --bind "$environment" /mnt/environment
mount --bind "$python" /mnt/python
case $python in /root/*)
    mount -t tmpfs -o mode=755 tmpfs /root
    mkdir -p "$python"
    mount --bind /mnt/python "$python"
esac
for volume in models cache state; do mount --bind "$places/$volume" "/mnt/$volume"; done
mount -t tmpfs -o size=64m,mode=1777,noexec,nosuid,nodev tmpfs /tmp
for place in / /mnt /mnt/environment /mnt/python; do mount -o remount,bind,ro "$place"; done
cd /mnt/application
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
"""The places of a test lie below /mnt, and so does Python, which may have its home where only root can go. Whatever else is
mounted stays as it is: the user may write nowhere there anyway."""

_TRY = """
import os, subprocess, sys
def refused(act):
    try:
        act()
    except OSError as error:
        return True
    return False
def touch(path):
    open(path, "w").close()
def start():
    touch("/tmp/program")
    os.chmod("/tmp/program", 0o755)
    subprocess.run(["/tmp/program"])
shut = ["/mnt/application/x", "/mnt/application/gateway/x", "/mnt/environment/x", "/mnt/secrets/x", "/mnt/x", "/etc/x",
        "/var/tmp/x", "/usr/lib/x", "/x"]
free = ["/tmp/x", "/mnt/models/x", "/mnt/cache/x", "/mnt/state/x"]
print([path for path in shut if not refused(lambda: touch(path))])
print([path for path in free if refused(lambda: touch(path))])
print(refused(start), os.getuid(), os.getgid(), os.getgroups())
for path in free:
    os.remove(path)
"""


@dataclass(frozen=True, slots=True)
class Container:
    """What runs in it sees `places` as /mnt."""

    places: Path
    port: int
    redis: ComposedRedis

    def command(self, *words: str) -> list[str]:
        python = f"/mnt/environment/bin/{Path(sys.executable).name}"
        entered = ["unshare", "--mount", "/bin/sh", "-c", _ENTER, "enter", str(self.places)]
        return [*entered, sys.prefix, sys.base_prefix, python, *words]

    def variables(self) -> dict[str, str]:
        """The image's and the compose file's, with the places moved, a port of the test's and a small cache."""
        moved = {
            name: str(value).replace("/var/lib/headwater/", "/mnt/").replace("/run/secrets/", "/mnt/secrets/")
            for name, value in environment("headwater").items()
        }
        own = {
            "HEADWATER_HOST": "127.0.0.1",
            "HEADWATER_PORT": str(self.port),
            "HEADWATER_REDIS": f"redis://127.0.0.1:{self.redis.port}/0",
            "HEADWATER_KV_BYTES": "64MiB",
            "HEADWATER_DRAIN_DELAY": "0",
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        }
        return {**moved, **own}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command, variables = self.command(*words), self.variables()
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)

    def serve(self, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            return subprocess.Popen(
                self.command("-m", "gateway", "serve", "hash"),
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def ask(self, method: str, path: str, key: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def healthy(self) -> bool:
        """By the image's own health check."""
        check = compose_file.ROOT / "deploy" / "healthcheck.py"
        variables = {"HEADWATER_PORT": str(self.port)}
        done = subprocess.run(
            [sys.executable, "-I", str(check)], env=variables, check=False, capture_output=True
        )
        return done.returncode == 0


@pytest.fixture
def container(tmp_path: Path, redis: ComposedRedis) -> Iterator[Container]:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user in a place of its own")
    if subprocess.run(["unshare", "--mount", "mount", "--make-rprivate", "/"], check=False).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    places = tmp_path / "places"
    application = places / "application"
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(compose_file.ROOT / package, application / package, ignore=ignored)
    for place in ("environment", "python", "secrets"):
        (places / place).mkdir()
    secrets = {"metrics_key": METRICS_KEY, "admin_key": ADMIN_KEY, "redis_password": PASSWORD, "hf_token": ""}
    for name, secret in secrets.items():
        (places / "secrets" / name).write_text(secret)
    for path in [places, *places.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for volume in VOLUMES:
        (places / volume).mkdir(mode=0o700)
        os.chown(places / volume, UID, UID)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    yield Container(places, port, redis)
    for path in [places, *places.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)  # pytest removes the directory


def test_nothing_but_the_volumes_and_an_empty_tmp_can_be_written_to(container: Container) -> None:
    """What the tests below rest on."""
    done = container.run("-c", _TRY)
    assert done.stdout.splitlines() == ["[]", "[]", f"True {UID} {UID} []"], done.stderr


def test_it_serves_makes_keys_and_ends(container: Container, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not container.healthy()
    server = container.serve(log)
    try:
        wait_for(lambda: container.healthy() or server.poll() is not None, READY, log.read_text, every=0.1)
        assert server.poll() is None, log.read_text()
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}" in status
        assert "NoNewPrivs:\t1" in status
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert f"{name}:\t{0:016x}" in status

        made = container.run("-m", "gateway", "keys", "create", "ci", "--tenant", "acme")
        assert made.returncode == 0, made.stderr
        key = made.stdout.strip()
        chat = {"model": "hash", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        wait_for(lambda: container.ask("GET", "/v1/models", key)[0] == 200, 20, "the key to count", every=0.1)
        assert container.ask("POST", "/v1/chat/completions", key, chat)[0] == 200
        status, text = container.ask(
            "POST", "/v1/responses", key, {"model": "hash", "input": "hi", "max_output_tokens": 16}
        )
        assert status == 200, text
        assert int(container.redis.ask("DBSIZE")) > 0
        assert container.ask("GET", f"/v1/responses/{json.loads(text)['id']}", key)[0] == 200
        assert container.ask("GET", "/admin/state", key)[0] in {401, 403}
        assert container.ask("GET", "/admin/state", ADMIN_KEY)[0] == 200
        status, text = container.ask("GET", "/metrics", METRICS_KEY)
        assert status == 200
        assert b"\nheadwater_store_up 1.0\n" in text
        errors = [
            line for line in text.decode().splitlines() if line.startswith("headwater_store_errors_total{")
        ]
        assert len(errors) > 5
        assert [line for line in errors if not line.endswith(" 0.0")] == []
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()
    assert "Traceback" not in log.read_text()
    written = {
        path.relative_to(container.places).parts[0] for path in container.places.rglob("*") if path.is_file()
    }
    assert written - {"application", "secrets"} == {"cache", "state"}
    assert {path.name for path in (container.places / "state").iterdir()} >= {"keys.json", "ledger.jsonl"}


def test_it_says_what_it_cannot_write_to(container: Container, tmp_path: Path) -> None:
    os.chown(container.places / "cache", 0, 0)
    (container.places / "cache").chmod(0o755)
    server = container.serve(tmp_path / "log")
    assert server.wait(READY) == 1, (tmp_path / "log").read_text()
    (line,) = (
        line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("headwater: the")
    )
    assert "cache directory cannot be used" in line

"""A server that cannot start says why in one line and ends; one that can start has understood every option."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .conftest import Serve
from .server import command, environment

ANNOUNCED = "(loading)"


def attempt(directory: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and what was said on stderr; nothing may go to stdout."""
    done = subprocess.run(
        command("serve", *arguments),
        capture_output=True,
        text=True,
        timeout=30,
        cwd=directory,
        env=environment(),
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def complaint(stderr: str) -> str:
    """The one line that begins with our name, apart from the announcement; it is the last."""
    assert "Traceback" not in stderr, stderr
    lines = stderr.splitlines()
    ours = [line for line in lines if line.startswith("headwater: ") and not line.endswith(ANNOUNCED)]
    assert len(ours) == 1, stderr
    assert lines[-1] == ours[0], stderr
    return ours[0]


MISTAKES = [
    # arguments, exit status, what the line must say
    (("/no/such/model",), 1, "/no/such/model does not exist"),
    (("damaged.gguf",), 1, "damaged.gguf is damaged"),
    ((".",), 1, "no config.json"),
    (("hash", "--host", "0.0.0.0"), 1, "without an API key"),
    (("hash", "--api-key-file", "empty.keys"), 1, "holds no API key"),
    (("hash", "--config", "unknown.yaml"), 2, "unknown option 'speed'"),
    (("hash", "--config", "broken.yaml"), 2, "not YAML"),
    (("hash", "--port", "70000"), 2, "port"),
    (("hash", "--failpoint", "crash=1"), 2, "failpoints need --test-mode"),
    (("hash", "--colour", "blue"), 2, "--colour"),
    (("hash", "--key-store", "broken.yaml"), 1, "broken.yaml is no key file"),
    (("hash", "--key-store", "open.json"), 1, "open.json has mode 666"),
    (("hash", "--tenants", "tenants.yaml"), 1, "tenants.yaml: tenants.acme.quota: expected a share"),
    (("hash", "--tenants", "none.yaml"), 1, "cannot read the tenants in none.yaml"),
    (("hash", "--cache-dir", "empty.keys"), 1, "the cache directory cannot be used"),
    (("hash", "--disk-cache", "1GiB"), 2, "disk_cache needs --cache-dir"),
    (("hash", "--ledger", "empty.keys/ledger"), 1, "cannot write the ledger empty.keys/ledger"),
    (("hash", "--ledger-max-bytes", "1KiB"), 2, "ledger_max_bytes"),
]


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Future[tuple[int, str]]]]:
    """What came of each mistake; several are made at once, since each takes a process."""
    directory = tmp_path_factory.mktemp("mistakes")
    (directory / "damaged.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + b"rubbish")
    (directory / "empty.keys").write_text("# nobody yet\n")
    (directory / "unknown.yaml").write_text("speed: high\n")
    (directory / "broken.yaml").write_text("port: [\n")
    (directory / "tenants.yaml").write_text("tenants: {acme: {quota: lots}}\n")
    (directory / "open.json").write_text('{"version": 1, "keys": []}')
    (directory / "open.json").chmod(0o666)
    common = ("--offline", "--store", str(directory / "store"))
    with ThreadPoolExecutor(4) as pool:
        yield [
            pool.submit(
                attempt, directory, *arguments, *(() if "--port" in arguments else ("--port", "0")), *common
            )
            for arguments, _, _ in MISTAKES
        ]


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[" ".join(row[0]) for row in MISTAKES])
def test_before_anything_is_started(attempts: list[Future[tuple[int, str]]], number: int) -> None:
    """One line and no other."""
    _, status, said = MISTAKES[number]
    code, stderr = attempts[number].result()
    assert said in complaint(stderr)
    assert len(stderr.splitlines()) == 1, stderr
    assert code == status


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--kv-bytes", "16"), "KV memory"),
        (("--kv-bytes", "99TiB"), "are available"),
        (("--max-model-len", "99999999"), "more than the model's own 32768 positions"),
        (("--max-step-tokens", "8"), "cannot advance"),
        (("--test-mode", "--failpoint", "explode=1"), "explode"),
    ],
)
def test_an_engine_that_cannot_start_takes_the_server_along(
    tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    code, stderr = attempt(tmp_path, "hash", "--port", "0", *flags)
    assert said in complaint(stderr)
    assert code == 1


def test_a_temporary_directory_too_deep_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setenv("TMPDIR", str(deep))
    code, stderr = attempt(tmp_path, "hash", "--port", "0")
    assert "too long for a Unix socket" in complaint(stderr)
    assert "TMPDIR" in complaint(stderr)
    assert code == 1
    assert not list(deep.iterdir())


def test_what_only_one_server_may_have(tmp_path: Path, serve: Serve) -> None:
    """The second is told before it starts anything, and the first goes on."""
    flags = ("--cache-dir", str(tmp_path / "cache"), "--ledger", str(tmp_path / "ledger"))
    server = serve(*flags)
    for number, said in ((0, "is in use by another server"), (2, "ledger is in use by another server")):
        code, stderr = attempt(tmp_path, "hash", "--port", "0", *flags[number : number + 2])
        assert said in complaint(stderr)
        assert code == 1
    assert server.is_ready()


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, stderr = attempt(tmp_path, "hash", "--port", str(port))
    assert complaint(stderr) == f"headwater: cannot listen on 127.0.0.1:{port}: Address already in use"
    assert len(stderr.splitlines()) == 1
    assert code == 1


def test_sizes_are_understood(serve: Serve) -> None:
    """A size with a unit reaches the engine: 64 KiB are 512 pages of 16 words."""
    assert serve("--kv-bytes", "64KiB").engine()["pages"]["total"] == 512


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, serve: Serve) -> None:
    """The whole way, from the three spellings to the engine."""
    file = tmp_path / "config.yaml"
    file.write_text("pages: 100\nmax-model-len: 1000\nmax_running: 10\nextra_names: [other/name, third]\n")
    variables = {"HEADWATER_CONFIG": str(file), "HEADWATER_PAGES": "200", "HEADWATER_MAX_RUNNING": "20"}
    server = serve("--pages", "300", variables=variables)
    info = server.engine()["info"]
    assert (info["pages"], info["max_running"], info["max_model_len"]) == (300, 20, 1000)
    names = [model["id"] for model in server.get("/v1/models").json()["data"]]
    assert names == ["hash", "other/name", "third"]
    assert server.get("/v1/models/other/name").json()["root"] == "hash"

"""`headwater serve` as a child process: started, watched from outside, and ended by its pid."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

START_TIMEOUT = 30.0
STOP_TIMEOUT = 20.0
_ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+)/v1")
_REPOSITORY = Path(__file__).resolve().parents[2]


def command(*arguments: str, program: tuple[str, ...] = ("-m", "gateway")) -> list[str]:
    return [sys.executable, *program, *arguments]


def environment(**extra: str) -> dict[str, str]:
    """The caller's own, without what would configure the server or read the user's proxy, and without his keys."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    return {
        **kept,
        "HEADWATER_KEY_STORE": "none",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(_REPOSITORY),
        **extra,
    }


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        return error


class Server:
    """A gateway and its engine. `directory` takes the log, and what it leaves in its own TMPDIR if none is given."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        model: str | None = "hash",
        port: int = 0,
        key: str | None = None,
        temporary: Path | None = None,
        variables: Mapping[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "gateway"),
    ) -> None:
        self.key = key
        self.flags = flags
        self.temporary = temporary or directory / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self._log = directory / "stderr.txt"
        arguments = ["serve", *([model] if model else []), "--port", str(port), *flags]
        began = time.monotonic()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command(*arguments, program=program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=environment(TMPDIR=str(self.temporary), **(variables or {})),
            )
        try:
            self.port = wait_for(self._announced, START_TIMEOUT, "the server's address")
            wait_for(self.is_ready, START_TIMEOUT, "readiness")
        except BaseException:
            self.kill()
            raise
        self.ready_after = time.monotonic() - began

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def pid(self) -> int:
        return self.process.pid

    # -- asking ----------------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Reply:
        """One exchange on a connection of its own. `body` is bytes as they are, or anything that JSON can say."""
        given = {"Content-Type": "application/json", **(headers or {})}
        if (key := key or self.key) is not None:
            given["Authorization"] = f"Bearer {key}"
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, data, given)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Reply:
        return self.request("GET", path, **options)

    def post(self, path: str, body: object, **options: Any) -> Reply:
        return self.request("POST", path, body, **options)

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
        try:
            return self.get("/health/ready", timeout=2.0).status == 200
        except OSError:
            return False

    def state(self, **options: Any) -> dict[str, Any]:
        reply = self.get("/admin/state", **options)
        assert reply.status == 200, reply
        state: dict[str, Any] = reply.json()
        return state

    def engine(self) -> dict[str, Any]:
        """The engine's part of the state, its totals beside its levels."""
        engine: dict[str, Any] = self.state()["engine"]
        return {**engine["report"]["counters"], **engine}

    def engine_pid(self) -> int:
        """From /proc, so that it can be had when nobody answers."""
        lists = Path(f"/proc/{self.pid}/task").glob("*/children")
        children = [int(pid) for path in lists for pid in path.read_text().split()]
        assert len(children) == 1, f"the gateway has {len(children)} children"
        return children[0]

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def settled(self, within: float = 1.0) -> dict[str, Any]:
        """The state once nobody is served and every page is free or in the tree. Fails after `within` seconds."""

        def at_rest() -> dict[str, Any] | None:
            state = self.state()
            engine, gateway = state["engine"], state["gateway"]
            pages = engine["pages"]
            busy = engine["running"], engine["waiting"], gateway["requests_open"], gateway["requests_queued"]
            whole = pages["free"] + pages["tree"] == pages["total"] and pages["held"] == 0
            return state if not any(busy) and whole else None

        return wait_for(at_rest, within, lambda: f"a server at rest: {self.state()}")

    # -- ending ----------------------------------------------------------------------------------------------------------

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        return self.process.wait(timeout)

    def stop(self) -> None:
        """End it as an operator in a hurry would; kill it if that does not work."""
        if self.process.poll() is not None:
            return
        self.terminate()
        self.terminate()
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _announced(self) -> int | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
        found = _ADDRESS.search(self.log())
        return None if found is None else int(found[1])


def wait_for(
    condition: Callable[[], T | None], within: float, what: str | Callable[[], str], every: float = 0.01
) -> T:
    """The first result that counts as true. Fails after `within` seconds, at least two looks."""
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() > deadline
        result = condition()
        if result:
            return result
        assert not late, f"waited {within:g} s for {what if isinstance(what, str) else what()}"
        time.sleep(every)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Servers for the tests: one shared, and others with flags of a test's own. What they wrote is shown when a test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .server import Server

SHARED_FLAGS = ("--test-mode", "--drain-delay", "0")
_SHOWN = 8000
_servers = pytest.StashKey[list[Server]]()

Serve = Callable[..., Server]


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"), *SHARED_FLAGS)
    yield started
    started.stop()


@pytest.fixture
def server(shared_server: Server, request: pytest.FixtureRequest) -> Server:
    """A server of the hash model in test mode, the same for many tests: leave it as it was found."""
    request.node.stash.setdefault(_servers, []).append(shared_server)
    return shared_server


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Serve]:
    """Start a server with flags: `serve("--pages", "300")`. It is ready when this returns, and ended after the test."""
    servers = request.node.stash.setdefault(_servers, [])
    own: list[Server] = []

    def start(*flags: str, **options: object) -> Server:
        quick = () if "--drain-delay" in flags else ("--drain-delay", "0")
        started = Server(tmp_path_factory.mktemp("server"), *quick, *flags, **options)  # type: ignore[arg-type]
        own.append(started)
        servers.append(started)
        return started

    yield start
    for started in own:
        started.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        for number, server in enumerate(item.stash.get(_servers, [])):
            report.sections.append((f"stderr of server {number}", server.log()[-_SHOWN:]))
    return report

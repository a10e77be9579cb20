"""Fixtures that more than one package's tests use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from engine.model_store.store import LocalModel, ModelStore

from .end_to_end.server import Server
from .end_to_end.thinker import write_thinker
from .redis_server import RedisServer, require_redis

SHOWN_LOG = 8000

# The same examples each time, and no verdict by the clock of a busy machine.
settings.register_profile("headwater", derandomize=True, deadline=None)
settings.load_profile("headwater")


@pytest.fixture(scope="session")
def demo_model() -> LocalModel:
    """The demo model, imported. `make test` sees to it that it is in the store; nothing is downloaded here."""
    store = (
        os.environ.get("HEADWATER_STORE") or Path.home() / ".cache" / "headwater"
    )  # as the command line has it
    model = ModelStore(Path(store)).locate(None)
    if model is None:
        pytest.skip("the demo model is not in the model store: run `headwater pull`")
    return model


@pytest.fixture(scope="session")
def demo_server(demo_model: LocalModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the demo model, the same for all tests: leave it as it was found."""
    store = next(parent for parent in demo_model.path.parents if (parent / "models").is_dir())
    flags = ("--offline", "--store", str(store), "--max-model-len", "2048", "--kv-bytes", "256MiB")
    started = Server(tmp_path_factory.mktemp("demo"), "--drain-delay", "0", *flags, model=None)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def thinker_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a toy that may think and has a call format of its own, the same for all tests."""
    directory = tmp_path_factory.mktemp("thinker")
    model = write_thinker(directory / "thinker")
    started = Server(directory, "--drain-delay", "0", "--test-mode", model=str(model))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis for all tests that do it no harm."""
    require_redis()
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis_server(shared_redis: RedisServer) -> RedisServer:
    """The same, empty."""
    shared_redis.ask("FLUSHALL")
    return shared_redis


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that may be killed."""
    require_redis()
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    """A failed test shows what the servers it was given have written."""
    report = yield
    if report.failed:
        given = getattr(item, "funcargs", {})
        for name, server in given.items():
            if isinstance(server, Server):
                report.sections.append((f"stderr of {name}", server.log()[-SHOWN_LOG:]))
    return report

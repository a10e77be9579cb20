"""Fixtures of the tests of what is deployed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.composed_redis import ComposedRedis
from tests.end_to_end.server import wait_for
from tests.redis_server import require_redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[ComposedRedis]:
    require_redis()
    started = ComposedRedis(tmp_path)
    try:
        wait_for(started.healthy, 10, (tmp_path / "log").read_text)
        yield started
    finally:
        started.process.kill()
        started.process.wait()

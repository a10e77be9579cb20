from __future__ import annotations

import pytest

from .engine import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    return Engine.load()

"""Fixtures that more than one package's tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.model_store.store import LocalModel, ModelStore


@pytest.fixture(scope="session")
def demo_model() -> LocalModel:
    """The demo model, imported. `make test` sees to it that it is in the store; nothing is downloaded here."""
    model = ModelStore(Path.home() / ".cache" / "headwater").locate(None)
    if model is None:
        pytest.skip("the demo model is not in the model store: run `headwater pull`")
    return model

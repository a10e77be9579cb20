"""Fixtures that more than one package's tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from engine.model_store.store import LocalModel, ModelStore

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

"""What a child is told. Its life is tested in `test_process`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.child import _with_absolute_paths
from engine.config import EngineConfig


def test_relative_paths_are_the_parents_although_the_child_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = _with_absolute_paths(
        EngineConfig(model_dir="model", native_cache="store/native", cache_dir="cache")
    )
    assert told.model_dir == str(tmp_path / "model")
    assert told.native_cache == str(tmp_path / "store" / "native")
    assert told.cache_dir == str(tmp_path / "cache")


def test_what_is_not_set_stays_so() -> None:
    assert _with_absolute_paths(EngineConfig()) == EngineConfig()

"""What cannot start says so in one line, whoever starts it, and before a model is looked for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ModelError, StartError
from engine.llm import LLM


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_step_tokens": 63}, "a step of 63 tokens cannot advance 64 running sequences"),
        ({"max_running": 513}, "a step of 512 tokens cannot advance 513 running sequences"),
        *(
            ({name: value}, f"{name} must be at least 1, not {value}")
            for name in (
                "page_size",
                "pages",
                "kv_bytes",
                "max_model_len",
                "max_running",
                "max_step_tokens",
                "threads",
                "disk_bytes",
            )
            for value in (0, -3)
        ),
        ({"watermark": 1.0}, "watermark"),
        ({"watermark": -0.1}, "watermark"),
        ({"watermark": math.nan}, "watermark"),
        ({"failpoints": ("crash=1",)}, "test mode"),
        ({"host_bytes": -1}, "host_bytes must be at least 0, not -1"),
        ({"disk_bytes": 1000}, "cache_dir, and none is configured"),
        ({"host_bytes": 1000, "prefix_cache": False}, "turned off"),
        ({"cache_dir": "somewhere", "prefix_cache": False}, "turned off"),
    ],
)
def test_what_no_model_could_start_with(setting: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=message) as raised:
        LLM(EngineConfig(model_dir=str(tmp_path / "missing"), **setting))
    assert not isinstance(raised.value, ModelError)
    assert "\n" not in str(raised.value)

"""A JSON object from a file that somebody else wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .errors import ModelError

LARGEST = 256 * 2**20
"""Bytes. Nothing that belongs to a model is larger."""


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises ModelError, naming the file."""
    try:
        if path.stat().st_size > LARGEST:
            raise ModelError(f"{path} is too large")
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value

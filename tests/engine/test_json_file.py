"""What a model's JSON files may be, and what is said of those that are something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import json_file
from engine.errors import ModelError
from engine.json_file import read_json_object
from engine.models.config import ConfigReader


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "is not a JSON object"),
        (b"{", "is not valid JSON: "),
        (b'{"a": "0123456789"}', "is too large"),
        (None, "No such file"),
    ],
)
def test_what_is_no_object_is_refused_by_name(
    content: bytes | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_file, "LARGEST", 10)
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    for read in (read_json_object, ConfigReader.open):
        with pytest.raises(ModelError, match=words) as refused:
            read(path)
        assert str(path) in str(refused.value)


def test_an_object_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"a": [1]}')
    assert read_json_object(tmp_path / "a.json") == {"a": [1]}

"""The tensors of a model directory, by name: safetensors only, one file or shards, memory-mapped and strict.

Format: https://github.com/huggingface/safetensors. Nothing here unpickles anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import ModelError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_TEXT_FILES = ("config.json", "tokenizer.json")
_FLOATS = frozenset({"F32", "F16", "BF16"})
_LISTED = 3

Shape = tuple[int, ...]


class Checkpoint:
    """An open model directory. Every failure is a ModelError that names the file or tensor at fault."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = _weight_files(directory)
        self._handles: dict[str, Any] = {}  # safetensors has no type for an open file
        self._where: dict[str, str] = {}
        for name in self._files:
            try:
                handle: Any = safe_open(directory / name, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{directory / name} cannot be read as safetensors: {error}") from error
            self._handles[name] = handle
            self._where.update(dict.fromkeys(handle.keys(), name))

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handles.clear()

    def check(self, expected: Mapping[str, Shape], *, ignored: frozenset[str] = frozenset()) -> None:
        """The directory holds exactly `expected`, apart from `ignored` and derived buffers, in floating point."""
        missing = [name for name in expected if name not in self._where]
        if missing:
            raise ModelError(f"{self._directory} lacks {_some(missing)}")
        extra = [
            name
            for name in self._where
            if name not in expected and name not in ignored and not name.endswith(".rotary_emb.inv_freq")
        ]
        if extra:
            raise ModelError(
                f"{self._directory} holds tensors that this model has no place for: {_some(extra)}"
            )
        for name, shape in expected.items():
            stored = self._slice(name)
            if tuple(stored.get_shape()) != shape:
                raise ModelError(
                    f"{name} has the shape {stored.get_shape()}, but config.json implies {list(shape)}"
                )
            if stored.get_dtype() not in _FLOATS:
                raise ModelError(f"{name} is stored as {stored.get_dtype()}, which is not supported")

    def dtype(self, name: str) -> str:
        """How a tensor is stored, in the format's own words: F32, BF16, ..."""
        if name not in self._where:
            raise ModelError(f"{self._directory} lacks {name}")
        return str(self._slice(name).get_dtype())

    def copy(self, name: str, into: Tensor) -> None:
        """Convert and copy one tensor into `into`, which has its shape. Refuses NaN and infinity."""
        try:
            stored = self._handles[self._where[name]].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{name} cannot be read: {error}") from error
        into.copy_(stored)
        low, high = torch.aminmax(into)  # one pass; NaN and infinities show up in it
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise ModelError(f"{name} holds values that are not finite")

    def digest(self) -> str:
        """SHA-256 over the names and contents of everything that decides what this model computes."""
        names = sorted([*self._files, *(name for name in _TEXT_FILES if (self._directory / name).is_file())])
        with ThreadPoolExecutor(max_workers=2) as pool:
            hashes = list(pool.map(lambda name: _file_hash(self._directory / name), names))
        total = hashlib.sha256()
        for name, value in zip(names, hashes, strict=True):
            total.update(f"{name}\0{value}\n".encode())
        return total.hexdigest()

    def _slice(self, name: str) -> Any:
        return self._handles[self._where[name]].get_slice(name)


def _weight_files(directory: Path) -> list[str]:
    if (directory / _INDEX).is_file():
        return _shards(directory / _INDEX)
    if (directory / _SINGLE).is_file():
        return [_SINGLE]
    raise ModelError(
        f"{directory} has neither {_SINGLE} nor {_INDEX}: only safetensors weights are supported"
    )


def _shards(index: Path) -> list[str]:
    try:
        content = msgspec.json.decode(index.read_bytes(), type=dict[str, Any])
        weight_map = msgspec.convert(content.get("weight_map"), dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelError(f"{index} is not a usable index: {error}") from error
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index} names {name!r}, which is not a safetensors file beside it")
        if not os.path.isfile(index.parent / name):  # noqa: PTH113 - Path.is_file raises for a name that is too long
            raise ModelError(f"{index.parent} lacks {name}, which its index names")
    return names


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"

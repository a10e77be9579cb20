"""Safetensors files written tensor by tensor, so that a model of any size passes through little memory.

Source: https://github.com/huggingface/safetensors#format. The library's own writer wants every tensor at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import msgspec

from .records import FileRecord

BF16_BYTES = 2


def write_bf16(
    path: Path, shapes: Mapping[str, tuple[int, ...]], data: Iterable[bytes | memoryview]
) -> FileRecord:
    """Write one file of bfloat16 tensors. `data` is their bytes one after another, in the order of `shapes`, in any pieces.

    Returns the file's digest. Raises OSError (disk full) and leaves the partial file to the caller, who owns the directory.
    """
    header = _header(shapes)
    digest = hashlib.sha256()
    size = 0
    with path.open("wb") as file:
        for piece in _chain(len(header).to_bytes(8, "little"), header, data):
            digest.update(piece)
            size += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    expected = 8 + len(header) + sum(map(tensor_bytes, shapes.values()))
    assert size == expected, f"{path.name}: {size} bytes written, {expected} announced"
    return FileRecord(digest.hexdigest(), size)


def tensor_bytes(shape: tuple[int, ...]) -> int:
    return prod(shape) * BF16_BYTES


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + tensor_bytes(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = msgspec.json.encode(entries)
    return text + b" " * (-len(text) % 8)  # tensors start on a multiple of eight


def _chain(*parts: bytes | Iterable[bytes | memoryview]) -> Iterable[bytes | memoryview]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            yield from part

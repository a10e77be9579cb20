"""A GGUF file as a directory in Hugging Face layout: bfloat16 safetensors, config, tokenizer, template.

Weights pass through a few rows at a time, so memory stays far below the size of the model. Letters: N rows, K columns.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import ModelError
from .gguf_config import ROPE_FACTORS, GGUFConfig, TensorPlan
from .gguf_file import GGUFFile
from .gguf_tokenizer import GGUFTokenizer
from .hf_layout import WEIGHTS, WEIGHTS_INDEX
from .records import FileRecord
from .safetensors_file import tensor_bytes, write_bf16

_SHARD_BYTES = 4 * 10**9
_PIECE_VALUES = 1 << 22  # values dequantized at a time: 16 MiB of float32


def imported_bytes(path: Path) -> int:
    """The size of the weights that importing this file will write. Raises ModelError."""
    with GGUFFile(path) as file:
        plan = GGUFConfig(path.name, file.metadata, file.tensors).plan
        return sum(tensor_bytes(tensor.shape) for tensor in plan)


def import_gguf(path: Path, target: Path, advance: Callable[[int], None]) -> dict[str, FileRecord]:
    """Write the model into `target`, an empty directory. `advance` is told the bytes of weights as they are written.

    Returns the digest of each file. Raises ModelError, or OSError if the disk fails; the caller removes `target` then.
    """
    with GGUFFile(path) as file:
        config = GGUFConfig(path.name, file.metadata, file.tensors)
        tokenizer = GGUFTokenizer(path.name, file.metadata, config.vocab_size)
        _check_tensors(file, config)
        texts = {
            "config.json": _json(config.config_json(_rope_factors(file))),
            "generation_config.json": _json(config.generation_json()),
            "tokenizer.json": tokenizer.tokenizer.to_str().encode(),
            "tokenizer_config.json": _json(tokenizer.config_json(config.max_position)),
        }
        if tokenizer.chat_template is not None:
            texts["chat_template.jinja"] = tokenizer.chat_template.encode()
        records = {name: _write_text(target / name, text) for name, text in texts.items()}
        return records | _write_weights(file, config.plan, target, advance)


def _check_tensors(file: GGUFFile, config: GGUFConfig) -> None:
    """The file holds exactly the tensors of its model, in their shapes. Raises ModelError."""
    name = file.path.name
    for tensor in config.plan:
        found = file.tensors.get(tensor.source)
        if found is None:
            raise ModelError(f"{name} has no tensor {tensor.source!r}")
        if found.shape != tensor.shape:
            raise ModelError(
                f"{name}: tensor {tensor.source!r} is {list(found.shape)}, not {list(tensor.shape)} as its metadata says"
            )
    unknown = file.tensors.keys() - {tensor.source for tensor in config.plan} - {ROPE_FACTORS}
    if unknown:
        raise ModelError(
            f"{name}: tensor {min(unknown)!r} is not part of a {config.family.model_type} model that Headwater knows"
        )


def _rope_factors(file: GGUFFile) -> list[float] | None:
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    return [float(factor) for factor in file.rows(tensor, np.arange(tensor.rows)).ravel()]


def _write_weights(
    file: GGUFFile, plan: tuple[TensorPlan, ...], target: Path, advance: Callable[[int], None]
) -> dict[str, FileRecord]:
    shards = _shards(plan)
    if len(shards) == 1:
        return {WEIGHTS: _write_shard(file, shards[0], target / WEIGHTS, advance)}
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    index = {
        "metadata": {"total_size": sum(tensor_bytes(tensor.shape) for tensor in plan)},
        "weight_map": {t.name: name for name, shard in zip(names, shards, strict=True) for t in shard},
    }
    records = {WEIGHTS_INDEX: _write_text(target / WEIGHTS_INDEX, _json(index))}
    for name, shard in zip(names, shards, strict=True):
        records[name] = _write_shard(file, shard, target / name, advance)
    return records


def _shards(plan: tuple[TensorPlan, ...]) -> list[list[TensorPlan]]:
    """In order, each below the limit unless a single tensor is larger."""
    shards: list[list[TensorPlan]] = [[]]
    size = 0
    for tensor in plan:
        bytes_ = tensor_bytes(tensor.shape)
        if shards[-1] and size + bytes_ > _SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += bytes_
    return shards


def _write_shard(
    file: GGUFFile, shard: list[TensorPlan], path: Path, advance: Callable[[int], None]
) -> FileRecord:
    def data() -> Iterator[memoryview]:
        for tensor in shard:
            for piece in _pieces(file, tensor):
                yield piece
                advance(piece.nbytes)

    return write_bf16(path, {tensor.name: tensor.shape for tensor in shard}, data())


def _pieces(file: GGUFFile, tensor: TensorPlan) -> Iterator[memoryview]:
    info = file.tensors[tensor.source]
    order = np.arange(info.rows) if tensor.heads is None else halves_from_pairs(info.rows, tensor.heads)
    step = max(1, _PIECE_VALUES // info.shape[-1])
    for start in range(0, info.rows, step):
        values = file.rows(info, order[start : start + step])  # [N, K] float32
        yield to_bf16(values).data.cast("B")


def halves_from_pairs(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """For each row of q or k in Hugging Face's order, the row of the GGUF file that holds it.

    Rotary embedding turns pairs of dimensions. Inside a head of D rows, GGUF's llama layout has the pair j in rows 2j and
    2j+1; Hugging Face has it in rows j and j + D/2.
    """
    pairs: npt.NDArray[np.int64] = np.arange(rows, dtype=np.int64).reshape(heads, -1, 2)  # [heads, D/2, 2]
    return pairs.swapaxes(1, 2).reshape(-1)


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bit patterns of the nearest bfloat16, ties to even. Finite values only."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _write_text(path: Path, text: bytes) -> FileRecord:
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(hashlib.sha256(text).hexdigest(), len(text))

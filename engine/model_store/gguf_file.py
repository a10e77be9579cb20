"""The header of a GGUF file: its metadata and where each tensor lies.

The file is untrusted. Every length and offset is compared with what the file holds before anything is allocated or
read, so a damaged or hostile file costs at most memory of its own size and ends in one ModelError.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little endian).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from ..errors import ModelError

Value = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST_DIMENSIONS = 4
_LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape` has the slowest dimension first, as in torch (GGUF itself writes it last). Offsets are from the file's start."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    row_bytes: int
    offset: int

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def size(self) -> int:
        return self.rows * self.row_bytes


class GGUFFile:
    """Open for reading until closed. `metadata` and `tensors` are read at once, weights when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ModelError(f"{path.name} is empty") from error
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}") from error
        try:
            header = _Header(path.name, self._bytes)
            self.metadata: Mapping[str, Value] = header.metadata
            self.tensors: Mapping[str, TensorInfo] = header.tensors
        except BaseException:
            self._bytes.close()
            raise

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bytes.close()

    def rows(self, tensor: TensorInfo, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The rows `index` of a tensor, dequantized: [len(index), shape[-1]] in float32. Raises ModelError."""
        raw: npt.NDArray[np.uint8] = np.frombuffer(self._bytes, np.uint8, tensor.size, tensor.offset)
        picked = raw.reshape(tensor.rows, tensor.row_bytes)[index]
        del raw  # a view of the map would keep it from being closed
        try:
            # A corrupt scale overflows to infinity; the check below names the tensor.
            with np.errstate(all="ignore"):
                values: npt.NDArray[np.float32] = dequantize(picked, tensor.kind)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path.name}: tensors of type {tensor.kind.name} are not supported"
            ) from error
        if not np.isfinite(values).all():
            raise ModelError(f"{self.path.name}: tensor {tensor.name!r} holds values that are not finite")
        return values


class _Header:
    def __init__(self, name: str, data: mmap.mmap) -> None:
        self._name = name
        self._data = data
        self._at = 0
        if self._take(4) != _MAGIC:
            raise ModelError(f"{name} is not a GGUF file")
        (version,) = self._unpack("I")
        if version not in (2, 3):
            raise ModelError(f"{name}: GGUF version {version} (or byte order) is not supported")
        tensors, keys = self._unpack("QQ")
        self.metadata = self._read_metadata(keys)
        infos = self._read_infos(tensors)
        self.tensors = {info[0]: self._place(*info) for info in infos}
        if len(self.tensors) != tensors:
            raise self._damaged("two tensors have one name")

    def _read_metadata(self, count: int) -> dict[str, Value]:
        self._must_fit(count, 13)  # the shortest entry: an empty key, a type and one byte
        metadata: dict[str, Value] = {}
        for _ in range(count):
            key = self._string()
            (kind,) = self._unpack("I")
            metadata[key] = self._value(kind)
        return metadata

    def _read_infos(self, count: int) -> list[tuple[str, tuple[int, ...], int, int]]:
        self._must_fit(count, 32)  # the shortest entry: an empty name and one dimension
        infos = []
        for _ in range(count):
            name = self._string(_LONGEST_NAME)
            (rank,) = self._unpack("I")
            if not 1 <= rank <= _MOST_DIMENSIONS:
                raise self._damaged(f"tensor {name!r} has {rank} dimensions")
            shape = self._unpack(f"{rank}Q")
            kind, offset = self._unpack("IQ")
            infos.append((name, tuple(reversed(shape)), kind, offset))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._damaged(f"alignment is {alignment!r}")
        self._base = -(-self._at // alignment) * alignment
        return infos

    def _place(self, name: str, shape: tuple[int, ...], raw_kind: int, offset: int) -> TensorInfo:
        try:
            kind = GGMLQuantizationType(raw_kind)
        except ValueError:
            raise ModelError(f"{self._name}: tensor {name!r} has the unknown type {raw_kind}") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or shape[-1] % block:
            raise self._damaged(f"tensor {name!r} of type {kind.name} cannot have the shape {list(shape)}")
        info = TensorInfo(name, kind, shape, shape[-1] // block * block_bytes, self._base + offset)
        if info.offset + info.size > len(self._data):
            raise self._damaged(f"tensor {name!r} lies beyond its end; the file is truncated")
        return info

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        value: int | float | bool
        (value,) = self._unpack(self._code(kind))
        return value

    def _array(self) -> Value:
        kind, count = self._unpack("IQ")
        if kind == _STRING:
            self._must_fit(count, 8)
            return [self._string() for _ in range(count)]
        code = self._code(kind)
        self._must_fit(count, struct.calcsize(code))
        return list(self._unpack(f"{count}{code}"))

    def _code(self, kind: int) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise self._damaged(f"metadata has the unknown type {kind}")
        return code

    def _string(self, longest: int | None = None) -> str:
        (length,) = self._unpack("Q")
        if longest is not None and length > longest:
            raise self._damaged(f"a name is {length} bytes long")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._damaged("a string is not UTF-8") from None

    def _unpack(self, codes: str) -> tuple[int, ...]:
        layout = struct.Struct(f"<{codes}")
        return layout.unpack(self._take(layout.size))

    def _take(self, size: int) -> bytes:
        self._must_fit(size, 1)
        self._at += size
        return self._data[self._at - size : self._at]

    def _must_fit(self, count: int, size: int) -> None:
        if count * size > len(self._data) - self._at:
            raise self._damaged("its header ends early; the file is truncated")

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._name} is damaged: {what}")

"""The functions of the built library. Tensors are checked where a mistake would read or write foreign memory."""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path

import torch
from torch import Tensor

from ..attention.base import HeadNorm
from ..kv_pool import LayerPages
from ..step_inputs import StepInputs

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float

_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "headwater_start": (_POINTER, (_INT,)),
    "headwater_stop": (None, (_POINTER,)),
    "headwater_linear": (None, (*[_POINTER] * 5, *[_LONG] * 3, _INT)),
    "headwater_rms_norm": (None, (*[_POINTER] * 5, _LONG, _LONG, _FLOAT, _INT)),
    "headwater_silu_mul": (None, (*[_POINTER] * 3, _LONG, _LONG, _INT)),
    "headwater_store": (None, (*[_POINTER] * 5, _FLOAT, *[_POINTER] * 3, _LONG, _INT)),
    "headwater_attend": (
        None,
        (_POINTER, _POINTER, _LONG, _POINTER, _POINTER, _LONG, *[_POINTER] * 3, _INT, _INT, _INT, _FLOAT),
    ),
    "headwater_bar": (None, (*[_POINTER] * 4, *[_LONG] * 3)),
    "headwater_has_bfloat16": (_INT, ()),
}


class _Pages(ctypes.Structure):
    """`Pages` of kernels.c: one layer's keys and values. Holds addresses only: the tensors must outlive it."""

    _fields_ = (
        ("keys", _POINTER),
        ("values", _POINTER),
        ("kv_heads", _INT),
        ("page_size", _INT),
        ("width", _INT),
        ("half", _INT),
    )


class NativeLibrary:
    """Load with the path that `build` gave. Functions run on the caller's thread and `threads - 1` helpers, which end
    with this object. One caller at a time."""

    def __init__(self, path: Path, *, threads: int) -> None:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._linear = library.headwater_linear
        self._rms_norm = library.headwater_rms_norm
        self._silu_mul = library.headwater_silu_mul
        self._store = library.headwater_store
        self._attend = library.headwater_attend
        self._bar = library.headwater_bar
        self.has_bfloat16 = bool(library.headwater_has_bfloat16())
        """Whether bfloat16 products have an instruction of their own here."""
        self._crew: int | None = library.headwater_start(threads - 1)
        if self._crew is None:
            raise MemoryError
        # Not at exit: helpers end with the process, and a forked child has none to wait for.
        weakref.finalize(self, library.headwater_stop, self._crew).atexit = False

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        """x [T, K] times weight [N, K] transposed, plus bias [N], all bfloat16, K a multiple of 32; result in `dtype`."""
        rows, depth = x.shape
        outs = weight.shape[0]
        assert x.dtype is weight.dtype is torch.bfloat16
        assert x.is_contiguous()
        assert weight.shape[1] == depth
        assert depth % 32 == 0
        out = torch.empty((rows, outs), dtype=dtype)
        self._linear(
            self._crew, x.data_ptr(), weight.data_ptr(), _address(bias), out.data_ptr(), rows, outs, depth,
            dtype is torch.float32,
        )  # fmt: skip
        return out

    def rms_norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        rows, width = x.shape
        assert x.is_contiguous()
        assert residual is None or (residual.shape == x.shape and residual.is_contiguous())
        out = torch.empty_like(x)
        self._rms_norm(
            self._crew, x.data_ptr(), _address(residual), weight.data_ptr(), out.data_ptr(), rows, width, eps,
            _is_half(x),
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        assert gate_up.is_contiguous()
        out = torch.empty((rows, width), dtype=gate_up.dtype)
        self._silu_mul(self._crew, gate_up.data_ptr(), out.data_ptr(), rows, width, _is_half(gate_up))
        return out

    def store(self, qkv: Tensor, norm: HeadNorm | None, pages: LayerPages, inputs: StepInputs) -> Tensor:
        """As `Attention.store`; the queries are a view of `qkv`, which is changed in place."""
        heads = qkv.shape[1] // pages.keys.shape[3] - 2 * pages.keys.shape[1]
        assert qkv.is_contiguous()
        assert qkv.shape[0] == inputs.slots.shape[0]
        self._store(
            self._crew, qkv.data_ptr(), ctypes.byref(_described(pages)),
            _address(norm.query if norm else None), _address(norm.key if norm else None), norm.eps if norm else 0.0,
            inputs.cosines.data_ptr(), inputs.sines.data_ptr(), inputs.slots.data_ptr(),
            qkv.shape[0], heads,
        )  # fmt: skip
        return qkv.view(qkv.shape[0], -1, pages.keys.shape[3])[:, :heads]

    def attend(self, queries: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs) -> Tensor:
        """As `Attention.attend`; queries [T, H, D] may have any stride over T."""
        tokens, heads, width = queries.shape
        assert queries.stride()[1:] == (width, 1)
        out = torch.empty((tokens, heads * width), dtype=queries.dtype)
        self._attend(
            self._crew, queries.data_ptr(), queries.stride(0), ctypes.byref(_described(pages)),
            inputs.page_table.data_ptr(), inputs.page_table.shape[1],
            inputs.row_starts.data_ptr(), inputs.contexts.data_ptr(), out.data_ptr(),
            len(inputs.counts), heads, window or 0, width**-0.5,
        )  # fmt: skip
        return out

    def bar(self, logits: Tensor, rows: Tensor, masks: Tensor) -> None:
        """As `Layers.bar`."""
        assert logits.dtype is torch.float32
        assert rows.dtype is torch.int64
        assert masks.dtype is torch.int32
        assert logits.is_contiguous()
        assert masks.is_contiguous()
        assert masks.shape[0] == rows.shape[0]
        assert masks.shape[1] * 32 >= logits.shape[1]
        assert all(0 <= row < logits.shape[0] for row in rows.tolist())
        self._bar(
            self._crew, logits.data_ptr(), rows.data_ptr(), masks.data_ptr(), len(rows), logits.shape[1], masks.shape[1]
        )  # fmt: skip


def _described(pages: LayerPages) -> _Pages:
    _, kv_heads, page_size, width = pages.keys.shape
    return _Pages(
        pages.keys.data_ptr(), pages.values.data_ptr(), kv_heads, page_size, width, _is_half(pages.keys)
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype is torch.bfloat16

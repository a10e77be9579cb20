"""`Layers` on the CPU: C where it is at least as fast as torch, torch where it is not.

With bfloat16 instructions the C product is level with torch's at any number of rows and faster up to a hundred, so it
takes them all: then a token's result is the same to the last bit whatever shares its step. Measured in docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from .kernels import NativeLibrary

_MOST_ROWS_WITHOUT_BFLOAT16 = 4


class NativeLayers:
    """float32 products stay with torch, which is good at them."""

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library

    def invariant(self, weights: Iterable[Tensor]) -> bool:
        """Whether a row's products with these are the same whatever shares its step: if the C kernel takes them all."""
        return self._library.has_bfloat16 and all(map(_suits, weights))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        fast = self._library.has_bfloat16 or x.shape[0] <= _MOST_ROWS_WITHOUT_BFLOAT16
        if fast and _suits(weight):
            return self._library.linear(x, weight, bias, x.dtype)
        return functional.linear(x, weight, bias)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """Always in C where it can be: rounding logits to bfloat16, as torch would, makes the best tokens tie."""
        if _suits(weight):
            return self._library.linear(x, weight, None, torch.float32)
        return functional.linear(x, weight).float()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._library.rms_norm(x, None, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._library.rms_norm(x, residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._library.silu_mul(gate_up)

    def bar(self, logits: Tensor, rows: Tensor, masks: Tensor) -> None:
        self._library.bar(logits, rows, masks)


def _suits(weight: Tensor) -> bool:
    return weight.dtype is torch.bfloat16 and weight.shape[1] % 32 == 0

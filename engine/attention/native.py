"""Attention on the CPU by the C kernels, straight over the page table: nothing is gathered."""

from __future__ import annotations

from torch import Tensor

from ..kv_pool import LayerPages
from ..native.kernels import NativeLibrary
from ..step_inputs import StepInputs
from .base import HeadNorm

_LANES, _WIDEST = 16, 256


class NativeAttention:
    name = "native"

    def __init__(self, library: NativeLibrary) -> None:
        self._library = library

    @staticmethod
    def supports(head_dim: int) -> bool:
        return head_dim % _LANES == 0 and head_dim <= _WIDEST

    def store(self, qkv: Tensor, norm: HeadNorm | None, pages: LayerPages, inputs: StepInputs) -> Tensor:
        return self._library.store(qkv, norm, pages, inputs)

    def attend(self, queries: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs) -> Tensor:
        return self._library.attend(queries, pages, window, inputs)

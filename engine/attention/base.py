"""Attention over paged keys and values, as one protocol. Letters as in `engine.step_inputs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ..kv_pool import LayerPages
from ..step_inputs import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorm:
    """Root-mean-square norms of each query and key head, applied before rotation."""

    query: Tensor  # [D]
    key: Tensor  # [D]
    eps: float


class Attention(Protocol):
    """Implementations: `torch.TorchAttention` for any device, `native.NativeAttention` for the CPU.

    Both calls are made once a layer, in this order, with the tensors of one step.
    """

    @property
    def name(self) -> str: ...

    def store(self, qkv: Tensor, norm: HeadNorm | None, pages: LayerPages, inputs: StepInputs) -> Tensor:
        """Norm and rotate queries and keys, write keys and values to their pages, return the queries.

        qkv [T, (H + 2K) * D] -> [T, H, D], which may be a view of `qkv`. Dimension `i` is rotated with `i + D / 2`.
        """
        ...

    def attend(self, queries: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs) -> Tensor:
        """Softmax attention, scores scaled by 1 / sqrt(D): queries [T, H, D] -> [T, H * D].

        A token sees the positions of its row up to its own, and of these the last `window`, itself included. Query
        heads `i * H / K` up to the next multiple share key head `i`. No other position of any page is read.
        """
        ...

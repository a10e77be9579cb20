"""The arithmetic of a decoder apart from attention, as one protocol with a torch and a native implementation.

Letters: T tokens, N and M widths, V vocabulary, R rows of logits, of which K are masked by W words each. `x` is float32 or bfloat16; sums run in float32 and results are rounded once.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Layers(Protocol):
    """Implementations: `TorchLayers` here, for any device, and `native.layers.NativeLayers` for the CPU."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, N] times weight [M, N] transposed, plus bias [M] -> [T, M]."""
        ...

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        """The head: like `linear`, but the result is float32."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension: [T, N] (https://arxiv.org/abs/1910.07467)."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x [T, N] to `residual` in place and return the norm of the sum."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu of the first half of each row times the second half: [T, 2N] -> [T, N]."""
        ...

    def bar(self, logits: Tensor, rows: Tensor, masks: Tensor) -> None:
        """Make -inf in place, in K different rows (int64 [K]) of logits (float32 [R, V]), whatever their masks do not allow.

        Masks are int32 [K, W], W >= V / 32: bit `t % 32` of word `t // 32` allows token `t`.
        """
        ...


class TorchLayers:
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(x, weight).float()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(gate_up.dtype)

    def bar(self, logits: Tensor, rows: Tensor, masks: Tensor) -> None:
        rows, masks = rows.to(logits.device), masks.to(logits.device)
        places = torch.arange(32, dtype=torch.int32, device=logits.device)
        allowed = (masks.unsqueeze(-1) >> places & 1).view(len(rows), -1)[:, : logits.shape[1]]  # [K, V]
        logits[rows] = logits[rows].masked_fill(allowed == 0, -torch.inf)

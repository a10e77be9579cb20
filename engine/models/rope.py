"""Rotary position embedding (Su et al., https://arxiv.org/abs/2104.09864) and the rescalings of it that models ship with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """`linear` divides every frequency by `factor`. `llama3` leaves wavelengths below `original_positions /
    high_freq_factor` as they are, divides those above `original_positions / low_freq_factor`, and blends between
    (Llama 3.1 model card and reference code, https://github.com/meta-llama/llama-models)."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 0

    def inverse_frequencies(self, head_dim: int) -> Tensor:
        """Radians per position of each rotated pair: float32 [head_dim / 2]."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        plain = 1.0 / (self.theta**exponents)
        match self.kind:
            case "default":
                return plain
            case "linear":
                return plain / self.factor
            case "llama3":
                return self._llama3(plain)

    def _llama3(self, plain: Tensor) -> Tensor:
        turns = (
            self.original_positions * plain / (2 * math.pi)
        )  # over the context the model was first trained on
        keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        keep = keep.clamp(0.0, 1.0)
        return keep * plain + (1.0 - keep) * plain / self.factor


_BLOCK = 1024
"""Positions worked out together, always the same ones: a cosine may differ in its last bit with its place in a tensor."""


class Rotations:
    """Cosine and sine of every angle, worked out once for a block of positions when the first of them is asked for."""

    def __init__(self, inverse_frequencies: Tensor) -> None:
        """`inverse_frequencies` is float32 [head_dim / 2], on the device of what will be asked."""
        self._frequencies = inverse_frequencies
        self._cosines = self._sines = inverse_frequencies.new_empty((0, len(inverse_frequencies)))

    @property
    def device(self) -> torch.device:
        return self._frequencies.device

    def of(self, positions: Tensor, *, last: int) -> tuple[Tensor, Tensor]:
        """positions int64 [T], none above `last` -> two float32 [T, head_dim / 2]."""
        if last >= len(self._cosines):
            self._grow(last + 1)
        return self._cosines[positions], self._sines[positions]

    def _grow(self, needed: int) -> None:
        cosines, sines = [self._cosines], [self._sines]
        for start in range(len(self._cosines), max(needed, 2 * len(self._cosines)), _BLOCK):
            block = torch.arange(start, start + _BLOCK, dtype=torch.float32, device=self.device)
            angles = block.unsqueeze(1) * self._frequencies
            cosines.append(angles.cos())
            sines.append(angles.sin())
        self._cosines, self._sines = torch.cat(cosines), torch.cat(sines)

"""What makes an answer independent, to the last bit, of the batch and the chunks its tokens were computed in.

A library chooses by the shape of a product in which order it sums, so every row is computed in a tile of one shape. That
equal rows of a tile come out equal wherever they stand is no library's promise: it is asked of the machine at start, for each
shape of weights, and where it does not hold rows are computed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .layers import Layers

TILE = 32
"""Rows computed together: what one row costs when it is padded to so many is mostly the reading of the weights."""


class InvariantLayers:
    """Another implementation's arithmetic, in tiles. Implements `layers.Layers`."""

    def __init__(self, layers: Layers, weights: Iterable[Tensor]) -> None:
        """`weights` are those of all products there will be: one of each shape is tried."""
        self._layers = layers
        shapes: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
        for weight in weights:
            shapes.setdefault((weight.shape, weight.dtype), weight)
        self._tiled = {shape for shape, weight in shapes.items() if self._keeps_rows_apart(weight)}

    @property
    def one_by_one(self) -> bool:
        """Whether rows of all products are computed alone, because tiles do not keep them apart here."""
        return not self._tiled

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._in_tiles(lambda part: self._layers.linear(part, weight, bias), x, self._rows_of(weight))

    def logits(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._in_tiles(lambda part: self._layers.logits(part, weight), x, self._rows_of(weight))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._in_tiles(lambda part: self._layers.rms_norm(part, weight, eps), x, TILE)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._in_tiles(self._layers.silu_mul, gate_up, TILE)

    def bar(self, logits: Tensor, rows: Tensor, masks: Tensor) -> None:
        self._layers.bar(logits, rows, masks)

    def _rows_of(self, weight: Tensor) -> int:
        return TILE if (weight.shape, weight.dtype) in self._tiled else 1

    def _keeps_rows_apart(self, weight: Tensor) -> bool:
        """Whether a row times `weight` is the same in every place of a tile and in any company."""
        noise = torch.Generator().manual_seed(0)
        rows = torch.randn(2 * TILE - 1, weight.shape[1], generator=noise).to(weight.device, weight.dtype)
        own = TILE - 1  # a row that stands in a tile of its neighbours in every place once
        for product in (self._layers.logits, lambda part, weight: self._layers.linear(part, weight, None)):
            found = [product(rows[start : start + TILE], weight)[own - start] for start in range(TILE)]
            if not all(torch.equal(other, found[0]) for other in found):
                return False
        return True

    @staticmethod
    def _in_tiles(function: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
        """`function` over rows [T, N], `size` of them at a time, the last ones padded with zeros."""
        parts = []
        for start in range(0, x.shape[0], size):
            part = x[start : start + size]
            count = part.shape[0]
            if count < size:
                part = torch.cat((part, part.new_zeros((size - count, part.shape[1]))))
            parts.append(function(part.contiguous())[:count])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

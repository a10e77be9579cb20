"""Attention whose every bit depends on the query and its own context alone: plain torch in pieces of one shape.

What a product of matrices rounds to depends on their shape, because libraries choose by it in which order they sum. So each
row is cut into tiles of `_QUERIES` queries and its context into blocks of `_POSITIONS` at fixed positions, which are joined
in order by a running softmax (Milakov and Gimelshein, https://arxiv.org/abs/1805.02867). Blocks that a query does not see
multiply what it has by one and add zero, so a tile may go on beyond the last block of some of its queries.

A query's place in its tile depends on where its row was cut. That equal rows of a product come out equal wherever they stand
is asked of the machine once, by `check_tiles`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..kv_pool import LayerPages
from ..step_inputs import StepInputs
from .base import HeadNorm
from .torch import TorchAttention

_QUERIES = 32
_POSITIONS = 64


class InvariantAttention:
    """For any device. Slow: `attention.native` promises the same and is fast."""

    name = "torch, invariant"

    def __init__(self) -> None:
        self._plain = TorchAttention()

    def store(self, qkv: Tensor, norm: HeadNorm | None, pages: LayerPages, inputs: StepInputs) -> Tensor:
        return self._plain.store(qkv, norm, pages, inputs)

    def attend(self, queries: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs) -> Tensor:
        attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
        first = 0
        for row, (count, length) in enumerate(zip(inputs.counts, inputs.lengths, strict=True)):
            keys, values = self._context(pages, inputs.page_table[row], length)
            for start in range(first, first + count, _QUERIES):
                end = min(start + _QUERIES, first + count)
                position = length - count + start - first
                attended[start:end] = _tile(queries[start:end], keys, values, position, window)
            first += count
        return attended.flatten(1)

    @staticmethod
    def _context(pages: LayerPages, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a row in float32, in whole blocks: [K, B * _POSITIONS, D]. Beyond `length` there are zeros."""
        kv_heads, page_size, width = pages.keys.shape[1:]
        whole = -(-length // _POSITIONS) * _POSITIONS
        used = table[: -(-length // page_size)]

        def gathered(part: Tensor) -> Tensor:
            context = part.new_zeros((kv_heads, whole, width), dtype=torch.float32)
            context[:, :length] = part[used].transpose(0, 1).flatten(1, 2)[:, :length].float()
            return context

        return gathered(pages.keys), gathered(pages.values)


def check_tiles(*, heads: int, kv_heads: int, width: int, device: torch.device) -> bool:
    """Whether a query comes out the same, to the last bit, in every place of a tile and in any company."""
    noise = torch.Generator().manual_seed(0)
    keys, values = (
        torch.randn(kv_heads, 2 * _POSITIONS, width, generator=noise).to(device) for _ in range(2)
    )
    queries = torch.randn(2 * _QUERIES, heads, width, generator=noise).to(device)
    expected = _tile(queries[_QUERIES : _QUERIES + 1], keys, values, _QUERIES, None)[0]
    return all(
        torch.equal(
            _tile(queries[start : start + _QUERIES], keys, values, start, None)[_QUERIES - start], expected
        )
        for start in range(1, _QUERIES + 1)
    )


def _tile(queries: Tensor, keys: Tensor, values: Tensor, position: int, window: int | None) -> Tensor:
    """Up to `_QUERIES` queries [N, H, D] at consecutive positions from `position` on -> [N, H, D]."""
    count, heads, width = queries.shape
    kv_heads = keys.shape[0]
    tile = queries.new_zeros((_QUERIES, heads, width), dtype=torch.float32)
    tile[:count] = queries.float()
    grouped = tile.view(_QUERIES, kv_heads, -1, width).permute(1, 2, 0, 3).flatten(1, 2)  # [K, G * N, D]
    grouped = grouped.contiguous()
    own = position + torch.arange(_QUERIES, device=queries.device)
    own = own.repeat(heads // kv_heads).unsqueeze(1)  # [G * N, 1]
    best = grouped.new_full((*grouped.shape[:2], 1), -torch.inf)
    total = torch.zeros_like(best)
    found = torch.zeros_like(grouped)
    oldest = 0 if window is None else max(0, position - window + 1) // _POSITIONS * _POSITIONS
    for start in range(oldest, position + count, _POSITIONS):
        block = slice(start, start + _POSITIONS)
        place = start + torch.arange(_POSITIONS, device=queries.device)
        seen = place <= own
        if window is not None:
            seen &= place > own - window
        scores = torch.bmm(grouped, keys[:, block].transpose(1, 2)) * width**-0.5
        scores = scores.masked_fill(~seen, -torch.inf)
        better = torch.maximum(best, scores.amax(-1, keepdim=True))
        # Before a query has seen anything there is nothing to carry over, and -inf less -inf is no number.
        reference = better.masked_fill(better == -torch.inf, 0.0)
        kept = torch.exp(best - reference)
        weights = torch.exp(scores - reference)
        total = total * kept + weights.sum(-1, keepdim=True)
        found = found * kept + torch.bmm(weights, values[:, block])
        best = better
    # Padding sees its own position at least once the tile reaches it; what has seen nothing is thrown away.
    result = (found / total)[:, :, :].view(kv_heads, -1, _QUERIES, width).permute(2, 0, 1, 3)
    return result.reshape(_QUERIES, heads, width)[:count].to(queries.dtype)

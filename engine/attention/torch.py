"""Attention in plain torch: the fallback for every device and the oracle for every kernel.

Rows of one token are batched: their pages are gathered and multiplied with the queries grouped by key head, which is
several times cheaper than `scaled_dot_product_attention` there. Longer rows go one by one, fused.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..kv_pool import LayerPages
from ..step_inputs import StepInputs
from .base import HeadNorm


class TorchAttention:
    name = "torch"

    def store(self, qkv: Tensor, norm: HeadNorm | None, pages: LayerPages, inputs: StepInputs) -> Tensor:
        kv_heads, page_size, width = pages.keys.shape[1:]
        heads = qkv.view(qkv.shape[0], -1, width)  # [T, H + 2K, D]
        query, key, value = torch.split(heads, [heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
        if norm is not None:
            query, key = _normed(query, norm.query, norm.eps), _normed(key, norm.key, norm.eps)
        page, offset = inputs.slots // page_size, inputs.slots % page_size
        pages.keys[page, :, offset] = _rotated(key, inputs)
        pages.values[page, :, offset] = value
        return _rotated(query, inputs)

    def attend(self, queries: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs) -> Tensor:
        attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
        starts = [0]
        for count in inputs.counts:
            starts.append(starts[-1] + count)
        single = [row for row, count in enumerate(inputs.counts) if count == 1]
        if single:
            tokens = torch.tensor([starts[row] for row in single], device=queries.device)
            rows = torch.tensor(single, device=queries.device)
            attended[tokens] = _attend_single(queries[tokens], pages, window, inputs, rows)
        for row, count in enumerate(inputs.counts):
            if count > 1:
                part = slice(starts[row], starts[row + 1])
                attended[part] = _attend_row(queries[part], pages, window, inputs, row)
        return attended.flatten(1)


def _attend_single(
    queries: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs, rows: Tensor
) -> Tensor:
    """The one-token rows of a step: queries [N, H, D] -> [N, H, D]."""
    count, heads, width = queries.shape
    contexts = inputs.contexts[rows].unsqueeze(1)
    keys, values = _gather(pages, inputs.page_table[rows])  # [N, K, C, D]
    place = torch.arange(keys.shape[2], device=queries.device)
    seen = place < contexts  # [N, C]
    if window is not None:
        seen &= place >= contexts - window
    seen = seen[:, None, :, None]
    grouped = queries.view(count, keys.shape[1], -1, width)  # [N, K, H / K, D]
    scores = torch.matmul(grouped, keys.transpose(2, 3)).float() * width**-0.5
    weights = scores.masked_fill(~seen.transpose(2, 3), -torch.inf).softmax(-1).to(values.dtype)
    values = values.masked_fill(~seen, 0)  # what was never written may not be a number
    return torch.matmul(weights, values).reshape(count, heads, width)


def _attend_row(
    queries: Tensor, pages: LayerPages, window: int | None, inputs: StepInputs, row: int
) -> Tensor:
    """One row of several tokens: queries [N, H, D] -> [N, H, D]."""
    context, count = inputs.lengths[row], queries.shape[0]
    keys, values = _gather(pages, inputs.page_table[row : row + 1])
    keys, values = keys[:, :, :context], values[:, :, :context]
    place = torch.arange(context, device=queries.device)
    own = place[context - count :].unsqueeze(1)
    seen = place <= own  # [N, C]
    if window is not None:
        seen &= place > own - window
    attended = functional.scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=seen, enable_gqa=True
    )
    return attended.squeeze(0).transpose(0, 1)


def _gather(pages: LayerPages, table: Tensor) -> tuple[Tensor, Tensor]:
    """Pages in table order, joined: table [N, P] -> keys and values [N, K, P * S, D]."""
    keys, values = (part[table].transpose(1, 2).flatten(2, 3) for part in (pages.keys, pages.values))
    return keys, values


def _normed(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = heads.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(heads.dtype)


def _rotated(heads: Tensor, inputs: StepInputs) -> Tensor:
    """[T, heads, D] -> the same, rotated by each token's position."""
    first, second = heads.float().chunk(2, dim=-1)
    cosines, sines = inputs.cosines.unsqueeze(1), inputs.sines.unsqueeze(1)
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)
    return turned.to(heads.dtype)

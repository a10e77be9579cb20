"""A plan as tensors: one flat batch of tokens, whatever mix of prompts and single tokens its rows are.

Letters used wherever a step's tensors are described: T tokens of the step, R rows, P pages of the longest row,
S positions of a page, H query heads, K key/value heads, D head width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .batch import PlannedRow
from .models.rope import Rotations


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Tokens of row `r` are `row_starts[r]` up to `row_starts[r + 1]`; they see `contexts[r]` positions, their own included.

    `slots` are where each token's key and value go, as page * S + offset. `counts` and `lengths` are the rows' tokens
    and contexts once more, for code that decides on the host.
    """

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T]
    row_starts: Tensor  # int32 [R + 1]
    contexts: Tensor  # int32 [R]
    page_table: Tensor  # int32 [R, P]; places past a row's last page hold 0
    cosines: Tensor  # float32 [T, D / 2]: the rotation of each token's position
    sines: Tensor  # float32 [T, D / 2]
    counts: tuple[int, ...]
    lengths: tuple[int, ...]


def step_inputs(rows: tuple[PlannedRow, ...], *, page_size: int, rotations: Rotations) -> StepInputs:
    """Tensors for `rows`, on the device of `rotations`."""
    device = rotations.device
    counts = tuple(row.count for row in rows)
    lengths = tuple(row.start + row.count for row in rows)
    table = np.zeros((len(rows), max(-(-length // page_size) for length in lengths)), dtype=np.int32)
    tokens: list[int] = []
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        pages = -(-length // page_size)
        table[index, :pages] = row.sequence.pages[:pages]
        tokens += row.sequence.tokens[row.start : length]
    owners = np.repeat(np.arange(len(rows)), counts)
    row_starts = np.concatenate(([0], np.cumsum(counts)))
    positions = np.arange(len(tokens)) - row_starts[owners] + np.array([row.start for row in rows])[owners]
    slots = table[owners, positions // page_size].astype(np.int64) * page_size + positions % page_size
    on_device = torch.from_numpy(positions).to(device)
    cosines, sines = rotations.of(on_device, last=max(lengths) - 1)
    return StepInputs(
        token_ids=torch.tensor(tokens, dtype=torch.int64).to(device),
        positions=on_device,
        slots=torch.from_numpy(slots).to(device),
        row_starts=torch.from_numpy(row_starts.astype(np.int32)).to(device),
        contexts=torch.tensor(lengths, dtype=torch.int32).to(device),
        page_table=torch.from_numpy(table).to(device),
        cosines=cosines,
        sines=sines,
        counts=counts,
        lengths=lengths,
    )

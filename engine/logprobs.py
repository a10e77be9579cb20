"""Log-probabilities under the model's raw distribution: before bias, penalties, temperature or truncation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .request import TokenLogprob

_ROWS_AT_ONCE = 64  # bounds the float32 copy of [rows, V]


def token_logprobs(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """For each row of logits [N, V] its token's log-probability and the `tops[i]` best alternatives, best first."""
    found: list[TokenLogprob] = []
    for start in range(0, len(tokens), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        found += _some_logprobs(logits[rows], tokens[rows], tops[rows])
    return found


def _some_logprobs(logits: Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    best = logprobs.topk(min(max(tops), logprobs.shape[1]))
    values, ids = best.values.tolist(), best.indices.tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(ids[row][:top], values[row][:top], strict=True)))
        for row, (token, logprob, top) in enumerate(zip(tokens, chosen, tops, strict=True))
    ]

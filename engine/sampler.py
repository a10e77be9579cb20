"""Logits to tokens.

Each row is treated in this order: `logit_bias` is added; repetition penalty (tokens of prompt and output; positive logits
divided, others multiplied), presence and frequency penalties (output only, subtracted); end tokens are barred while fewer
than `min_tokens` tokens exist, and so is what a row's mask does not allow; the rest is divided by the temperature; `top_k` keeps the k most probable tokens; `top_p`
the smallest most-probable-first set that holds at least that share of what `top_k` left; `min_p` those with at least that
share of the best token's probability; one of what is left is drawn. Temperature 0 takes the best after the bars.

A draw is one uniform number, hashed from (seed, choice index, position), through the inverse distribution function of the
row. Nothing in a row's treatment depends on the other rows, so its tokens are the same alone and in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import RowResult
from .layers import Layers
from .logprobs import token_logprobs
from .request import SamplingParams
from .sequence import Sequence

_LISTS = (128, 2048)
"""How many of the best tokens are looked at before a whole vocabulary is sorted: most rows keep few."""

_WORD = (1 << 64) - 1
_FLOAT32 = torch.finfo(torch.float32)

NOT_FINITE = "the model produced values that are not finite"
NOTHING_ALLOWED = "the grammar allows no token here"
ALL_BARRED = "no token is allowed: every one is an end token, and min_tokens is not reached"
OVERFLOW = "logit_bias and penalties make the logits overflow"


class Sampler:
    """Keeps running token counts for sequences with penalties, until told to forget them."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self._counts: dict[int, _TokenCounts] = {}

    def forget(self, uids: Iterable[int]) -> None:
        for uid in uids:
            self._counts.pop(uid, None)

    def sample(
        self, logits: Tensor, sequences: Rows[Sequence], masks: Rows[memoryview | None]
    ) -> list[RowResult]:
        """The next token of each sequence from its row of logits, float32 [N, V], which are overwritten.

        A mask is what `batch.Masks` gives for a row; None allows every token.
        """
        errors = _errors(logits, NOT_FINITE)
        asked = [row for row, s in enumerate(sequences) if s.request.sampling.logprobs is not None]
        raw = logits[torch.tensor(asked, device=logits.device)] if asked else logits
        if self._shape(logits, sequences, masks):
            best = logits.amax(-1).tolist()
            errors = [
                error or _shaping_error(value, mask)
                for error, value, mask in zip(errors, best, masks, strict=True)
            ]
        tokens = logits.argmax(-1).tolist()
        drawn = [
            row
            for row, sequence in enumerate(sequences)
            if sequence.request.sampling.temperature > 0 and errors[row] is None
        ]
        if drawn:
            picked = _draw(_pick(logits, drawn), [sequences[row] for row in drawn])
            for row, token in zip(drawn, picked, strict=True):
                tokens[row] = token
        results = [
            RowResult(token=token) if error is None else RowResult(error=error)
            for token, error in zip(tokens, errors, strict=True)
        ]
        self._add_logprobs(results, raw, asked, sequences)
        return results

    def _shape(self, logits: Tensor, sequences: Rows[Sequence], masks: Rows[memoryview | None]) -> bool:
        """Bias, penalties and bars, in place. False if no row has any."""
        shaped = [row for row, sequence in enumerate(sequences) if _is_shaped(sequence)]
        for row in shaped:
            self._shape_row(logits[row], sequences[row])
        masked = [row for row, mask in enumerate(masks) if mask is not None]
        if masked:
            words = [torch.frombuffer(mask, dtype=torch.int32) for mask in masks if mask is not None]
            self._layers.bar(logits, torch.tensor(masked), torch.stack(words))
        return bool(shaped or masked)

    def _shape_row(self, row: Tensor, sequence: Sequence) -> None:
        sampling = sequence.request.sampling
        if sampling.logit_bias:
            ids = torch.tensor(list(sampling.logit_bias), device=row.device)
            row[ids] += torch.tensor(list(sampling.logit_bias.values()), dtype=row.dtype, device=row.device)
        if _is_penalised(sampling):
            counts = self._counts.get(sequence.uid)
            if counts is None:
                counts = self._counts[sequence.uid] = _TokenCounts(row.shape[0], row.device)
            counts.catch_up(sequence)
            counts.penalise(row, sampling)
        if sequence.generated < sampling.min_tokens and sampling.stop_token_ids:
            row[torch.tensor(sampling.stop_token_ids, device=row.device)] = -torch.inf

    @staticmethod
    def _add_logprobs(
        results: list[RowResult], raw: Tensor, asked: list[int], sequences: Rows[Sequence]
    ) -> None:
        """`raw` holds the logits of the rows `asked` as the model gave them."""
        places = [place for place, row in enumerate(asked) if results[row].token is not None]
        if not places:
            return
        rows = [asked[place] for place in places]
        tokens = [results[row].token or 0 for row in rows]
        tops = [sequences[row].request.sampling.logprobs or 0 for row in rows]
        for row, logprob in zip(rows, token_logprobs(_pick(raw, places), tokens, tops), strict=True):
            results[row] = RowResult(token=results[row].token, logprob=logprob)


def uniform(seed: int, index: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else: SplitMix64's finaliser, chained over the three.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    word = 0
    for value in (seed, index, position):
        word = ((word ^ (value & _WORD)) + 0x9E3779B97F4A7C15) & _WORD
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
        word ^= word >> 31
    return (word >> 12) * 2.0**-52  # 52 bits: times any float64 total it stays below that total


@dataclass(slots=True)
class _TokenCounts:
    """Which tokens a sequence holds: output counts int32 [V], and whether each occurred at all, bool [V]."""

    output: Tensor
    occurred: Tensor
    known: int

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.output = torch.zeros(vocab_size, dtype=torch.int32, device=device)
        self.occurred = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.known = 0

    def catch_up(self, sequence: Sequence) -> None:
        """Count the tokens added since the last call: all of them once, then one a step."""
        if len(sequence.tokens) == self.known:
            return
        new = torch.tensor(sequence.tokens[self.known :], device=self.output.device)
        self.occurred[new] = True
        output = new[max(sequence.prompt_len - self.known, 0) :]
        self.output.scatter_add_(0, output, torch.ones_like(output, dtype=torch.int32))
        self.known = len(sequence.tokens)

    def penalise(self, row: Tensor, sampling: SamplingParams) -> None:
        """Apply the three penalties to a row of logits, in place."""
        if (repetition := sampling.repetition_penalty) != 1:
            weakened = torch.where(row > 0, row / repetition, row * repetition)
            row.copy_(torch.where(self.occurred, weakened, row))
        if sampling.presence_penalty:
            row.sub_((self.output > 0).to(row.dtype), alpha=sampling.presence_penalty)
        if sampling.frequency_penalty:
            row.sub_(self.output.to(row.dtype), alpha=sampling.frequency_penalty)


def _is_penalised(sampling: SamplingParams) -> bool:
    return bool(sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty)


def _is_shaped(sequence: Sequence) -> bool:
    sampling = sequence.request.sampling
    return bool(sampling.logit_bias or _is_penalised(sampling) or sequence.generated < sampling.min_tokens)


def _is_truncated(sampling: SamplingParams) -> bool:
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _errors(values: Tensor, message: str) -> list[str | None]:
    """`message` for each row of [N, W] that is not finite: a sum is finite only if every term is."""
    return [None if good else message for good in values.sum(-1).isfinite().tolist()]


def _shaping_error(best: float, mask: memoryview | None) -> str | None:
    """What is wrong with a row whose best shaped logit is this."""
    if math.isfinite(best):
        return None
    if best == -math.inf and mask is not None:
        return NOTHING_ALLOWED
    return ALL_BARRED if best == -math.inf else OVERFLOW


def _pick(rows: Tensor, wanted: Rows[int]) -> Tensor:
    """Some rows of a matrix; the matrix itself if that is all of them."""
    return rows if len(wanted) == rows.shape[0] else rows[torch.tensor(wanted, device=rows.device)]


def _draw(logits: Tensor, sequences: Rows[Sequence]) -> list[int]:
    """One token a row, from shaped logits [N, V] and temperatures above 0."""
    params = [sequence.request.sampling for sequence in sequences]
    noise = torch.tensor(
        [uniform(s.request.sampling.seed, s.index, len(s.tokens)) for s in sequences],
        dtype=torch.float64,
        device=logits.device,
    )
    # What float32 makes 0 or infinite would make NaN of the best token or of the barred ones.
    temperatures = torch.tensor(
        [min(max(p.temperature, _FLOAT32.tiny), _FLOAT32.max) for p in params], device=logits.device
    ).unsqueeze(1)
    shifted = logits - logits.amax(-1, keepdim=True)  # first, so that no temperature overflows
    probabilities = (shifted / temperatures).softmax(-1)
    tokens = [0] * len(params)
    plain = [row for row, p in enumerate(params) if not _is_truncated(p)]
    if plain:
        ranks = _inverse_cdf(_pick(probabilities, plain), _pick(noise, plain)).tolist()
        for row, token in zip(plain, ranks, strict=True):
            tokens[row] = token
    cut = [row for row, p in enumerate(params) if _is_truncated(p)]
    if cut:
        picked = _draw_truncated(_pick(probabilities, cut), _pick(noise, cut), [params[row] for row in cut])
        for row, token in zip(cut, picked, strict=True):
            tokens[row] = token
    return tokens


def _draw_truncated(probabilities: Tensor, noise: Tensor, params: Rows[SamplingParams]) -> list[int]:
    """One token a row [N, V], looking at ever longer lists of its best tokens until one holds all that are kept."""
    tokens = [0] * len(params)
    open_rows = list(range(len(params)))
    vocab_size = probabilities.shape[1]
    for length in (*(length for length in _LISTS if length < vocab_size), vocab_size):
        best, ids = _pick(probabilities, open_rows).topk(length)
        kept = _truncated(best, [params[row] for row in open_rows])
        places = _inverse_cdf(kept, _pick(noise, open_rows))
        drawn = ids.gather(1, places.unsqueeze(1)).squeeze(1).tolist()
        reaches_end = (kept[:, -1] > 0).tolist()
        too_short = []
        for row, token, at_end in zip(open_rows, drawn, reaches_end, strict=True):
            tokens[row] = token
            if length < params[row].top_k or (at_end and params[row].top_k != length):
                too_short.append(row)
        if not too_short:
            break
        open_rows = too_short
    return tokens


def _truncated(ranked: Tensor, params: Rows[SamplingParams]) -> Tensor:
    """Zero what top_k, top_p and min_p drop from probabilities [N, W] in falling order. The best always stays."""
    device, width = ranked.device, ranked.shape[1]

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(1)

    ranks = torch.arange(width, device=device)
    in_top_k = ranks < column([float(p.top_k or width) for p in params])
    mass = (ranked * in_top_k).cumsum(-1, dtype=torch.float64)
    limited = torch.tensor([p.top_k > 0 for p in params], device=device).unsqueeze(1)
    share = column([p.top_p for p in params]) * torch.where(limited, mass[:, -1:], 1.0)
    in_top_p = (mass - ranked < share) | (column([p.top_p for p in params]) >= 1)
    in_min_p = ranked >= column([p.min_p for p in params]) * ranked[:, :1]
    return ranked * ((in_top_k & in_top_p & in_min_p) | (ranks == 0))


def _inverse_cdf(weights: Tensor, noise: Tensor) -> Tensor:
    """The first place of each row [N, W] where the running sum passes noise [N] times the whole. int64 [N]."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    return torch.searchsorted(sums, (noise * sums[:, -1]).unsqueeze(1), right=True).squeeze(1)

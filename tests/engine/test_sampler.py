"""The sampler against tables of cases, a slow restatement of its rules, and the distribution it is to draw from."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.batch import RowResult
from engine.layers import TorchLayers
from engine.sampler import Sampler, uniform
from engine.sequence import Sequence
from tests.plans import make_sequence

LOGITS = [0.5, 3.0, -1.0, 2.0, 2.5, 0.0]


def sample(
    logits: Tensor,
    sequences: list[Sequence],
    masks: list[memoryview | None] | None = None,
    sampler: Sampler | None = None,
) -> list[RowResult]:
    """The logits stay as they were."""
    sampler = sampler or Sampler(TorchLayers())
    return sampler.sample(logits.clone(), sequences, masks or [None] * len(sequences))


def mask_of(*allowed: int, words: int = 1) -> memoryview:
    bits = sum(1 << token for token in allowed)
    return memoryview(bytearray(bits.to_bytes(4 * words, "little"))).cast("i")


def draw(logits: list[float], sequences: list[Sequence]) -> list[int | None]:
    rows = torch.tensor(logits).expand(len(sequences), -1).contiguous()
    return [result.token for result in sample(rows, sequences)]


def draw_many(logits: list[float], count: int, **sampling: Any) -> list[int]:
    """One draw for each of `count` seeds."""
    sequences = [make_sequence(seed, [0], seed=seed, **sampling) for seed in range(count)]
    return [token for token in draw(logits, sequences) if token is not None]


@pytest.mark.parametrize(
    ("sampling", "tokens", "expected"),
    [
        ({}, [0], 1),
        ({"logit_bias": {3: 1.5}}, [0], 3),
        ({"logit_bias": {1: -100.0}}, [0], 4),
        ({"stop_token_ids": (1, 4), "min_tokens": 1}, [0], 3),
        ({"stop_token_ids": (1,)}, [0], 1),
        ({"repetition_penalty": 2.0}, [0, 1], 4),  # 3.0 / 2, even though it is only in the prompt
        ({"presence_penalty": 1.0}, [0, 1], 1),  # the prompt does not count
        ({"temperature": 1.0, "top_k": 1}, [0], 1),
        ({"temperature": 1.0, "top_p": 1e-9}, [0], 1),
        ({"temperature": 1.0, "min_p": 1.0}, [0], 1),
        ({"temperature": 1e-30}, [0], 1),
        ({"temperature": 1e-60}, [0], 1),  # 0 in float32
        ({"temperature": 1e-60, "top_k": 3}, [0], 1),
        ({"temperature": 1.0, "top_k": 1, "logit_bias": {5: 9.0}}, [0], 5),
    ],
    ids=str,
)
def test_the_only_possible_token(sampling: dict[str, Any], tokens: list[int], expected: int) -> None:
    assert draw(LOGITS, [make_sequence(0, tokens, **sampling)]) == [expected]


@pytest.mark.parametrize(
    ("penalty", "output", "expected"),
    [
        ({"presence_penalty": 0.6}, [1, 1, 1], 4),
        ({"presence_penalty": 0.4}, [1, 1, 1], 1),
        ({"frequency_penalty": 0.2}, [1, 1], 1),
        ({"frequency_penalty": 0.2}, [1, 1, 1], 4),
        ({"frequency_penalty": -0.3}, [4, 4], 4),
        ({"repetition_penalty": 1.1}, [1, 1, 1], 1),  # however often it occurred
        ({"repetition_penalty": 1.3}, [1], 4),
    ],
    ids=str,
)
def test_penalties_on_what_was_generated(penalty: dict[str, float], output: list[int], expected: int) -> None:
    sequence = make_sequence(0, [2], **penalty)
    sequence.tokens += output
    assert draw(LOGITS, [sequence]) == [expected]


def test_running_counts_equal_counting_afresh() -> None:
    generator = torch.Generator().manual_seed(3)
    sampling = {
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        "temperature": 0.9,
    }
    running, sequence = Sampler(TorchLayers()), make_sequence(1, [3, 3, 7], **sampling)
    for _ in range(60):
        logits = torch.randn(1, 12, generator=generator)
        (result,) = sample(logits, [sequence], sampler=running)
        assert result == sample(logits, [sequence])[0]
        assert result.token is not None
        sequence.tokens.append(result.token)


def test_forgotten_sequences_leave_nothing_behind() -> None:
    sampler = Sampler(TorchLayers())
    sequences = [make_sequence(uid, [1], presence_penalty=1.0) for uid in range(4)]
    sample(torch.zeros(4, 8), sequences, sampler=sampler)
    sampler.forget([0, 1, 2, 3, 99])
    assert not sampler._counts


# ---- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "allowed", "expected"),
    [
        ({}, (0, 1, 2, 3, 4, 5), 1),
        ({}, (0, 2, 5), 0),
        ({}, (2,), 2),
        ({"logit_bias": {5: 9.0}}, (0, 2), 0),  # a bias lifts no bar
        ({"logit_bias": {5: 9.0}}, (0, 5), 5),
        ({"repetition_penalty": 8.0}, (1, 3), 3),  # of what is allowed the penalised one is not the best
        ({"temperature": 1.0, "top_k": 1}, (0, 3, 4), 4),  # the best of what is allowed, not of all
        ({"temperature": 1.0, "top_p": 1e-9}, (0, 3), 3),
        ({"temperature": 1.0, "min_p": 1.0}, (2, 5), 5),
        ({"temperature": 1e-60}, (0, 2), 0),
    ],
    ids=str,
)
def test_the_only_token_possible_under_a_mask(
    sampling: dict[str, Any], allowed: tuple[int, ...], expected: int
) -> None:
    sequence = make_sequence(0, [0, 1], **sampling)
    (result,) = sample(torch.tensor([LOGITS]), [sequence], [mask_of(*allowed)])
    assert result.token == expected


def test_draws_under_a_mask_follow_the_distribution_of_what_it_allows() -> None:
    sequences = [make_sequence(seed, [0], seed=seed, temperature=1.0) for seed in range(4000)]
    logits = torch.tensor(LOGITS).expand(len(sequences), -1).contiguous()
    tokens = [result.token or 0 for result in sample(logits, sequences, [mask_of(0, 1, 4)] * len(sequences))]
    rest = [logit if token in (0, 1, 4) else -100.0 for token, logit in enumerate(LOGITS)]
    expected = kept_by_the_rules(rest, 1.0, 0, 1.0, 0.0)
    assert_drawn_from(tokens, {token: expected[token] for token in (0, 1, 4)})


def test_a_mask_is_of_its_row_and_logprobs_are_raw() -> None:
    logits = torch.tensor([LOGITS] * 3)
    sequences = [make_sequence(uid, [0], logprobs=1) for uid in range(3)]
    first, free, last = sample(logits, sequences, [mask_of(0, 5), None, mask_of(2, 3)])
    assert (first.token, free.token, last.token) == (0, 1, 3)
    for result in (first, free, last):
        assert result.logprob is not None
        raw = logits[0].log_softmax(-1)[result.token or 0].item()
        assert result.logprob.logprob == pytest.approx(raw, abs=1e-6)
        assert [token for token, _ in result.logprob.top] == [1]


def test_a_mask_that_allows_nothing_fails_its_row_alone() -> None:
    logits = torch.tensor([LOGITS] * 2)
    bad, good = sample(logits, [make_sequence(uid, [0]) for uid in range(2)], [mask_of(), mask_of(3)])
    assert bad.error == "the grammar allows no token here"
    assert good.token == 3


# ---- distribution ----------------------------------------------------------------------------------------------------


def kept_by_the_rules(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """What the module's docstring says, token by token, in exact order."""
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    ranked = sorted(range(len(logits)), key=lambda token: -weights[token])
    if top_k:
        ranked = ranked[:top_k]
    if top_p < 1:
        whole, before, kept = sum(weights[token] for token in ranked), 0.0, []
        for token in ranked:
            if kept and before >= top_p * whole:
                break
            kept.append(token)
            before += weights[token]
        ranked = kept
    ranked = [token for token in ranked if weights[token] >= min_p * weights[ranked[0]]]
    whole = sum(weights[token] for token in ranked)
    return {token: weights[token] / whole for token in ranked}


def assert_drawn_from(tokens: list[int], expected: dict[int, float]) -> None:
    """Nothing outside, and each count within 5 standard deviations. The draws are fixed by their seeds."""
    assert set(tokens) <= set(expected)
    for token, probability in expected.items():
        spread = math.sqrt(len(tokens) * probability * (1 - probability))
        assert abs(tokens.count(token) - len(tokens) * probability) <= 5 * spread + 1


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (2.0, 0, 1.0, 0.0),
        (1.0, 3, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.5, 4, 0.7, 0.1),
        (1.0, 2, 0.9, 0.0),  # 0.9 of what top_k left, not of the whole
        (1.0, 99, 1.0, 0.0),
    ],
)
def test_draws_follow_the_distribution(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    tokens = draw_many(LOGITS, 4000, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert len(tokens) == 4000
    assert_drawn_from(tokens, kept_by_the_rules(LOGITS, temperature, top_k, top_p, min_p))


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(0, 0.9, 0.0), (300, 1.0, 0.0), (128, 1.0, 0.0), (129, 0.99, 0.0), (0, 1.0, 0.3), (5, 0.5, 0.0)],
)
def test_a_flat_distribution_reaches_past_the_short_list(top_k: int, top_p: float, min_p: float) -> None:
    logits = [-token / 400 for token in range(600)]
    expected = kept_by_the_rules(logits, 1.0, top_k, top_p, min_p)
    tokens = draw_many(logits, 3000, temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    assert set(tokens) <= set(expected)
    assert max(tokens) > 0.95 * max(expected)  # the far end is really reached
    assert abs(sum(tokens) / 3000 - sum(t * p for t, p in expected.items())) < 0.05 * len(expected)


samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from((0.0, 0.3, 1.0, 3.0)),
        "top_k": st.sampled_from((0, 0, 1, 5, 128, 150)),
        "top_p": st.sampled_from((1.0, 1.0, 0.5, 0.999)),
        "min_p": st.sampled_from((0.0, 0.0, 0.1)),
        "presence_penalty": st.sampled_from((0.0, 0.0, 1.0)),
        "logit_bias": st.sampled_from(({}, {}, {3: 4.0})),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "logprobs": st.sampled_from((None, None, 0, 3)),
    }
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(params=st.lists(samplings, min_size=2, max_size=7), spread=st.sampled_from((0.1, 1.0, 5.0)))
def test_a_row_is_treated_alike_alone_and_in_any_batch(params: list[dict[str, Any]], spread: float) -> None:
    logits = torch.randn(len(params), 200, generator=torch.Generator().manual_seed(9)) * spread
    sequences = [make_sequence(uid, [1, 2, 3], index=uid % 2, **p) for uid, p in enumerate(params)]
    together = sample(logits, sequences)
    alone = [sample(logits[i : i + 1], [s])[0] for i, s in enumerate(sequences)]
    assert [r.token for r in together] == [r.token for r in alone]
    for a, b in zip(together, alone, strict=True):
        assert (a.logprob is None) == (b.logprob is None)
        if a.logprob is not None and b.logprob is not None:
            assert a.logprob.logprob == pytest.approx(b.logprob.logprob, abs=1e-5)


def test_noise_depends_on_seed_index_and_position_only() -> None:
    base = uniform(1, 2, 3)
    assert uniform(1, 2, 3) == base
    assert len({base, uniform(2, 1, 3), uniform(1, 3, 2), uniform(3, 2, 1), uniform(1, 2, 4)}) == 5
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)


def test_noise_is_uniform_along_positions_and_seeds() -> None:
    for values in ([uniform(7, 0, p) for p in range(4000)], [uniform(s, 0, 5) for s in range(4000)]):
        assert all(0 <= value < 1 for value in values)
        histogram = [sum(int(value * 16) == bin_ for value in values) for bin_ in range(16)]
        assert sum((count - 250) ** 2 / 250 for count in histogram) < 45  # chi-square, 15 degrees: p > 1e-4
        pairs = sum(a * b for a, b in pairwise(values)) / 3999
        assert abs(pairs - 0.25) < 0.01


# ---- results ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(value: float) -> None:
    logits = torch.tensor(LOGITS).repeat(3, 1)
    logits[1, 2] = value
    sequences = [make_sequence(uid, [0], temperature=t, logprobs=1) for uid, t in enumerate((0.0, 1.0, 1.0))]
    first, bad, last = sample(logits, sequences)
    assert bad.error is not None
    assert "not finite" in bad.error
    assert bad.token is None
    assert first.token == 1
    assert last.token is not None
    assert last.error is None


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = torch.tensor([LOGITS, LOGITS])
    expected = logits[0].log_softmax(-1)
    biased = make_sequence(0, [0], logit_bias={5: 50.0}, logprobs=2)
    plain = make_sequence(1, [0], temperature=0.7, top_k=2, logprobs=0)
    first, second = sample(logits, [biased, plain])
    assert first.token == 5
    assert first.logprob is not None
    assert second.logprob is not None
    assert first.logprob.logprob == pytest.approx(expected[5].item(), abs=1e-6)
    assert [token for token, _ in first.logprob.top] == [1, 4]
    assert first.logprob.top[0][1] == pytest.approx(expected[1].item(), abs=1e-6)
    assert second.logprob.top == ()


def test_more_alternatives_than_tokens_are_all_of_them() -> None:
    (result,) = sample(torch.tensor([LOGITS]), [make_sequence(0, [0], logprobs=20)])
    assert result.logprob is not None
    assert len(result.logprob.top) == len(LOGITS)


def test_a_temperature_beyond_float32_still_draws_no_barred_token() -> None:
    tokens = draw_many(LOGITS, 50, temperature=1e300, stop_token_ids=(1, 4), min_tokens=1)
    assert set(tokens) == {0, 2, 3, 5}


def test_a_row_that_its_penalty_makes_overflow_fails_alone_and_says_why() -> None:
    logits = torch.tensor([LOGITS, LOGITS])
    overflowing = make_sequence(0, [1], repetition_penalty=1e-40, temperature=1.0)
    bad, good = sample(logits, [overflowing, make_sequence(1, [1])])
    assert bad.error is not None
    assert "overflow" in bad.error
    assert good.token == 1


def test_a_row_with_every_token_barred_fails_alone() -> None:
    logits: Tensor = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    barred = make_sequence(0, [0], min_tokens=1, stop_token_ids=(0, 1), temperature=1.0)
    bad, good = sample(logits, [barred, make_sequence(1, [0])])
    assert bad.error is not None
    assert good.token == 1

"""Deterministic mode: not one bit of an answer depends on chunks, company, or what the cache held."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.config import EngineConfig
from engine.invariant import TILE, InvariantLayers
from engine.layers import TorchLayers
from engine.llm import LLM
from engine.request import GenerationRequest, SamplingParams
from engine.runner import TorchRunner
from tests.plans import make_sequence, row_of, run_rows
from tests.toy_models import VOCAB_SIZE, build_toy_model

KINDS = {
    "torch-float32": (torch.float32, False),
    "torch-bfloat16": (torch.bfloat16, False),
    "native-float32": (torch.float32, True),
    "native-bfloat16": (torch.bfloat16, True),
}


def words(length: int, seed: int) -> list[int]:
    noise = random.Random(seed)
    return [noise.randrange(2, VOCAB_SIZE) for _ in range(length)]


@pytest.fixture(scope="module", params=KINDS)
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    dtype, native = KINDS[request.param]
    directory = tmp_path_factory.mktemp("toy")
    build_toy_model(directory, "mistral-window", dtype=dtype)
    return EngineConfig(
        model_dir=str(directory),
        device="cpu",
        pages=64,
        threads=2,
        max_running=8,
        max_step_tokens=96,
        native_kernels=native,
        deterministic=True,
    )


@pytest.fixture(scope="module")
def runner(config: EngineConfig) -> TorchRunner:
    return TorchRunner.load(config)


def test_cutting_a_prompt_and_giving_it_company_changes_no_bit(runner: TorchRunner) -> None:
    assert runner.info.deterministic
    prompt = words(150, 1)
    alone = make_sequence(0, prompt, range(10), prompt_logprobs=0)
    expected = run_rows(runner, row_of(alone))[0].prompt_logprobs
    assert expected is not None
    shared = make_sequence(1, prompt, range(10, 20), prompt_logprobs=0)
    found: list[object] = []
    for at, count in enumerate((1, 30, 66, 2, 51)):
        company = [make_sequence(10 + i, words(9 + 5 * i, at), [20 + 2 * i, 21 + 2 * i]) for i in range(at)]
        rows = [row_of(other) for other in company[: at // 2]]
        rows.append(row_of(shared, count))
        rows += [row_of(other) for other in company[at // 2 :]]
        found += run_rows(runner, *rows)[at // 2].prompt_logprobs or ()
    assert tuple(found) == expected


class Engines:
    """An engine whose cache is warm by now, and what one without a cache says."""

    def __init__(self, config: EngineConfig) -> None:
        self.warm = LLM(config)
        self._config = config
        self._cold = LLM(_without_cache(config))

    def cold(self, prompt: list[int], sampling: SamplingParams) -> list[Any]:
        return _said(self._cold.answer([_request("cold", prompt, sampling)])[0])

    def close(self) -> None:
        self.warm.close()
        self._cold.close()


def _without_cache(config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(config, prefix_cache=False, max_running=1, max_step_tokens=256)


@pytest.fixture(scope="module")
def engines(config: EngineConfig) -> Iterator[Engines]:
    engines = Engines(config)
    yield engines
    engines.close()


_numbers = iter(range(10**9))


def _request(name: str, prompt: list[int], sampling: SamplingParams) -> GenerationRequest:
    return GenerationRequest(request_id=f"{name}-{next(_numbers)}", prompt=prompt, sampling=sampling)


def _said(completion: Any) -> list[Any]:
    return [(answer.tokens, answer.logprobs) for answer in completion.answers]


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_an_answer_is_the_same_cold_and_warm_in_any_batch(engines: Engines, data: st.DataObject) -> None:
    """Random prompts that begin alike, cut at random places, several at once, in an engine that has seen such before."""
    base = words(120, data.draw(st.integers(0, 2)))
    requests = []
    for _ in range(data.draw(st.integers(1, 5))):
        cut = data.draw(st.integers(1, len(base)))
        prompt = base[:cut] + words(data.draw(st.integers(1, 20)), data.draw(st.integers(0, 99)))
        temperature = data.draw(st.sampled_from([0.0, 1.0]))
        sampling = SamplingParams(
            max_tokens=6, temperature=temperature, seed=data.draw(st.integers(0, 9)), logprobs=2
        )
        requests.append(_request("warm", prompt, sampling))
    engines.warm.answer(requests[:1])
    before = engines.warm.counters.cached_tokens
    found = engines.warm.answer([_request("again", one.prompt, one.sampling) for one in requests])
    assert engines.warm.counters.cached_tokens > before  # else nothing was shown
    for one, completion in zip(requests, found, strict=True):
        assert completion.error is None
        assert _said(completion) == engines.cold(one.prompt, one.sampling)


def test_without_being_asked_for_only_the_kernels_promise_it(config: EngineConfig) -> None:
    plain = TorchRunner.load(msgspec.structs.replace(config, deterministic=False))
    native_half = config.native_kernels and plain.info.dtype == "bfloat16"
    assert plain.info.deterministic in ((True, False) if native_half else (False,))


class Careless(TorchLayers):
    """A product that depends on a row's place, as a library's may."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super().linear(x, weight, bias) + torch.arange(x.shape[0]).unsqueeze(1) * 1e-6


@pytest.mark.parametrize(("layers", "alone"), [(TorchLayers(), False), (Careless(), True)])
def test_a_machine_that_does_not_keep_rows_apart_computes_them_alone(
    layers: TorchLayers, alone: bool
) -> None:
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    x = torch.randn(3 * TILE + 5, 64, generator=torch.Generator().manual_seed(2))
    invariant = InvariantLayers(layers, [weight])
    assert invariant.one_by_one is alone
    together = invariant.linear(x, weight, None)
    torch.testing.assert_close(together, TorchLayers().linear(x, weight, None))
    for row in (0, 1, TILE, 3 * TILE + 4):
        assert torch.equal(invariant.linear(x[row : row + 1], weight, None)[0], together[row])

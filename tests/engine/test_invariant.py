"""Deterministic mode: not one bit of an answer depends on chunks, company, what the cache held, or where it held it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cache.lease import CachePolicy, EntrySpec, FlushScope, Lease, Tier
from engine import load_costs
from engine.config import EngineConfig
from engine.invariant import TILE, InvariantLayers
from engine.layers import TorchLayers
from engine.llm import LLM
from engine.load_costs import always_dear
from engine.request import ExportPages, GenerationRequest, ImportPages, SamplingParams, TransferReport
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


def _request(
    name: str, prompt: list[int], sampling: SamplingParams, policy: CachePolicy | None = None
) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"{name}-{next(_numbers)}", prompt=prompt, sampling=sampling, cache=policy or CachePolicy()
    )


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
    requests = _draw(data, words(120, data.draw(st.integers(0, 2))))
    engines.warm.answer(requests[:1])
    before = engines.warm.counters.cached_tokens
    found = engines.warm.answer([_request("again", one.prompt, one.sampling) for one in requests])
    assert engines.warm.counters.cached_tokens > before  # else nothing was shown
    for one, completion in zip(requests, found, strict=True):
        assert completion.error is None
        assert _said(completion) == engines.cold(one.prompt, one.sampling)


def _draw(data: st.DataObject, base: list[int], *, most: int = 5, least: int = 1) -> list[GenerationRequest]:
    """Requests that share the first words of `base`, each as many as it likes, but the first at least so many."""
    requests = []
    for number in range(data.draw(st.integers(1, most))):
        cut = data.draw(st.integers(1 if number else least, len(base)))
        prompt = base[:cut] + words(data.draw(st.integers(1, 20)), data.draw(st.integers(0, 99)))
        temperature = data.draw(st.sampled_from([0.0, 1.0]))
        sampling = SamplingParams(
            max_tokens=6, temperature=temperature, seed=data.draw(st.integers(0, 9)), logprobs=2
        )
        requests.append(_request("drawn", prompt, sampling))
    return requests


@dataclass(slots=True)
class Tiered:
    """An engine with a host and a disk tier, some way to bring what it has cached below its device, and back."""

    config: EngineConfig
    llm: LLM

    @classmethod
    def start(cls, config: EngineConfig, directory: Path) -> Tiered:
        config = msgspec.structs.replace(
            config, host_bytes=8 << 20, cache_dir=str(directory / "cache"), disk_bytes=64 << 20
        )
        tiered = cls(config, LLM(config))
        tiered._never_recompute()
        return tiered

    def _never_recompute(self) -> None:
        """This model computes faster than pages are brought up, and then nobody would."""
        self.llm._engine._moves._tiers.costs._recompute = always_dear

    def fill(self, one: GenerationRequest) -> None:
        """It is leased for long enough to be worth a file."""
        lease = EntrySpec(entry_id=one.request_id, tokens=len(one.prompt), lease=Lease(ttl=1800.0))
        self.llm.answer([_request("fill", one.prompt, one.sampling, CachePolicy(entries=(lease,)))])

    def host(self) -> None:
        self._settle()
        self.llm._engine._scheduler.cache.evict(1000)
        self._settle()

    def disk(self) -> None:
        self.host()
        self.llm._engine._moves._tiers.host.flush_roots(FlushScope())

    def restart(self) -> None:
        self.llm.close()
        self.llm = LLM(self.config)
        self._never_recompute()

    def move(self, directory: Path, prompt: list[int]) -> None:
        """Out to a file, and in again once nothing of it is left."""
        path = str(directory / f"pages-{next(_numbers)}")
        written = self._transfer(ExportPages(next(_numbers), path, prompt))
        self.llm.flush()
        assert self.llm.look_up(prompt).device == 0
        lease = Lease(ttl=1800.0)
        read = self._transfer(ImportPages(next(_numbers), path, f"i{next(_numbers)}", lease))
        assert (written.error, read.error) == (None, None)
        assert read.tokens == written.tokens > 0

    def found(self, requests: list[GenerationRequest]) -> tuple[list[Any], dict[Tier, int]]:
        """What is answered, and how many tokens of the prompts came from which tier."""
        before = self.llm.counters.cache
        said = self.llm.answer([_request("again", one.prompt, one.sampling) for one in requests])
        after = self.llm.counters.cache
        tiers: tuple[Tier, ...] = ("device", "host", "disk")
        return said, {
            tier: getattr(after, tier).hit_tokens - getattr(before, tier).hit_tokens for tier in tiers
        }

    def _transfer(self, question: ExportPages | ImportPages) -> TransferReport:
        self.llm._engine.ask(question)
        for _ in self._idle_turns():
            for report in self.llm._engine.take_reports():
                assert isinstance(report, TransferReport)
                return report
        raise AssertionError("no answer")

    def _settle(self) -> None:
        """Until no page is on its way."""
        moves = self.llm._engine._moves
        traffic, tiers = moves._traffic, moves._tiers
        assert traffic is not None
        for _ in self._idle_turns():
            if not (traffic._spills or traffic._reads or traffic._done or tiers.waiting or tiers._lasting):
                return
        raise AssertionError("pages are on their way for ever")

    def _idle_turns(self) -> Iterator[None]:
        due = time.monotonic() + 20
        while time.monotonic() < due:
            assert self.llm._engine.plan() is None
            yield
            self.llm._engine.wakeup.wait(0.005)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_costs, "SLACK", 10.0)


SOURCES: dict[str, Tier] = {"host": "host", "disk": "disk", "restart": "disk", "import": "device"}


@pytest.mark.parametrize("source", SOURCES)
def test_an_answer_is_the_same_whatever_tier_its_prefix_comes_from(
    engines: Engines, config: EngineConfig, source: str, tmp_path: Path, patience: None
) -> None:
    tiered = Tiered.start(config, tmp_path)

    @settings(max_examples=2, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(data=st.data())
    def answers_agree(data: st.DataObject) -> None:
        tiered.llm.flush()
        requests = _draw(data, words(80, data.draw(st.integers(0, 2))), most=3, least=40)
        tiered.fill(requests[0])
        match source:
            case "host":
                tiered.host()
            case "disk":
                tiered.disk()
            case "restart":
                tiered.restart()
            case "import":
                tiered.move(tmp_path, requests[0].prompt)
        answers, found = tiered.found(requests)
        assert found[SOURCES[source]] >= 32, "at least two pages of the first prompt"
        for one, completion in zip(requests, answers, strict=True):
            assert completion.error is None
            assert _said(completion) == engines.cold(one.prompt, one.sampling)
        tiered.llm._engine._scheduler.check()

    try:
        answers_agree()
    finally:
        tiered.llm.close()


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

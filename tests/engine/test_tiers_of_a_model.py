"""A real model in deterministic mode: not a bit of an answer tells where its prefix came from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cache.lease import FlushScope, Lease, Tier
from engine import load_costs
from engine.config import EngineConfig
from engine.llm import LLM, Completion
from engine.load_costs import always_dear
from engine.request import ExportPages, FlushCache, GenerationRequest, ImportPages, SamplingParams
from tests.toy_models import VOCAB_SIZE, build_toy_model

SIZE = 4
GREEDY = SamplingParams(max_tokens=6, temperature=0.0, logprobs=2)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    build_toy_model(directory, "qwen3")
    return directory


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_costs, "SLACK", 10.0)


@pytest.fixture(params=["float32", "bfloat16"])
def config(request: pytest.FixtureRequest, model_dir: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "model_dir": str(model_dir),
        "dtype": request.param,
        "page_size": SIZE,
        "pages": 64,
        "max_model_len": 128,
        "threads": 1,
        "device": "cpu",
        "deterministic": True,
        "host_bytes": 4 << 20,
        "cache_dir": str(tmp_path / "cache"),
    }


class Asked:
    def __init__(self, config: dict[str, Any]) -> None:
        self.llm = LLM(EngineConfig(**config))
        self.engine = self.llm._engine
        self.engine._moves._tiers.costs._recompute = always_dear

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *exception: object) -> None:
        self.llm.close()

    def ask(self, name: str, prompt: list[int], chunk: int = 512) -> tuple[Completion, dict[Tier, int]]:
        before = self.llm.counters.cache
        self.engine._scheduler.max_step_tokens = chunk
        request = GenerationRequest(request_id=name, prompt=prompt, sampling=GREEDY, namespace=b"n")
        (completion,) = self.llm.answer([request])
        after = self.llm.counters.cache
        tiers: tuple[Tier, ...] = ("device", "host", "disk")
        return completion, {t: getattr(after, t).hit_tokens - getattr(before, t).hit_tokens for t in tiers}

    def to_host(self) -> None:
        self.engine._scheduler.cache.evict(1000)
        while self.engine._moves.save_now():
            pass

    def report(self, question: Any) -> Any:
        self.engine.ask(question)
        while True:
            self.engine.plan()
            if reports := self.engine.take_reports():
                return reports[0]


def cuts() -> Iterator[tuple[int, int]]:
    """Where the prompt was cut into a prefix that is known and a rest, and the tokens of a step."""
    draw = random.Random(5)
    for _ in range(3):
        yield draw.randrange(9, 60), draw.choice((64, 67, 512))


def test_not_a_bit_tells_where_a_prefix_came_from(config: dict[str, Any], tmp_path: Path) -> None:
    draw = random.Random(3)
    prompt = [draw.randrange(2, VOCAB_SIZE) for _ in range(70)]
    nothing = {**config, "prefix_cache": False, "host_bytes": 0, "cache_dir": None}
    with Asked(nothing) as cold:
        expected = [cold.ask("cold", prompt, chunk)[0].answers for _, chunk in cuts()]
        assert len(set(expected)) == 1, "deterministic mode is not"
    for number, (cut, chunk) in enumerate(cuts()):
        known = cut // SIZE * SIZE
        with Asked(config) as warm:
            warm.report(FlushCache(9, FlushScope()))
            warm.ask(f"prefix {number}", prompt[:cut], chunk)
            warm.to_host()
            for tier in ("host", "device"):
                got, found = warm.ask(f"{tier} {number}", prompt, chunk)
                assert got.answers == expected[0], tier
                assert found[tier] >= known, tier  # type: ignore[index]
            file = tmp_path / f"pages {number}"
            export = warm.report(ExportPages(1, str(file), prompt[:cut], namespace=b"n"))
            assert export.error is None
            assert export.tokens == cut
        with Asked(config) as again:
            got, found = again.ask("disk", prompt, chunk)
            assert got.answers == expected[0]
            assert found["disk"] >= known
        with Asked({**config, "cache_dir": None}) as elsewhere:
            asked = ImportPages(2, str(file), "e", Lease(ttl=60.0), namespace=b"n")
            assert elsewhere.report(asked).tokens == cut
            got, found = elsewhere.ask("imported", prompt, chunk)
            assert got.answers == expected[0]
            assert found["device"] == cut

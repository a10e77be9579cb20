"""The torch runner on a toy in float32: whatever shares a step with a row must not show in what the row gets."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import NO_MASKS, PageCopy, Plan, PlannedRow, RowResult
from engine.config import EngineConfig
from engine.errors import ModelError, StartError
from engine.runner import TorchRunner
from engine.sequence import Sequence
from tests.plans import make_sequence, row_of, run_rows
from tests.toy_models import MAX_POSITIONS, VOCAB_SIZE, build_toy_model

TOLERANCE = 1e-4  # of a log-probability, float32, sums in another order
PAGES_EACH = 8


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("toy")
    build_toy_model(directory, "mistral-window")
    return directory


def load(model_dir: Path, **config: Any) -> TorchRunner:
    return TorchRunner.load(
        EngineConfig(model_dir=str(model_dir), **{"pages": 64, "threads": 1, "device": "cpu", **config})
    )


@pytest.fixture(scope="module", params=[False, True], ids=["torch", "native"])
def runner(request: pytest.FixtureRequest, model_dir: Path) -> TorchRunner:
    runner = load(model_dir, native_kernels=request.param)
    if request.param and runner.info.attention != "native":
        pytest.skip("the kernels cannot be built here")
    return runner


def prompt(length: int, seed: int) -> list[int]:
    return [random.Random(seed * 1000 + at).randrange(VOCAB_SIZE) for at in range(length)]


def logprob(result: RowResult) -> float:
    assert result.logprob is not None
    return result.logprob.logprob


def generate(runner: TorchRunner, sequence: Sequence, count: int) -> list[RowResult]:
    """A sequence alone: its prompt in one step, then a token a step."""
    return [run_rows(runner, row_of(sequence))[0] for _ in range(count)]


SAMPLINGS: list[dict[str, Any]] = [
    {"logprobs": 2},
    {"logprobs": 0, "temperature": 0.8, "seed": 5},
    {"logprobs": 0, "temperature": 1.2, "top_p": 0.9, "seed": 6},
    {"logprobs": 0, "presence_penalty": 0.5, "repetition_penalty": 1.2},
]


def test_a_batch_of_chunks_and_tokens_equals_each_alone(runner: TorchRunner) -> None:
    def make(first_uid: int) -> list[Sequence]:
        return [
            make_sequence(
                first_uid + at,
                prompt(11 + 9 * at, at),
                range(at * PAGES_EACH, (at + 1) * PAGES_EACH),
                **sampling,
            )
            for at, sampling in enumerate(SAMPLINGS)
        ]

    alone = [generate(runner, sequence, 6) for sequence in make(100)]
    together: list[list[RowResult]] = [[] for _ in SAMPLINGS]
    rng = random.Random(1)
    sequences = make(200)
    while any(len(found) < 6 for found in together):
        rows = [
            row_of(sequence, rng.randint(1, len(sequence.tokens) - sequence.computed))
            for sequence, found in zip(sequences, together, strict=True)
            if len(found) < 6 and rng.random() < 0.8
        ]
        rng.shuffle(rows)
        for row, result in zip(rows, run_rows(runner, *rows), strict=True):
            assert (result.token is not None) == row.sample
            if row.sample:
                together[sequences.index(row.sequence)].append(result)
    for expected, found in zip(alone, together, strict=True):
        assert [result.token for result in found] == [result.token for result in expected]
        assert [logprob(result) for result in found] == pytest.approx(
            [logprob(r) for r in expected], abs=TOLERANCE
        )


def test_bfloat16_answers_are_the_same_to_the_last_bit_in_any_company(tmp_path: Path) -> None:
    """The kernels fix the order of every sum, so caching, chunking and batching cannot change a greedy answer."""
    build_toy_model(tmp_path, "mistral-window", dtype=torch.bfloat16)
    runner = load(tmp_path)
    if runner.info.attention != "native" or "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs the kernels and bfloat16 instructions")
    tokens = prompt(150, 1)
    alone = make_sequence(0, tokens, range(10), prompt_logprobs=0)
    expected = run_rows(runner, row_of(alone))[0].prompt_logprobs
    shared = make_sequence(1, tokens, range(10, 20), prompt_logprobs=0)
    found = []
    for at, count in enumerate((1, 30, 66, 2, 51)):
        company = [make_sequence(10 + i, prompt(9, at), [20 + i]) for i in range(at)]
        found += (
            run_rows(runner, *(row_of(other) for other in company), row_of(shared, count))[-1].prompt_logprobs
            or ()
        )
    assert tuple(found) == expected


def test_choices_share_prompt_pages_by_copying_the_tail(runner: TorchRunner) -> None:
    tokens = prompt(21, 7)  # one full page and five positions
    first = make_sequence(0, tokens, [0, 1, 2], logprobs=0)
    expected = generate(runner, first, 8)
    # A foreign sequence has scribbled over the page that the copy will land on.
    run_rows(runner, row_of(make_sequence(9, prompt(16, 8), [5])))
    second = make_sequence(1, tokens, [0, 5, 6], index=1, logprobs=0)
    second.computed = 20
    found = [*run_rows(runner, row_of(second), copies=(PageCopy(1, 5, 4),)), *generate(runner, second, 7)]
    assert [result.token for result in found] == [result.token for result in expected]
    assert [logprob(result) for result in found] == pytest.approx(
        [logprob(r) for r in expected], abs=TOLERANCE
    )


def test_recomputing_after_preemption_continues_the_same_answer(runner: TorchRunner) -> None:
    sampling = {"logprobs": 0, "temperature": 0.9, "frequency_penalty": 0.7, "seed": 3}
    expected = generate(runner, make_sequence(300, prompt(13, 4), range(4), **sampling), 8)
    sequence = make_sequence(301, prompt(13, 4), range(4), **sampling)
    found = generate(runner, sequence, 4)
    sequence.computed, sequence.pages = 0, [20, 30, 25, 22]
    found += generate(runner, sequence, 4)
    assert [result.token for result in found] == [result.token for result in expected]


@pytest.mark.parametrize("chunks", [(40,), (1, 17, 22), (39, 1)], ids=str)
def test_prompt_logprobs_are_the_same_however_the_prompt_is_cut(
    runner: TorchRunner, chunks: tuple[int, ...]
) -> None:
    tokens = prompt(40, 2)
    sequence = make_sequence(1, tokens, range(8, 12), prompt_logprobs=2)
    found = [result for chunk in chunks for result in run_rows(runner, row_of(sequence, chunk))]
    items = [item for result in found for item in result.prompt_logprobs or ()]
    assert [item.token for item in items] == tokens[1:]
    assert all(len(item.top) == 2 for item in items)
    for position in (
        5,
        23,
        38,
    ):  # as the log-probability of a token that the prompt's start would be followed by
        start = make_sequence(2, tokens[:position], range(16, 20), logprobs=2)
        (result,) = run_rows(runner, row_of(start))
        assert result.logprob is not None
        assert dict(items[position - 1].top) == pytest.approx(dict(result.logprob.top), abs=TOLERANCE)


def test_prompt_logprobs_are_for_the_first_choice_and_the_prompt_only(runner: TorchRunner) -> None:
    first = make_sequence(0, prompt(9, 1), range(2), prompt_logprobs=0)
    assert len(run_rows(runner, row_of(first))[0].prompt_logprobs or ()) == 8
    assert run_rows(runner, row_of(first))[0].prompt_logprobs is None
    second = make_sequence(1, prompt(9, 1), range(2, 4), index=1, prompt_logprobs=0)
    assert run_rows(runner, row_of(second))[0].prompt_logprobs is None


def test_a_poisoned_row_fails_alone(runner: TorchRunner) -> None:
    bad, good = make_sequence(0, prompt(5, 1), [40]), make_sequence(1, prompt(5, 2), [41], logprobs=0)
    prompted = make_sequence(2, prompt(5, 1), [40], prompt_logprobs=0)
    expected = generate(runner, make_sequence(3, prompt(5, 2), [42], logprobs=0), 1)
    bad.computed = prompted.computed = 4
    runner._pool.layers[1].keys[40] = torch.nan
    first, second, third = run_rows(runner, row_of(bad), row_of(good), row_of(prompted))
    runner._pool.layers[1].keys[40] = 0.0
    assert first.error is not None
    assert third.error is not None
    assert second.token == expected[0].token
    assert logprob(second) == pytest.approx(logprob(expected[0]), abs=TOLERANCE)


@dataclass
class Given:
    """By the sequence's uid."""

    masks: dict[int, memoryview | RowResult]

    def of(self, row: PlannedRow) -> memoryview | RowResult | None:
        return self.masks.get(row.sequence.uid)


def test_masked_postponed_and_free_rows_share_a_step(runner: TorchRunner) -> None:
    """Each gets what it would alone; who may not be sampled yet is once it may."""
    free, masked, late, failed = (
        make_sequence(uid, prompt(7 + uid, uid), [4 * uid], logprobs=1) for uid in range(4)
    )
    expected = [
        generate(runner, make_sequence(9 + uid, prompt(7 + uid, uid), [40], logprobs=1), 1)[0]
        for uid in range(4)
    ]
    best = expected[1].token
    assert best is not None
    bits = sum(1 << token for token in range(VOCAB_SIZE) if token != best)
    words = memoryview(bytearray(bits.to_bytes(4 * -(-VOCAB_SIZE // 32), "little"))).cast("i")
    given = Given({1: words, 2: RowResult(postponed=True), 3: RowResult(error="no token fits")})
    rows = [row_of(sequence) for sequence in (late, free, failed, masked)]
    results = runner.run(Plan(0, tuple(rows)), given).rows
    assert results[0] == RowResult(postponed=True)
    assert results[1].token == expected[0].token
    assert results[2] == RowResult(error="no token fits")
    assert results[3].token != best
    assert results[3].logprob is not None
    assert expected[1].logprob is not None
    assert results[3].logprob.top[0][0] == best, "log-probabilities are those of the raw distribution"
    late.computed = len(late.tokens) - 1
    assert run_rows(runner, row_of(late))[0].token == expected[2].token
    nobody = runner.run(Plan(1, (row_of(failed),)), given).rows
    assert nobody == (RowResult(error="no token fits"),)


def test_a_plan_without_rows_still_copies_and_retires(runner: TorchRunner) -> None:
    sequence = make_sequence(77, prompt(5, 1), [0], presence_penalty=1.0)
    run_rows(runner, row_of(sequence))
    assert 77 in runner._sampler._counts
    assert runner.run(Plan(1, (), (PageCopy(0, 50, 5),), (77,)), NO_MASKS).rows == ()
    assert torch.equal(runner._pool.layers[0].keys[50, :, :5], runner._pool.layers[0].keys[0, :, :5])
    assert 77 not in runner._sampler._counts


# ---- loading ---------------------------------------------------------------------------------------------------------


def test_info_says_what_was_loaded(model_dir: Path) -> None:
    info = load(model_dir, native_kernels=False).info
    assert (info.vocab_size, info.max_model_len, info.pages, info.page_size) == (
        VOCAB_SIZE,
        MAX_POSITIONS,
        64,
        16,
    )
    assert (info.device, info.dtype, info.attention) == ("cpu", "float32", "torch")
    assert (
        info.page_bytes == 2 * 2 * 2 * 16 * 16 * 4
    )  # layers, keys and values, heads, positions, width, bytes
    stored = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    assert 0.9 * stored < info.weight_bytes < stored  # the rest is the file's header


@pytest.mark.parametrize(("stored", "dtype", "expected"), [
    (torch.float16, "auto", "bfloat16"),
    (torch.bfloat16, "auto", "bfloat16"),
    (torch.bfloat16, "float32", "float32"),
    (torch.float32, "bfloat16", "bfloat16"),
], ids=str)  # fmt: skip
def test_dtype(tmp_path: Path, stored: torch.dtype, dtype: str, expected: str) -> None:
    build_toy_model(tmp_path, dtype=stored)
    runner = load(tmp_path, dtype=dtype)
    assert runner.info.dtype == expected
    assert run_rows(runner, row_of(make_sequence(0, prompt(20, 1), [3, 1])))[0].token is not None


def test_pages_come_from_memory_when_nothing_is_set(model_dir: Path) -> None:
    size = load(model_dir).info.page_bytes
    assert load(model_dir, pages=None, kv_bytes=20 * size + 1).info.pages == 20
    assert load(model_dir, pages=None).info.pages > MAX_POSITIONS // 16


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"pages": 3},
            "3 KV pages of 16 tokens cannot hold one sequence of max_model_len 256: lower max_model_len to 48",
        ),
        ({"pages": None, "kv_bytes": 100}, "0 KV pages"),
        ({"pages": None, "kv_bytes": 2**47}, r"KV pages need 140\d+ bytes, but only \d+ are available"),
        ({"pages": 2**40}, "lower kv_bytes or pages"),
        ({"max_model_len": 257}, "more than the model's own 256"),
        ({"model_dir": None}, "no model directory"),
        ({"model_dir": "/nonexistent"}, "No such file"),
    ],
    ids=str,
)
def test_what_cannot_start_says_why(model_dir: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(StartError, match=message):
        TorchRunner.load(EngineConfig(**{"model_dir": str(model_dir), "pages": 64, "threads": 1, **config}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(model_dir: Path) -> None:
    with pytest.raises(StartError, match="no CUDA device"):
        load(model_dir, device="cuda")


def test_a_shorter_limit_needs_fewer_pages(model_dir: Path) -> None:
    assert load(model_dir, max_model_len=32, pages=2).info.max_model_len == 32


def test_the_digest_covers_weights_config_and_tokenizer(tmp_path: Path) -> None:
    build_toy_model(tmp_path)
    digests = {load(tmp_path).info.model_digest}
    assert {load(tmp_path).info.model_digest} == digests
    (tmp_path / "tokenizer.json").write_text("{}")
    digests.add(load(tmp_path).info.model_digest)
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text() + " ")
    digests.add(load(tmp_path).info.model_digest)
    build_toy_model(tmp_path, seed=1)
    digests.add(load(tmp_path).info.model_digest)
    assert len(digests) == 4


def test_without_a_compiler_torch_takes_over(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = EngineConfig(
        model_dir=str(model_dir), pages=64, threads=1, device="cpu", native_cache=str(tmp_path / "native")
    )
    with caplog.at_level(logging.WARNING):
        runner = TorchRunner.load(config)
    assert runner.info.attention == "torch"
    assert len(caplog.records) == 1


def test_kernels_that_cannot_be_kept_are_built_for_one_process(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = EngineConfig(
        model_dir=str(model_dir), pages=64, threads=1, device="cpu", native_cache=str(tmp_path / "file")
    )
    assert TorchRunner.load(config).info.attention == "native"


def test_a_user_without_a_home_has_kernels(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    config = EngineConfig(model_dir=str(model_dir), pages=64, threads=1, device="cpu")
    assert TorchRunner.load(config).info.attention == "native"


def test_rows_and_planned_rows_agree(runner: TorchRunner) -> None:
    """A row that is not to sample brings no token."""
    sequence = make_sequence(0, prompt(10, 3), [0])
    (result,) = runner.run(Plan(0, (PlannedRow(sequence, 0, 10, sample=False),)), NO_MASKS).rows
    assert result == RowResult()


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    build_toy_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read"):
        load(tmp_path)

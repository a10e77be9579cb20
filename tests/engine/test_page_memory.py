"""Pages in slots of the host's memory and in buffers: what comes back is what went, bit for bit."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.batch import NO_MASKS, PageCopy, PageLoad, PageSave, Plan, Runner
from engine.config import EngineConfig, HashModelConfig
from engine.hash_model import HashRunner
from engine.page_memory import HostPages
from engine.runner import TorchRunner
from tests.plans import make_sequence, row_of, run_rows
from tests.toy_models import VOCAB_SIZE, build_toy_model

PAGE = 4


@pytest.fixture(scope="module", params=["float32", "bfloat16", "hash"])
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    if request.param == "hash":
        return HashRunner(EngineConfig(hash_model=HashModelConfig(), pages=32, page_size=PAGE))
    directory = tmp_path_factory.mktemp("toy")
    build_toy_model(directory)
    config = EngineConfig(
        model_dir=str(directory),
        dtype=request.param,
        pages=64,
        page_size=PAGE,
        threads=1,
        device="cpu",
        max_model_len=64,
    )
    return TorchRunner.load(config)


def raw(runner: Runner, page: int) -> bytes:
    into = bytearray(runner.info.page_bytes)
    runner.memory.read(page, memoryview(into))
    return bytes(into)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [2 + (seed * 31 + at * 7) % (VOCAB_SIZE - 2) for at in range(length)]


def run(runner: Runner, uid: int, tokens: list[int], pages: range) -> int | None:
    return run_rows(runner, row_of(make_sequence(uid, tokens, pages)))[0].token


def test_a_page_goes_to_a_slot_and_back_to_another_page(runner: Runner) -> None:
    runner.memory.reserve(3)
    run(runner, 1, prompt(8), range(2))
    before = [raw(runner, 0), raw(runner, 1)]
    assert before[0] != before[1]
    runner.memory.save([PageSave(0, 2), PageSave(1, 0)])
    assert [bytes(runner.memory.slot(slot)) for slot in (2, 0)] == before
    run(runner, 2, prompt(8, seed=1), range(2))
    runner.memory.load([PageLoad(2, 5), PageLoad(0, 6)])
    assert [raw(runner, 5), raw(runner, 6)] == before


def test_a_slot_can_be_filled_by_anybody(runner: Runner) -> None:
    runner.memory.reserve(2)
    run(runner, 1, prompt(4), range(1))
    whole = raw(runner, 0)
    runner.memory.slot(1)[:] = whole
    runner.memory.load([PageLoad(1, 3)])
    assert raw(runner, 3) == whole
    assert len(runner.memory.slot(0)) == runner.info.page_bytes


def test_slots_begin_where_the_kernel_copies_fast() -> None:
    memory = HostPages(torch.zeros((2, 2, 5, 1, PAGE, 8)))  # a page of 512 bytes
    memory.reserve(3)
    assert [np.frombuffer(memory.slot(slot), np.uint8).ctypes.data % 64 for slot in range(3)] == [0, 0, 0]


def test_a_page_is_written_by_another_thread(runner: Runner) -> None:
    run(runner, 1, prompt(4), range(1))
    whole = bytearray(raw(runner, 0))
    thread = threading.Thread(target=runner.memory.write, args=(9, memoryview(whole)))
    thread.start()
    thread.join()
    assert raw(runner, 9) == bytes(whole)


def test_an_answer_from_loaded_pages_is_that_from_computed_ones(runner: Runner) -> None:
    runner.memory.reserve(4)
    tokens = prompt(14)
    expected = run(runner, 1, tokens, range(4))
    runner.memory.save([PageSave(page, page) for page in range(3)])
    for seed in (1, 2):
        run(runner, 1 + seed, prompt(14, seed), range(4))
    sequence = make_sequence(9, tokens, range(8, 12))
    sequence.computed = 12
    loads = tuple(PageLoad(slot, 8 + slot) for slot in range(3))
    plan = Plan(1, (row_of(sequence),), loads=loads)

    assert runner.run(plan, NO_MASKS).rows[0].token == expected
    assert runner.run(plan, NO_MASKS).rows[0].token == expected, "a step may be run again"


def test_a_loaded_page_can_be_copied_from_in_the_same_step(runner: Runner) -> None:

    runner.memory.reserve(1)
    run(runner, 1, prompt(4), range(1))
    runner.memory.save([PageSave(0, 0)])
    whole = raw(runner, 0)
    runner.run(Plan(1, (), (PageCopy(7, 8, PAGE),), (), loads=(PageLoad(0, 7),)), NO_MASKS)
    assert raw(runner, 8) == whole


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_slots_on_a_device(tmp_path: Path) -> None:
    build_toy_model(tmp_path)
    runner = TorchRunner.load(
        EngineConfig(model_dir=str(tmp_path), pages=64, page_size=PAGE, max_model_len=64)
    )
    runner.memory.reserve(2)
    run(runner, 1, prompt(8), range(2))
    before = [raw(runner, 0), raw(runner, 1)]
    runner.memory.save([PageSave(0, 1), PageSave(1, 0)])
    runner.memory.load([PageLoad(1, 5), PageLoad(0, 6)])
    assert [raw(runner, 5), raw(runner, 6)] == before

"""Every family at toy size against the reference class that its weights came from, in float32.

Logits of these toys are of the order of 10; two float32 implementations that order their sums differently were seen to
differ by up to 2e-5, a wrong rotation, window or bias by more than 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.attention.torch import TorchAttention
from engine.batch import PageCopy, PlannedRow
from engine.kv_pool import KVPool
from engine.layers import TorchLayers
from engine.models.decoder import Decoder
from engine.models.families import read_model_config
from engine.models.parameters import load_parameters
from engine.models.rope import Rotations
from engine.sequence import Sequence
from engine.step_inputs import step_inputs
from engine.weights import Checkpoint
from tests.plans import make_sequence
from tests.toy_models import FAMILIES, VOCAB_SIZE, build_toy_model

TOLERANCE = 1e-4
PAGE_SIZE = 4
LENGTH = 41  # more than every toy's window and llama3-rope's original positions


@dataclass
class Toy:
    decoder: Decoder
    pool: KVPool
    frequencies: Tensor
    tokens: list[int]
    expected: Tensor  # [LENGTH, V]

    def run(self, *rows: PlannedRow) -> Tensor:
        inputs = step_inputs(rows, page_size=PAGE_SIZE, rotations=Rotations(self.frequencies))
        return self.decoder.logits(self.decoder.hidden(inputs, self.pool))

    def sequence(self, pages: list[int]) -> Sequence:
        return make_sequence(0, self.tokens, pages)


@pytest.fixture(scope="module", params=FAMILIES)
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    directory: Path = tmp_path_factory.mktemp("toy")
    reference = build_toy_model(directory, request.param)
    config = read_model_config(directory / "config.json")
    device = torch.device("cpu")
    with Checkpoint(directory) as checkpoint:
        parameters = load_parameters(config, checkpoint, dtype=torch.float32, device=device)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCAB_SIZE, (LENGTH,), generator=generator)
    with torch.inference_mode():
        expected = reference(tokens.unsqueeze(0)).logits[0]
        yield Toy(
            decoder=Decoder(config, parameters, layers=TorchLayers(), attention=TorchAttention()),
            pool=KVPool(config, pages=64, page_size=PAGE_SIZE, dtype=torch.float32, device=device),
            frequencies=config.rope.inverse_frequencies(config.head_dim),
            tokens=tokens.tolist(),
            expected=expected,
        )


PAGES = [17, 3, 40, 9, 11, 2, 63, 0, 21, 5, 30]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_whole_prompt(toy: Toy) -> None:
    close(toy.run(PlannedRow(toy.sequence(PAGES), 0, LENGTH, True)), toy.expected)


def test_chunks_that_do_not_fit_pages(toy: Toy) -> None:
    sequence, found, start = toy.sequence(PAGES), [], 0
    for count in (5, 1, 13, 10, 12):
        found.append(toy.run(PlannedRow(sequence, start, count, False)))
        start += count
    close(torch.cat(found), toy.expected)


def test_one_token_at_a_time(toy: Toy) -> None:
    sequence = toy.sequence(PAGES)
    close(torch.cat([toy.run(PlannedRow(sequence, at, 1, True)) for at in range(LENGTH)]), toy.expected)


def test_prefix_pages_shared_and_tail_copied_in_a_mixed_batch(toy: Toy) -> None:
    toy.run(PlannedRow(toy.sequence(PAGES), 0, LENGTH, True))
    # Two more sequences own their pages from token 18 on: four shared pages, and a copy of two positions of the fifth.
    second = toy.sequence([*PAGES[:4], *range(50, 57)])
    third = toy.sequence([*PAGES[:4], *range(43, 50)])
    toy.pool.copy([PageCopy(PAGES[4], 50, 2), PageCopy(PAGES[4], 43, 2)])
    found = toy.run(PlannedRow(second, 18, 14, False), PlannedRow(third, 18, 1, True))
    close(found, torch.cat((toy.expected[18:32], toy.expected[18:19])))
    found = toy.run(PlannedRow(third, 19, LENGTH - 19, True), PlannedRow(second, 32, 1, True))
    close(found, torch.cat((toy.expected[19:], toy.expected[32:33])))

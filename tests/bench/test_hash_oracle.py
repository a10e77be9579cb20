"""The client's copy of the hash model's function is the server's."""

from __future__ import annotations

import random

import pytest

from engine.hash_model import reference
from engine.request import SamplingParams
from gateway.chat_template import ChatTemplate
from gateway.tokenizer import Tokenizer
from tests.bench.hash_oracle import chat_prompt, predict


@pytest.mark.parametrize("seed", range(20))
def test_predicts_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    prompt = [rng.randrange(259) for _ in range(rng.randint(1, 100))]
    temperature, ignore_eos, index = rng.choice([0, 0.7]), rng.random() < 0.5, rng.randrange(4)
    sampling = SamplingParams(
        max_tokens=300, temperature=temperature, seed=seed, stop_token_ids=() if ignore_eos else (257,)
    )
    got = predict(
        prompt, max_tokens=300, temperature=temperature, seed=seed, index=index, ignore_eos=ignore_eos
    )
    assert got.tokens == reference(prompt, sampling, index)
    assert got.finish == ("stop" if got.tokens[-1] == 257 else "length")


def test_writes_chats_as_the_template_does() -> None:
    tokenizer = Tokenizer.hash()
    messages = [
        {"role": "system", "content": "é <|im_end|>\n"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": " x "},
    ]
    assert chat_prompt(messages) == ChatTemplate.hash(tokenizer).encode(messages).ids

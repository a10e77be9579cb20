"""The demo model as it lies in the model store."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from engine.model_store.store import LocalModel

pytestmark = pytest.mark.demo_model


def test_every_file_has_the_digest_that_the_store_tells(demo_model: LocalModel) -> None:
    assert {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        "chat_template.jinja",
    } <= demo_model.digests.keys()
    for name, digest in demo_model.digests.items():
        with (demo_model.path / name).open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest, name


def test_shapes_agree_with_the_config(demo_model: LocalModel) -> None:
    config = msgspec.json.decode((demo_model.path / "config.json").read_bytes())
    assert (config["model_type"], config["num_hidden_layers"], config["tie_word_embeddings"]) == (
        "llama",
        30,
        True,
    )
    with safe_open(demo_model.path / "model.safetensors", "pt") as weights:
        assert len(weights.keys()) == 2 + 30 * 9
        embedding = weights.get_slice("model.embed_tokens.weight")
        assert embedding.get_shape() == [config["vocab_size"], config["hidden_size"]]
        assert weights.get_tensor("model.norm.weight").dtype == torch.bfloat16


@pytest.mark.parametrize(
    "text",
    [
        "The capital of France is Paris.",
        "1234567 + 8 = 1234575",
        "  two  spaces\n\ttabs\r\n",
        "Grüße, 世界 🎉👩‍👩‍👧",
        "",
    ],
)
def test_text_survives_a_round_trip(demo_model: LocalModel, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model.path / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_and_digits_are_cut_as_the_model_was_trained(demo_model: LocalModel) -> None:
    tokenizer = Tokenizer.from_file(str(demo_model.path / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>user\n12<|im_end|>").tokens == [
        "<|im_start|>",
        "user",
        "Ċ",
        "1",
        "2",
        "<|im_end|>",
    ]
    generation = msgspec.json.decode((demo_model.path / "generation_config.json").read_bytes())
    assert tokenizer.token_to_id("<|im_end|>") in generation["eos_token_id"]

"""What tokens spell for the constraint engines is what the gateway writes to the client."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from engine.model_store.store import LocalModel
from gateway.tokenizer import Tokenizer
from grammar.tokenizer_file import TokenizerError
from grammar.vocabulary import Vocabulary, byte_vocabulary, load_vocabulary
from tests.gateway import toys

KINDS = {
    "byte-level": toys.byte_level(),
    "sentencepiece": toys.sentencepiece(legacy=False),
    "sentencepiece-legacy": toys.sentencepiece(legacy=True),
}


def assert_agrees(vocabulary: Vocabulary, gateway: Tokenizer) -> None:
    shown = gateway.byte_table(skip_special=True)
    common = min(len(shown), vocabulary.size)
    assert list(vocabulary.tokens[:common]) == list(shown[:common])
    assert not any(vocabulary.tokens[common:])
    assert len(vocabulary.tokens) == vocabulary.size
    assert vocabulary.specials == {t: i for t, i in gateway.specials.ids.items() if i < vocabulary.size}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [300, 1000])
def test_agrees_with_the_gateway(kind: str, size: int, tmp_path: Path) -> None:
    directory = toys.write(tmp_path, KINDS[kind])
    assert_agrees(load_vocabulary(directory, size=size), Tokenizer.load(directory))


@pytest.mark.demo_model
def test_agrees_with_the_gateway_on_the_demo_model(demo_model: LocalModel) -> None:
    assert_agrees(load_vocabulary(demo_model.path, size=49152), Tokenizer.load(demo_model.path))


def test_the_hash_model_s_bytes() -> None:
    specials = {"<|im_start|>": 256, "<|im_end|>": 257, "<|endoftext|>": 258}
    assert_agrees(byte_vocabulary(300, specials), Tokenizer.hash())


def test_an_added_token_that_is_not_special_spells_its_text(tmp_path: Path) -> None:
    model = toys.byte_level()
    vocabulary = load_vocabulary(toys.write(tmp_path, model), size=500)
    assert vocabulary.tokens[model.token_to_id("<tool_call>")] == b"<tool_call>"
    assert "<tool_call>" not in vocabulary.specials


def test_no_text_becomes_a_special_token(tmp_path: Path) -> None:
    vocabulary = load_vocabulary(toys.write(tmp_path, toys.byte_level()), size=500)
    assert vocabulary.tokenizer_json is not None
    library = tokenizers.Tokenizer.from_str(vocabulary.tokenizer_json)
    ids = library.encode("a<|im_end|>b").ids
    assert not set(ids) & set(vocabulary.specials.values())
    assert b"".join(vocabulary.tokens[i] for i in ids) == b"a<|im_end|>b"


@pytest.mark.parametrize(("size", "words"), [(256, 8), (257, 9), (49152, 1536)])
def test_words(size: int, words: int) -> None:
    assert byte_vocabulary(size, {}).words == words


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_vocabulary(tmp_path, size=300)

"""Fixtures for the text side of the gateway."""

from __future__ import annotations

import pytest

from engine.model_store.store import LocalModel
from gateway.tokenizer import Tokenizer
from tests.gateway import toys

KINDS = ("hash", "byte_level", "legacy", "metaspace")


@pytest.fixture(scope="session")
def tokenizers_by_kind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    return {
        "hash": Tokenizer.hash(),
        "byte_level": Tokenizer.load(
            toys.write(tmp_path_factory.mktemp("bl"), toys.byte_level(), tokenizer_config=toys.CHATML_CONFIG)
        ),
        "legacy": Tokenizer.load(
            toys.write(
                tmp_path_factory.mktemp("legacy"),
                toys.sentencepiece(legacy=True),
                tokenizer_config=toys.LLAMA_CONFIG,
            )
        ),
        "metaspace": Tokenizer.load(
            toys.write(
                tmp_path_factory.mktemp("meta"),
                toys.sentencepiece(legacy=False),
                tokenizer_config=toys.LLAMA_CONFIG,
            )
        ),
    }


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tokenizers_by_kind: dict[str, Tokenizer]) -> Tokenizer:
    """Each kind of tokenizer in turn."""
    return tokenizers_by_kind[request.param]


@pytest.fixture(scope="session")
def demo_tokenizer(demo_model: LocalModel) -> Tokenizer:
    return Tokenizer.load(demo_model.path)

"""Forced text in the tokens of the model's own tokeniser."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokenizer import Tokenizer
from grammar.backends.llguidance import LLGuidance
from grammar.backends.spelling import Spelling
from grammar.matcher import Matcher
from grammar.spec import Concat, JsonSchema, Literal, Regex
from grammar.vocabulary import Vocabulary, load_vocabulary
from tests.gateway import toys

from .cursors import BYTES, allowed

KINDS = {
    "byte-level": toys.byte_level(),
    "sentencepiece": toys.sentencepiece(legacy=False),
    "sentencepiece-legacy": toys.sentencepiece(legacy=True),
}


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write(tmp_path_factory.mktemp("model"), KINDS[request.param])


@pytest.fixture(scope="module")
def vocabulary(directory: Path) -> Vocabulary:
    return load_vocabulary(directory, size=600)


@given(
    st.one_of(
        st.text(),
        st.sampled_from(['{"a": ', " the river", "  ", "<|im_end|>", "</s>", "naïve 日本 🎉", "\x02x"]),
    )
)
def test_the_bytes_are_those_of_the_text(vocabulary: Vocabulary, text: str) -> None:
    tokens = Spelling(vocabulary)(text)
    assert b"".join(vocabulary.tokens[token] for token in tokens) == text.encode()
    assert not set(tokens) & set(vocabulary.specials.values())


@pytest.mark.parametrize("text", ["the river and the stone", " the river", "the would", "two one", "x"])
def test_it_is_how_the_tokeniser_goes_on(directory: Path, vocabulary: Vocabulary, text: str) -> None:
    """Behind a line break no tokeniser of these adds a space, and none has a word across one."""
    library = Tokenizer.load(directory)
    before = library.encode("a\n", add_special=False)
    assert Spelling(vocabulary)(text) == library.encode("a\n" + text, add_special=False)[len(before) :]


def test_without_a_tokeniser() -> None:
    assert Spelling(BYTES)("aé") == list("aé".encode())
    words = Vocabulary((b"ab", b"a", b"abc", b""), {}, 4)
    assert Spelling(words)("abcab") == [2, 0]
    assert Spelling(words)("a?ab") == [1, 0]


@pytest.mark.parametrize(
    "grammar",
    [
        Literal("the river and 日本 🎉 \\"),
        JsonSchema(
            '{"type":"object","properties":{"the river":{"const":"naïve"}},"required":["the river"],'
            '"additionalProperties":false}'
        ),
        Concat((Literal("the "), Regex("river|stone"), Literal("!"))),
    ],
    ids=["text", "schema", "choice"],
)
def test_what_is_forced_is_allowed_one_by_one(vocabulary: Vocabulary, grammar: Literal) -> None:
    end = next(iter(vocabulary.specials.values()))
    place = Matcher(LLGuidance(vocabulary).compile(grammar), (end,), vocabulary)
    for _ in range(200):
        for token in place.forced():
            assert token in allowed(place, vocabulary)
            place.accept(token)
        if place.ended:
            return
        place.accept(allowed(place, vocabulary)[0])
    pytest.fail("it did not end")

"""Tokenizers built from GGUF metadata, against the rules that they are meant to follow."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model_store.gguf_tokenizer import GGUFTokenizer
from tests.engine.tiny_gguf import ALPHABET, KINDS, MERGES, VOCAB


def byte_level(pre: str, **extra: object) -> GGUFTokenizer:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": VOCAB,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": VOCAB.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": VOCAB.index("<|im_end|>"),
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }
    return GGUFTokenizer("toy.gguf", metadata, len(VOCAB))  # type: ignore[arg-type]


@cache
def plain(name: str) -> GGUFTokenizer:
    """Built once for all examples of a property."""
    return sentencepiece() if name == "spm" else byte_level(name)


def tokens(tokenizer: GGUFTokenizer, text: str) -> list[str]:
    return list(tokenizer.tokenizer.encode(text, add_special_tokens=False).tokens)


# How a run of digits, a contraction and a newline after punctuation are cut, by the rule's name. The merges make `123` and
# ` the` out of their letters wherever the rule leaves these together.
SPLITS = {
    "gpt-2": ("x 1234", ["x", "Ġ", "123", "4"]),
    "smollm": ("x 1234", ["x", "Ġ", "1", "2", "3", "4"]),
    "llama-bpe": ("x 1234", ["x", "Ġ", "123", "4"]),
    "llama3": ("12 123", ["12", "Ġ", "123"]),
    "qwen2": ("x 1234", ["x", "Ġ", "1", "2", "3", "4"]),
    "tekken": ("x 1234", ["x", "Ġ", "1", "2", "3", "4"]),
    "smaug-bpe": ("1231234", ["123", "123", "4"]),
}


@pytest.mark.parametrize("pre", SPLITS)
def test_text_is_split_by_the_rule_that_the_file_names(pre: str) -> None:
    text, expected = SPLITS[pre]
    assert tokens(byte_level(pre), text) == expected


def test_gpt2_splits_a_run_of_digits_nowhere_and_llama3_after_three() -> None:
    text = "0123"
    assert tokens(byte_level("gpt-2"), text) == ["0", "123"]
    assert tokens(byte_level("llama-bpe"), text) == ["0", "12", "3"]


@given(st.text(st.characters(exclude_categories=["Cs"])))
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "tekken"])
def test_byte_level_text_survives_a_round_trip(pre: str, text: str) -> None:
    tokenizer = plain(pre).tokenizer
    assert (
        tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        == text
    )


def test_qwen2_brings_text_to_its_normal_form_first() -> None:
    tokenizer = byte_level("qwen2").tokenizer
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


def test_control_tokens_are_special_and_user_defined_ones_are_text() -> None:
    tokenizer = byte_level("qwen2").tokenizer
    encoding = tokenizer.encode("a<|im_end|><tool_call>b", add_special_tokens=False)
    assert encoding.tokens == ["a", "<|im_end|>", "<tool_call>", "b"]
    assert encoding.ids[1:3] == [VOCAB.index("<|im_end|>"), VOCAB.index("<tool_call>")]
    assert tokenizer.decode(encoding.ids, skip_special_tokens=True) == "a<tool_call>b"


@pytest.mark.parametrize(
    ("pre", "flag", "added"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", None, False), ("qwen2", True, True)],
)
def test_the_start_token_is_added_as_the_file_says_or_the_rule_implies(
    pre: str, flag: bool | None, added: bool
) -> None:
    tokenizer = byte_level(pre) if flag is None else byte_level(pre, add_bos_token=flag)
    assert tokenizer.config_json(100)["add_bos_token"] is added
    assert (tokenizer.tokenizer.encode("a").tokens == ["<|im_start|>", "a"]) is added
    assert tokenizer.tokenizer.encode("a", add_special_tokens=False).tokens == ["a"]


# -- SentencePiece -------------------------------------------------------------------------------------------------------

LETTERS = ["▁", "a", "b", "c"]
PIECES = ["ab", "bc", "▁a", "abc", "ca", "▁ab", "aa", "cab", "▁▁"]
SPM_VOCAB = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS, *PIECES]
SPM_KINDS = [2, 3, 3, *[6] * 256, *[1] * (len(LETTERS) + len(PIECES))]
SPM_SCORES = (
    [0.0] * 259
    + [-100.0 - i for i in range(len(LETTERS))]
    + [-float(i * 5 % len(PIECES)) for i in range(len(PIECES))]
)  # in no order
SCORE = dict(zip(SPM_VOCAB, SPM_SCORES, strict=True))


def sentencepiece(**extra: object) -> GGUFTokenizer:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SPM_VOCAB,
        "tokenizer.ggml.token_type": SPM_KINDS,
        "tokenizer.ggml.scores": SPM_SCORES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in extra.items()},
    }
    return GGUFTokenizer("toy.gguf", metadata, len(SPM_VOCAB))  # type: ignore[arg-type]


def join_best_pairs(text: str) -> list[str]:
    """SentencePiece's BPE as its paper has it: again and again the leftmost pair whose result scores best."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joined = [(SCORE.get(left + right), at) for at, (left, right) in enumerate(itertools.pairwise(parts))]
        best = max(((score, -at) for score, at in joined if score is not None), default=None)
        if best is None:
            return parts
        at = -best[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(st.text("abc ", min_size=1, max_size=20))
def test_sentencepiece_joins_the_pair_that_scores_best(text: str) -> None:
    tokenizer = plain("spm")
    assert tokens(tokenizer, text) == join_best_pairs(text)
    assert tokenizer.tokenizer.decode(tokenizer.tokenizer.encode(text).ids) == text


def test_sentencepiece_falls_back_to_bytes_and_adds_its_start_token() -> None:
    tokenizer = sentencepiece().tokenizer
    assert tokenizer.encode("aé").tokens == ["<s>", "▁a", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("aé 世").ids) == "aé 世"


def test_sentencepiece_without_a_space_before_the_first_word() -> None:
    assert tokens(sentencepiece(add_space_prefix=False), "a b") == ["a", "▁", "b"]


def test_the_alphabet_of_the_tests_is_whole() -> None:
    assert len(set(ALPHABET)) == 256

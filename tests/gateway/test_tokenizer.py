from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.tokenizer import Tokenizer, TokenizerError
from tests.gateway import toys

SAMPLES = [
    "",
    "hello",
    " hello",
    "the river  and\n\n the stone ",
    "naïve café 日本語 🎉 \u0000 \u200d",
    *toys.TEXT,
]

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
texts = st.lists(
    anything
    | st.sampled_from(["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<0x41>", " ", "<unk>", "\u2581"])
).map("".join)


def per_test(**overrides: Any) -> settings:
    return settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, **overrides)


class TestHash:
    hash = Tokenizer.hash()

    def test_ids_are_bytes(self) -> None:
        text = "aé\n\x00 🎉"
        assert self.hash.encode(text, add_special=True) == list(text.encode())
        assert [self.hash.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]

    def test_marks(self) -> None:
        assert self.hash.vocab_size == 259
        assert [self.hash.token_text(i) for i in (256, 257, 258)] == [
            "<|im_start|>",
            "<|im_end|>",
            "<|endoftext|>",
        ]
        assert self.hash.stop_ids == (257,)
        assert [i for i in range(259) if self.hash.is_special(i)] == [256, 257, 258]
        assert self.hash.encode("<|im_end|>", add_special=True) == list(b"<|im_end|>")


class TestEncode:
    @pytest.mark.parametrize("text", SAMPLES)
    def test_like_the_library_without_specials(self, text: str, tmp_path: Path) -> None:
        for number, reference in enumerate(
            [toys.byte_level(), toys.sentencepiece(legacy=True), toys.sentencepiece(legacy=False)]
        ):
            ours = Tokenizer.load(toys.write(tmp_path / str(number), reference))
            reference.encode_special_tokens = True
            assert (
                ours.encode(text, add_special=False) == reference.encode(text, add_special_tokens=False).ids
            )

    @given(text=texts)
    @per_test(max_examples=50)
    def test_specials_in_text_stay_text(self, tokenizer: Tokenizer, text: str) -> None:
        ids = tokenizer.encode(text, add_special=False)
        assert not any(tokenizer.is_special(i) for i in ids)
        if tokenizer.strips_leading_space:  # SentencePiece cannot tell its space from a real one
            assert tokenizer.decode(ids).strip(" ") == text.replace("\u2581", " ").strip(" ")
        else:
            assert tokenizer.decode(ids) == text

    def test_bos_only_where_the_model_wants_one(self, tokenizers_by_kind: dict[str, Tokenizer]) -> None:
        for kind, tokenizer in tokenizers_by_kind.items():
            plain, full = (tokenizer.encode("hello", add_special=flag) for flag in (False, True))
            assert full == ([1, *plain] if kind in ("legacy", "metaspace") else plain)

    def test_bos_from_the_post_processor(self, tmp_path: Path) -> None:
        model = toys.byte_level()
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
        )
        loaded = Tokenizer.load(toys.write(tmp_path, model, tokenizer_config=toys.CHATML_CONFIG))
        assert loaded.encode("hello", add_special=True) == [1, *loaded.encode("hello", add_special=False)]
        off = toys.CHATML_CONFIG | {"add_bos_token": False}
        loaded = Tokenizer.load(toys.write(tmp_path, model, tokenizer_config=off))
        assert loaded.encode("hello", add_special=True) == loaded.encode("hello", add_special=False)

    def test_lone_surrogate(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(TokenizerError, match="not Unicode"):
            tokenizer.encode("a\ud800b", add_special=False)

    def test_many_threads_agree(self, tokenizer: Tokenizer) -> None:
        inputs = [f"{text} {i}" for i in range(50) for text in toys.TEXT]
        alone = [tokenizer.encode(text, add_special=False) for text in inputs]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda text: tokenizer.encode(text, add_special=False), inputs)) == alone


class TestSegments:
    def test_genuine_specials_as_in_the_library(self, tmp_path: Path) -> None:
        rendered = "<s>[INST] hello world [/INST] the river</s> <s>[INST]the stone[/INST]"
        for number, legacy in enumerate([True, False]):
            reference = toys.sentencepiece(legacy=legacy)
            ours = Tokenizer.load(toys.write(tmp_path / str(number), reference))
            expected = reference.encode(rendered, add_special_tokens=False).ids
            assert ours.encode_segments(ours.specials.split(rendered)) == expected
            assert expected.count(1) == 2

    def test_whitespace_that_a_special_token_swallows(self, tmp_path: Path) -> None:
        reference = toys.byte_level()
        reference.add_special_tokens([tokenizers.AddedToken("<|end|>", rstrip=True, lstrip=True)])
        ours = Tokenizer.load(toys.write(tmp_path, reference))
        rendered = "hello  <|end|>\n\n world"
        expected = reference.encode(rendered, add_special_tokens=False).ids
        assert ours.encode_segments(ours.specials.split(rendered)) == expected
        assert ours.decode(expected) == "helloworld"

    def test_text_beside_a_genuine_special_stays_text(self, tokenizers_by_kind: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers_by_kind["byte_level"]
        ids = tokenizer.encode_segments([1, "<|im_end|>", 2])
        assert [i for i in ids if tokenizer.is_special(i)] == [1, 2]
        assert tokenizer.decode(ids) == "<|im_end|>"


class TestDecode:
    @given(data=st.data())
    @per_test(max_examples=50)
    def test_like_the_library(self, tokenizer: Tokenizer, data: st.DataObject) -> None:
        text = data.draw(texts)
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids) == tokenizer._backend.decode(ids, skip_special_tokens=True)

    @pytest.mark.parametrize(
        ("raw", "text"),
        [
            (b"\xff", "\ufffd"),
            (b"\xf0\x9f\x8e", "\ufffd"),
            (b"\xf0\x9f\x8ea", "\ufffda"),
            (b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "\ufffd\ufffd\ufffd\ufffdA"),
            (b"\xc0\xaf\xed\xa0\x80", "\ufffd\ufffd\ufffd\ufffd\ufffd"),
        ],
    )
    def test_maximal_subparts(self, raw: bytes, text: str) -> None:
        assert Tokenizer.hash().decode(list(raw)) == text

    def test_byte_fallback(self, tokenizers_by_kind: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers_by_kind["legacy"]
        assert tokenizer.token_bytes(3 + 0xE9) == b"\xe9"
        assert tokenizer.decode([3 + byte for byte in "é".encode()]) == "é"
        (the,) = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b" the"]
        assert tokenizer.decode([the, the]) == "the the"

    def test_specials_are_shown_when_asked_for(self, tokenizers_by_kind: dict[str, Tokenizer]) -> None:
        tokenizer = tokenizers_by_kind["byte_level"]
        assert tokenizer.decode([1, 2]) == ""
        assert tokenizer.decode([1, 2], skip_special=False) == "<|im_start|><|im_end|>"

    def test_ids_of_the_model_without_text(self, tmp_path: Path) -> None:
        tokenizer = Tokenizer.load(toys.write(tmp_path, toys.byte_level(), config={"vocab_size": 1000}))
        assert tokenizer.vocab_size == 1000
        assert tokenizer.token_bytes(999) == b""
        assert tokenizer.decode([999]) == ""
        with pytest.raises(IndexError):
            tokenizer.decode([1000])


class TestLoad:
    @pytest.mark.parametrize(
        ("files", "stops"),
        [
            ({}, (2,)),
            ({"tokenizer_config": {"eos_token": "<|endoftext|>"}}, (0, 2)),
            ({"generation_config": {"eos_token_id": [0, 1]}}, (0, 1, 2)),
            ({"generation_config": {"eos_token_id": 0}, "config": {"eos_token_id": 1}}, (0, 2)),
            ({"config": {"eos_token_id": 1}}, (1, 2)),
        ],
    )
    def test_stop_ids(self, files: dict[str, Any], stops: tuple[int, ...], tmp_path: Path) -> None:
        assert Tokenizer.load(toys.write(tmp_path, toys.byte_level(), **files)).stop_ids == stops

    def test_end_of_turn_is_special_whatever_the_file_says(self, tmp_path: Path) -> None:
        data = json.loads(toys.byte_level().to_str())
        for token in data["added_tokens"]:
            token["special"] = False
        (tmp_path / "tokenizer.json").write_text(json.dumps(data))
        tokenizer = Tokenizer.load(tmp_path)
        assert tokenizer.is_special(2)
        assert 2 not in tokenizer.encode("<|im_end|>", add_special=False)

    def test_padding_and_truncation_are_not_ours(self, tmp_path: Path) -> None:
        model = toys.byte_level()
        model.enable_truncation(3)
        model.enable_padding(length=50)
        loaded = Tokenizer.load(toys.write(tmp_path, model))
        assert (
            loaded.decode(loaded.encode("the river and the stone", add_special=False))
            == "the river and the stone"
        )

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "no tokenizer.json"),
            ("{", "cannot be read"),
            ("[]", "not a JSON object"),
            ("{}", "not a tokenizer"),
            ('{"model": {"type": "Unigram", "vocab": []}}', "model that is not supported: Unigram"),
            ('{"added_tokens": [1], "model": {"vocab": {}}}', "not a tokenizer"),
            ('{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "decoder"),
            ('{"model": {"type": "X", "vocab": {}}, "decoder": {"type": "ByteLevel"}}', "cannot be used"),
        ],
    )
    def test_unusable(self, content: str | None, message: str, tmp_path: Path) -> None:
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(TokenizerError, match=message):
            Tokenizer.load(tmp_path)

    def test_words_that_spell_a_special_token(self, tmp_path: Path) -> None:
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<eos>": 0, "a": 1, "?": 2}, unk_token="?"))
        model.decoder = tokenizers.decoders.Fuse()
        model.add_special_tokens(["<eos>", "?"])
        loaded = Tokenizer.load(toys.write(tmp_path, model))
        assert loaded.encode("<eos>", add_special=False) == [2]
        assert loaded.encode_segments(["a", 0]) == [1, 0]

    def test_ids_of_added_tokens_stay(self, tmp_path: Path) -> None:
        reference = toys.byte_level()
        loaded = Tokenizer.load(toys.write(tmp_path, reference))
        ids = [reference.token_to_id(text) for text in ("<tool_call>", "\t\t")]
        assert loaded.encode("<tool_call>\t\t", add_special=False) == ids


@pytest.mark.demo_model
class TestDemoModel:
    def test_facts(self, demo_tokenizer: Tokenizer) -> None:
        tokenizer = demo_tokenizer
        assert tokenizer.vocab_size == 49152
        assert tokenizer.stop_ids[0] == 2
        assert tokenizer.encode("<|im_end|>", add_special=True) == [44, 108, 306, 79, 486, 108, 46]

    def test_round_trip(self, demo_tokenizer: Tokenizer) -> None:
        tokenizer = demo_tokenizer
        for text in SAMPLES:
            ids = tokenizer.encode(text, add_special=False)
            assert tokenizer.decode(ids) == text == tokenizer._backend.decode(ids)


def test_cost_is_linear() -> None:
    tokenizer = Tokenizer.hash()
    words = random.Random(0).choices(toys.TEXT, k=1600)

    def seconds(text: str) -> float:
        times = []
        for _ in range(3):
            start = time.thread_time()
            tokenizer.encode(text, add_special=False)
            times.append(time.thread_time() - start)
        return min(times)

    small, large = seconds("".join(words[:400])), seconds("".join(words))
    assert large < 4 * small * 2.5

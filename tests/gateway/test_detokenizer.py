from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.detokenizer import Detokenizer
from gateway.tokenizer import Tokenizer
from tests.gateway import toys


def pieces(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    bounds = sorted({min(cut, len(ids)) for cut in cuts} | {0, len(ids)})
    out = [detokenizer.push(ids[a:b]) for a, b in itertools.pairwise(bounds)]
    return [*out, detokenizer.flush()]


def check_any_split(tokenizer: Tokenizer, data: st.DataObject) -> None:
    any_id = st.integers(0, tokenizer.vocab_size - 1)
    of_text = st.text(max_size=20).map(lambda s: tokenizer.encode(s, add_special=False))
    ids = data.draw(st.lists(any_id, max_size=30) | of_text)
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=10))
    for skip in (True, False):
        got = "".join(pieces(Detokenizer(tokenizer, skip_special=skip), ids, cuts))
        assert got == tokenizer.decode(ids, skip_special=skip)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_split_gives_the_whole_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    check_any_split(tokenizer, data)


@pytest.mark.demo_model
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_any_split_on_the_demo_model(demo_tokenizer: Tokenizer, data: st.DataObject) -> None:
    check_any_split(demo_tokenizer, data)


@pytest.mark.parametrize(
    ("raw", "pushes", "end"),
    [
        ("é".encode(), ["", "é"], ""),
        ("🎉".encode(), ["", "", "", "🎉"], ""),
        (b"\xf0\x9f", ["", ""], "\ufffd"),
        (b"\xf0\x9fa", ["", "", "\ufffda"], ""),
        (b"\xff\xfe", ["\ufffd", "\ufffd"], ""),  # certain at once
        (b"\xe0\x80", ["", "\ufffd\ufffd"], ""),  # E0 is never followed by 80
        (b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd"], ""),  # a surrogate is no character
    ],
)
def test_characters_appear_when_certain(raw: bytes, pushes: list[str], end: str) -> None:
    detokenizer = Detokenizer(Tokenizer.hash())
    assert [detokenizer.push([byte]) for byte in raw] == pushes
    assert detokenizer.flush() == end


def test_a_skipped_special_does_not_break_a_character() -> None:
    detokenizer = Detokenizer(Tokenizer.hash())
    first, second = "é".encode()
    assert detokenizer.push([first, 256, second]) == "é"


def test_leading_space(tokenizers_by_kind: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers_by_kind["legacy"]
    ids = tokenizer.encode("the river", add_special=False)
    assert "".join(pieces(Detokenizer(tokenizer), [1, *ids], [1, 2])) == "the river"
    assert "".join(pieces(Detokenizer(tokenizer, continues=True), ids, [1, 2])) == " the river"


def test_cost_is_a_few_microseconds_a_token_at_any_length() -> None:
    tokenizer = Tokenizer.hash()
    ids = list("".join(toys.TEXT).encode())

    def per_token(times: int) -> float:
        best = float("inf")
        for _ in range(3):
            detokenizer = Detokenizer(tokenizer)
            start = time.thread_time()
            for _ in range(times):
                for token in ids:
                    detokenizer.push((token,))
            best = min(best, (time.thread_time() - start) / times / len(ids))
        return best

    short, long = per_token(5), per_token(40)
    assert long < 2.5 * short
    assert long < 20e-6  # about 0.6 µs on a quiet machine

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.special_tokens import SpecialTokens

S = "\U000f0000"
marks = SpecialTokens({"<|a|>": 1, "<|a|>b": 2, "[X]": 3})
fragments = st.lists(st.sampled_from([*"<|a>b[X]", " ", "word"]), max_size=12).map("".join)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("plain", ["plain"]),
        ("<|a|>", [1]),
        ("x<|a|>b[X][X", ["x", 2, 3, "[X"]),
        ("<|<|a|>|a|>", ["<|", 1, "|a|>"]),
    ],
)
def test_split(text: str, pieces: list[str | int]) -> None:
    assert marks.split(text) == pieces


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("", ""),
        ("plain < text", "plain < text"),
        ("x<|a|>y", f"x<{S}|a|>y"),
        ("ends with <|", f"ends with <|{S}"),
        ("|> starts", f"{S}|> starts"),
        ("a", f"{S}a{S}"),
    ],
)
def test_broken(text: str, broken: str) -> None:
    assert marks.broken(text, S) == broken
    assert marks.touches(text) == (text != broken)


@given(parts=st.lists(fragments, max_size=5), template=st.lists(fragments, min_size=6, max_size=6))
def test_no_special_token_takes_a_character_of_broken_text(parts: list[str], template: list[str]) -> None:
    """However a template puts strings side by side."""
    safe = [marks.broken(part, S) for part in parts]
    owner = "".join("t" * len(t) + "u" * len(u) for t, u in zip(template, [*safe, ""], strict=False))
    text = "".join(t + u for t, u in zip(template, [*safe, ""], strict=False))
    position = 0
    for piece in marks.split(text):
        length = len(piece) if isinstance(piece, str) else len({1: "<|a|>", 2: "<|a|>b", 3: "[X]"}[piece])
        if isinstance(piece, int):
            assert "u" not in owner[position : position + length]
        position += length
    assert "".join(safe).replace(S, "") == "".join(parts)


def test_without_special_tokens() -> None:
    none = SpecialTokens({})
    assert none.split("<s>") == ["<s>"]
    assert none.broken("<s>", S) == "<s>"

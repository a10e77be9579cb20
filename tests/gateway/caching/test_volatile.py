from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caching.common import common_characters, common_tokens
from gateway.caching.volatile import volatile_at

BEFORE = "You are a helpful agent.\n"
AFTER = "\nBe brief, and never say more than 3 words."


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("datetime", "Today is 2026-11-30.", "Today is 2026-12-01."),
        ("datetime", "now: 2026-11-30T21:50:01.123Z", "now: 2026-11-30T21:50:01.124Z"),
        ("datetime", "now: 2026-11-30 21:50:01+02:00", "now: 2026-11-30 22:50:01+02:00"),
        ("datetime", "date 30/11/2026", "date 01/12/2026"),
        ("datetime", "Monday, November 30, 2026", "Tuesday, December 1, 2026"),
        ("datetime", "It is 30 Nov 2026, 9:50 PM", "It is 30 Nov 2026, 10:50 PM"),
        ("datetime", "Time: 9:05", "Time: 10:05"),
        ("datetime", "It is Monday", "It is Sunday"),
        (
            "uuid",
            "session 123e4567-e89b-12d3-a456-426614174000",
            "session 123e4567-e89b-12d3-a456-426614174fff",
        ),
        ("timestamp", "ts=1796075401", "ts=1796075402"),
        ("timestamp", "ts=1796075401123 x", "ts=1796075401999 x"),
        ("nonce", "request d41d8cd98f00b204e9800998ecf8427e", "request e41d8cd98f00b204e9800998ecf8427e"),
        ("nonce", "id: pX3kQ9zLm2Rt7Vb4Nc8Yw1", "id: pX3kQ9zLm2Rt7Vb4Nc8Yw2"),
        (
            "billing_header",
            "x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=c2c3e;",
            "x-anthropic-billing-header: cc_version=2.1.37.3a3; cc_entrypoint=cli; cch=50fa1;",
        ),
    ],
)
def test_is_named(kind: str, one: str, other: str) -> None:
    text, before = BEFORE + one + AFTER, BEFORE + other + AFTER
    found = volatile_at(text, before, common_characters(text, before))
    assert found is not None
    assert found.kind == kind
    assert found.start >= len(BEFORE)
    assert found.end <= len(BEFORE) + len(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the river", "the raver"),
        ("version 3.11", "version 3.12"),
        ("items: 12", "items: 13"),
        ("a-very-long-name-of-a-function", "a-very-long-name-of-another"),
        ("aaaaaaaaaaaaaaaaaaaaaaaa", "aaaaaaaaaaaaaaaaaaaaaaab"),
        ("2026-11-30 and cats", "2026-11-30 and dogs"),
        ("It is Monday", "It is late"),
        ("id 1796075401", "id none"),
        ("may I", "may we"),
    ],
)
def test_is_not_made_up(one: str, other: str) -> None:
    text, before = BEFORE + one + AFTER, BEFORE + other + AFTER
    assert volatile_at(text, before, common_characters(text, before)) is None


@pytest.mark.parametrize("unit", ["a", "1", "0-", "1:", "Monday, ", "f" * 31 + "-", "2026-11-30T"])
def test_no_text_makes_it_slow(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    began = time.perf_counter()
    for char in range(0, len(text), len(text) // 20):
        volatile_at(text, text[:char] + "!" + text[char:], char)
        volatile_at(text, text[:char] + "7" + text[char:], char)
    assert time.perf_counter() - began < 0.5


@given(one=st.text("ab", max_size=9), other=st.text("ab", max_size=9))
def test_common(one: str, other: str) -> None:
    expected = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    assert common_characters(one, other) == expected
    assert common_tokens(one.encode("utf-32-le"), other.encode("utf-32-le")) == expected

"""A page's name says which tokens it holds and all that come before them: what stands alike elsewhere has another name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.tiers.page import page_chain

ROOT = b"r" * 32
Pages = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2), min_size=1, max_size=3)


def name(pages: list[list[int]], root: bytes = ROOT) -> bytes:
    chain = root
    for tokens in pages:
        chain = page_chain(chain, tokens)
    return chain


@given(Pages, Pages)
def test_two_paths_have_one_name_only_if_they_are_one(one: list[list[int]], other: list[list[int]]) -> None:
    assert (name(one) == name(other)) == (one == other)
    assert name(one) != name(one, root=b"s" * 32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[1, 12]], [[11, 2]]),
        ([[1, 2]], [[1], [2]]),
        ([[258]], [[2, 1]]),
        ([[1, 2], [3, 4]], [[5, 6], [3, 4]]),
        ([[0]], [[0, 0]]),
    ],
)
def test_tokens_cannot_be_mistaken(one: list[list[int]], other: list[list[int]]) -> None:
    assert name(one) != name(other)

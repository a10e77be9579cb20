"""The tree finds exactly the longest common prefix, and at a cost that grows as it should."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.node import Node
from cache.radix import RadixTree

Tokens = list[int]


def store(tree: RadixTree, namespace: bytes, tokens: Sequence[int], pages: list[int]) -> None:
    """Insert all of `tokens`, the partial page at the end as well, taking page ids from `pages`."""
    parent: Node = tree.root(namespace)
    for start in range(0, len(tokens), tree.page_size):
        parent = tree.insert(parent, tuple(tokens[start : start + tree.page_size]), pages.pop()).node


def found(tree: RadixTree, namespace: bytes, tokens: Sequence[int]) -> int:
    walk = tree.walk(namespace, tokens, len(tokens))
    return len(walk.nodes) * tree.page_size + walk.shared


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(
    page_size=st.integers(1, 4),
    stored=st.lists(
        st.tuples(st.sampled_from((b"x", b"y")), st.lists(st.integers(0, 2), min_size=1, max_size=14))
    ),
    asked=st.lists(st.tuples(st.sampled_from((b"x", b"y", b"z")), st.lists(st.integers(0, 2), max_size=14))),
)
def test_finds_the_longest_common_prefix(
    page_size: int, stored: list[tuple[bytes, Tokens]], asked: list[tuple[bytes, Tokens]]
) -> None:
    tree = RadixTree(page_size)
    pages = list(range(1000))
    for namespace, tokens in stored:
        store(tree, namespace, tokens, pages)
        tree.check()
    for namespace, tokens in asked + stored:
        longest = max((common(tokens, other) for name, other in stored if name == namespace), default=0)
        assert found(tree, namespace, tokens) == longest


@given(
    page_size=st.integers(1, 3),
    stored=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1),
    data=st.data(),
)
def test_leaves_can_go_in_any_order(page_size: int, stored: list[Tokens], data: st.DataObject) -> None:
    tree = RadixTree(page_size)
    pages = list(range(1000))
    for tokens in stored:
        store(tree, b"", tokens, pages)
    while tree.nodes:
        leaves = sorted((node for node in tree if not node.keys), key=lambda node: node.page)
        leaf = data.draw(st.sampled_from(leaves))
        parent, siblings = leaf.parent, len(leaf.parent.keys)
        above = tree.remove(leaf)
        assert leaf.page == -1
        assert above is parent
        assert len(above.keys) == siblings - 1
        tree.check()
    assert tree.roots == {}, "an empty namespace stayed"
    assert tree.tokens == 0


@pytest.mark.parametrize(
    ("first", "second", "shared", "displaced"),
    [
        ((1, 2), (1, 2, 3), 3, 0),  # goes on from it: takes its place
        ((1, 2, 3, 4), (1, 2), 2, None),  # known already
        ((1, 2), (1, 2), 2, None),
        ((1, 2), (1, 3), 2, None),  # a sibling
        ((1,), (2,), 1, None),
    ],
)
def test_tails(first: tuple[int, ...], second: tuple[int, ...], shared: int, displaced: int | None) -> None:
    tree = RadixTree(4)
    root = tree.root(b"")
    tree.insert(root, first, 0)
    assert tree.insert(root, second, 1).displaced == displaced
    tree.check()
    assert found(tree, b"", second) == shared == len(second)
    assert found(tree, b"", first) == len(first)


class Counted(int):
    """A token that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        Counted.comparisons += 1
        return int(self) < other

    __hash__ = int.__hash__


def comparisons(tree: RadixTree, tokens: Sequence[int]) -> int:
    Counted.comparisons = 0
    tree.walk(b"", [Counted(token) for token in tokens], len(tokens))
    return Counted.comparisons


def test_matching_is_linear_in_the_prompt() -> None:
    tree = RadixTree(16)
    prompt = [(i * 7) % 251 for i in range(8192)]
    store(tree, b"", prompt, list(range(512)))
    costs = [comparisons(tree, prompt[:length]) for length in (1024, 2048, 4096, 8192)]
    for shorter, longer in pairwise(costs):
        assert longer <= 2.1 * shorter
    assert costs[-1] <= 4 * len(prompt)


def test_siblings_that_begin_alike_cost_their_logarithm() -> None:
    """A thousand chats that part in the middle of one page must not make the next match a thousand times dearer."""
    costs = []
    for siblings in (16, 256, 4096):
        tree = RadixTree(16)
        root = tree.root(b"")
        for i in range(siblings):
            tree.insert(root, (*range(8), i, *range(7)), i)
        costs.append(comparisons(tree, [*range(8), siblings // 2, 99]))
    assert costs[2] - costs[1] <= costs[1] - costs[0] + 32
    assert costs[2] < 16 * 16 * 2


def test_only_a_leaf_can_be_removed() -> None:
    tree = RadixTree(1)
    store(tree, b"", [1, 2], [1, 0])
    (first,) = tree.root(b"").nodes
    with pytest.raises(AssertionError):
        tree.remove(first)

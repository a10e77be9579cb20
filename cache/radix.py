"""Pages by the tokens they hold: one tree per namespace, token-exact, a node per page.

A node's key is the tokens of its page; a full page has `page_size` of them and may have children, a shorter key is the
partially filled tail of a sequence that ended, and a leaf. Siblings are kept in lexicographic order and none is a prefix
of another, so that one binary search finds the child equal to a run of tokens, or else the one that shares most of it:
the two neighbours of the place where the run would stand are the only candidates.

The tree knows neither reference counts nor recency limits; `prefix_cache` does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from .lease import Claim

Key = tuple[int, ...]


class Node:
    """A page in the tree. Out of the tree, `parent` is None.

    What is known of its use is written by `prefix_cache` and read by `eviction`: `start` is the position of its first token,
    `used` the second of its last use, `hits` how often it was found, `streak` how often its path had been gone on from when
    it was made, `expires` when it is gone at the latest. The last three fields are eviction's own.
    """

    __slots__ = (
        "claim",
        "expires",
        "hits",
        "key",
        "keys",
        "nodes",
        "owner",
        "page",
        "parent",
        "paused",
        "seat",
        "shared",
        "start",
        "streak",
        "used",
    )

    def __init__(self, key: Key, page: int, parent: Node | None) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.keys: list[Key] = []  # of the children, sorted
        self.nodes: list[Node] = []  # the children, in the same order
        self.start: int = 0 if parent is None else parent.start + len(parent.key)
        self.used = 0.0
        self.hits = 0
        self.streak = 0
        self.owner = ""
        self.claim: Claim | None = None
        self.expires = inf
        self.seat = 0
        self.shared = False
        self.paused = False


class Root(Node):
    """The empty prefix of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: bytes) -> None:
        super().__init__((), -1, None)
        self.namespace = namespace


class Walk(NamedTuple):
    """The longest known prefix: whole pages from the root down, then `shared` tokens of one more page's start."""

    nodes: list[Node]
    tail: Node | None
    shared: int


class Insertion(NamedTuple):
    """The node that now stands for the key, and the page of a shorter tail that it took the place of."""

    node: Node
    displaced: int | None


class RadixTree:
    """`nodes` and `tokens` count what is in all namespaces. Empty namespaces disappear."""

    __slots__ = ("nodes", "page_size", "roots", "tokens")

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.roots: dict[bytes, Root] = {}
        self.nodes = 0
        self.tokens = 0

    def walk(self, namespace: bytes, tokens: Sequence[int], limit: int) -> Walk:
        """The longest prefix of `tokens[:limit]` in the tree. Linear in its length."""
        found: list[Node] = []
        node: Node | None = self.roots.get(namespace)
        if node is None:
            return Walk(found, None, 0)
        size = self.page_size
        start = 0
        while True:
            key = tuple(tokens[start : min(start + size, limit)])
            at = bisect_left(node.keys, key)
            if len(key) < size or at == len(node.keys) or node.keys[at] != key:
                return self._tail(found, node, key, at)
            node = node.nodes[at]
            found.append(node)
            start += size

    def _tail(self, found: list[Node], node: Node, key: Key, at: int) -> Walk:
        best: Node | None = None
        shared = 0
        for neighbour in (at - 1, at):
            if 0 <= neighbour < len(node.keys):
                common = _common(node.keys[neighbour], key)
                if common > shared:
                    best, shared = node.nodes[neighbour], common
        return Walk(found, best, shared)

    def root(self, namespace: bytes) -> Root:
        """The root of a namespace, made if need be. Whoever asks inserts below it at once."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Root(namespace)
        return root

    def insert(self, parent: Node, key: Key, page: int) -> Insertion:
        """Let `page` stand for `key` below `parent`, unless a page there holds these tokens already.

        A shorter tail that `key` goes on from gives its place up: its page is reported as displaced.
        """
        keys = parent.keys
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at][: len(key)] == key:
            return Insertion(parent.nodes[at], None)
        if at and key[: len(keys[at - 1])] == keys[at - 1]:
            return self._extend(parent, at - 1, key, page)
        node = Node(key, page, parent)
        keys.insert(at, key)
        parent.nodes.insert(at, node)
        self.nodes += 1
        self.tokens += len(key)
        return Insertion(node, None)

    def _extend(self, parent: Node, at: int, key: Key, page: int) -> Insertion:
        node = parent.nodes[at]
        displaced = node.page
        self.tokens += len(key) - len(node.key)
        node.key = parent.keys[at] = key
        node.page = page
        return Insertion(node, displaced)

    def remove(self, node: Node) -> Node | None:
        """Take a leaf out. Returns its parent if that is a page that became a leaf itself."""
        parent = node.parent
        assert parent is not None, "only a node of the tree can be removed"
        assert not node.keys, "only a leaf can be removed"
        at = bisect_left(parent.keys, node.key)
        del parent.keys[at], parent.nodes[at]
        node.parent = None
        self.nodes -= 1
        self.tokens -= len(node.key)
        if parent.keys:
            return None
        if isinstance(parent, Root):
            del self.roots[parent.namespace]
            return None
        return parent

    def __iter__(self) -> Iterator[Node]:
        """Every page's node, parents before children."""
        stack = [node for root in self.roots.values() for node in root.nodes]
        while stack:
            node = stack.pop()
            if node.nodes:
                stack += node.nodes
            yield node

    def check(self) -> None:
        """Assert the shape described at the top of this file and the two counts. Linear in the tree."""
        for namespace, root in self.roots.items():
            assert root.namespace == namespace, "a misfiled namespace"
            assert root.keys, "an empty namespace"
            self._check_children(root)
        nodes = list(self)
        for node in nodes:
            if node.nodes:
                assert len(node.key) == self.page_size, "a partial page has children"
                self._check_children(node)
        lengths = [len(node.key) for node in nodes]
        assert all(lengths), "a page without tokens"
        assert max(lengths, default=0) <= self.page_size
        assert (len(nodes), sum(lengths)) == (self.nodes, self.tokens), "the tree's counts are stale"

    def _check_children(self, parent: Node) -> None:
        assert parent.keys == [child.key for child in parent.nodes], "keys and nodes disagree"
        for child in parent.nodes:
            assert child.parent is parent, "a child with another parent"
        for before, key in pairwise(parent.keys):
            assert before < key, "siblings out of order"
            assert key[: len(before)] != before, "a sibling goes on from another"


def _common(a: Key, b: Key) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length

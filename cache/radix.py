"""Pages by the tokens they hold: one tree per root key, token-exact, a node per page.

A node's key is the tokens of its page; a full page has `page_size` of them and may have children, a shorter key is the
partially filled tail of a sequence that ended, and a leaf. Siblings are kept in lexicographic order and none is a prefix
of another, so that one binary search finds the child equal to a run of tokens, or else the one that shares most of it:
the two neighbours of the place where the run would stand are the only candidates.

A page is known everywhere by its *chain*, a digest of all tokens up to its end and of the root they start from.

The tree knows neither reference counts nor what is promised to whom; it carries what others note on its nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from .accounts import NOBODY, Account
from .node import Key, Node, Root, below
from .tiers.page import page_chain


class Walk(NamedTuple):
    """The longest known prefix: whole pages from the root down, then `shared` tokens of one more page's start."""

    nodes: list[Node]
    tail: Node | None
    shared: int

    def tokens(self, page_size: int) -> int:
        return len(self.nodes) * page_size + self.shared


class Insertion(NamedTuple):
    """The node that now stands for the key, and the page of a shorter tail that it took the place of."""

    node: Node
    displaced: int | None


class RadixTree:
    """`nodes` and `tokens` count what can be found, in all roots. Empty roots disappear."""

    __slots__ = ("_owned", "nodes", "page_size", "roots", "tokens")

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.roots: dict[bytes, Root] = {}
        self._owned: dict[Account, dict[Root, None]] = {}  # in the order that they were made
        self.nodes = 0
        self.tokens = 0

    def walk(self, root_key: bytes, tokens: Sequence[int], limit: int) -> Walk:
        """The longest prefix of `tokens[:limit]` in the tree. Linear in its length."""
        root = self.roots.get(root_key)
        return Walk([], None, 0) if root is None else self.walk_below(root, tokens, 0, limit)

    def walk_below(self, node: Node, tokens: Sequence[int], start: int, limit: int) -> Walk:
        """The same for `tokens[start:limit]` below a node that ends at `start`."""
        found: list[Node] = []
        size = self.page_size
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

    def root(
        self, root_key: bytes, account: Account = NOBODY, *, namespace: bytes = b"", adapter: bytes = b""
    ) -> Root:
        """The root of a key, made if need be, then owned by `account`. Whoever asks inserts below it at once."""
        root = self.roots.get(root_key)
        if root is None:
            root = self.roots[root_key] = Root(root_key, account, namespace=namespace, adapter=adapter)
            self._owned.setdefault(account, {})[root] = None
        return root

    def roots_of(self, account: Account) -> Iterable[Root]:
        """All that one owner has, the oldest first."""
        return self._owned.get(account, ())

    def insert(self, parent: Node, key: Key, page: int) -> Insertion:
        """Let `page` stand for `key` below `parent`, unless a page there holds these tokens already.

        A shorter tail that `key` goes on from gives its place up: its page is reported as displaced.
        """
        assert parent.page >= 0 or parent is parent.root, "nothing goes below what is out of the tree"
        keys = parent.keys
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at][: len(key)] == key:
            return Insertion(parent.nodes[at], None)
        if at and key[: len(keys[at - 1])] == keys[at - 1]:
            return self._extend(parent, at - 1, key, page)
        node = Node(key, page, parent, page_chain(parent.chain, key))
        keys.insert(at, key)
        parent.nodes.insert(at, node)
        root = node.root
        root.pages += 1
        self.nodes += 1
        root.tokens += len(key)
        self.tokens += len(key)
        return Insertion(node, None)

    def _extend(self, parent: Node, at: int, key: Key, page: int) -> Insertion:
        node = parent.nodes[at]
        displaced = node.page
        self._count(node.root, 0, len(key) - len(node.key))
        node.key = parent.keys[at] = key
        node.page = page
        node.chain = page_chain(parent.chain, key)
        return Insertion(node, displaced)

    def remove(self, node: Node) -> Node:
        """Take a leaf out. Returns its parent, which may be a root that is gone with it."""
        assert node.page >= 0, "only a node of the tree can be removed"
        assert not node.keys, "only a leaf can be removed"
        parent = node.parent
        at = bisect_left(parent.keys, node.key)
        del parent.keys[at], parent.nodes[at]
        node.page = -1
        root = node.root
        self._count(root, -1, -len(node.key))
        if parent is root and not parent.keys:
            self._forget(root)
        return parent

    def cut(self, root: Root) -> None:
        """Let nobody find anything below a root any more. O(1): its nodes stay linked to it."""
        self._forget(root)
        self.nodes -= root.pages
        self.tokens -= root.tokens

    def _forget(self, root: Root) -> None:
        del self.roots[root.root_key]
        owned = self._owned[root.account]
        del owned[root]
        if not owned:
            del self._owned[root.account]

    def _count(self, root: Root, pages: int, tokens: int) -> None:
        self.nodes += pages
        self.tokens += tokens
        root.pages += pages
        root.tokens += tokens

    def __iter__(self) -> Iterator[Node]:
        """Every page's node, parents before children."""
        for root in self.roots.values():
            yield from below(root)

    def check(self) -> None:
        """Assert the shape described at the top of this file, chains and counts. Linear in the tree."""
        for key, root in self.roots.items():
            assert root.root_key == root.chain == key, "a misfiled root"
            assert root.keys, "an empty root"
            assert root.dead is None, "a dead root can be found"
            check_below(root, self.page_size)
        counted = (
            sum(root.pages for root in self.roots.values()),
            sum(r.tokens for r in self.roots.values()),
        )
        assert counted == (self.nodes, self.tokens), "the tree's counts are stale"
        owned = [(account, root) for account, roots in self._owned.items() for root in roots]
        assert all(root.account is account for account, root in owned), "a root of somebody else's"
        assert {root for _, root in owned} == set(self.roots.values()), "a root that nobody owns"


def check_below(root: Root, page_size: int) -> None:
    nodes = list(below(root))
    _check_children(root)
    for node in nodes:
        assert node.root is root, "a node of another root"
        assert node.chain == page_chain(node.parent.chain, node.key), "a chain that is not that of its tokens"
        if node.nodes:
            assert len(node.key) == page_size, "a partial page has children"
            _check_children(node)
    lengths = [len(node.key) for node in nodes]
    assert all(lengths), "a page without tokens"
    assert max(lengths, default=0) <= page_size
    assert (len(nodes), sum(lengths)) == (root.pages, root.tokens), "a root's counts are stale"


def _check_children(parent: Node) -> None:
    assert parent.keys == [child.key for child in parent.nodes], "keys and nodes disagree"
    for child in parent.nodes:
        assert child.parent is parent, "a child with another parent"
        assert child.page >= 0, "a node out of the tree can be found"
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

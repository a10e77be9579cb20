"""A page in the tree, the leases that end on it, and the root that it stands below.

What is known of a page is written here by those who know it, and read by all; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from .accounts import Account
from .lease import Claim, EvictionCause, Lease, Tier, Wait

Key = tuple[int, ...]

SHARED: Final = b"\0shared"
"""The group of a page that more than one group has used."""


class Node:
    """A page in the tree; out of it, `page` is -1. `parent` stays known even then.

    What is known of its use is written by `usage` and read by `eviction`: `start` is the position of its first
    token, `used` the second of its last use, `hits` how many requests found it, `streak` how often its path had been gone on
    from when it was made, `owner` its tenant. It `expires` `max_age` seconds after its last use (None: never). `claim` sums
    up `holds`, the leases that end here. `seat`, `shared` and `wait` are eviction's own.

    `group` is the only one that has used it, or SHARED. `lowest` is the lowest tier it may reach. `pins` counts the hard pins
    that end here and the children that have some below them. `promised` is until when a lease further down, which was
    broken, would have kept it.
    """

    __slots__ = (
        "chain",
        "claim",
        "created",
        "expires",
        "group",
        "hits",
        "holds",
        "key",
        "keys",
        "lowest",
        "max_age",
        "nodes",
        "owner",
        "page",
        "parent",
        "pins",
        "promised",
        "root",
        "seat",
        "shared",
        "start",
        "streak",
        "used",
        "wait",
    )
    parent: Node
    root: Root

    def __init__(self, key: Key, page: int, parent: Node, chain: bytes) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.root = parent.root
        self.chain = chain
        self.keys: list[Key] = []  # of the children, sorted
        self.nodes: list[Node] = []  # the children, in the same order
        self.start: int = 0 if parent is self else parent.start + len(parent.key)
        self.used = 0.0
        self.created = 0.0
        self.hits = 0
        self.streak = 0
        self.owner = ""
        self.expires = inf
        self.max_age: float | None = None
        self.claim: Claim | None = None
        self.holds: list[Hold] | None = None
        self.group = b""
        self.lowest: Tier = "disk"
        self.pins = 0
        self.promised = -inf
        self.seat = 0
        self.shared = False
        self.wait: Wait | None = None

    def path(self) -> list[Node]:
        """The pages from the root down to this one, in the tree or gone."""
        path: list[Node] = []
        node = self
        while node is not node.root:
            path.append(node)
            node = node.parent
        return path[::-1]


class Root(Node):
    """The empty prefix of one root key, and all that is below it, in pages.

    `pages` and `tokens` are those of its tree; of the pages `idle` are held by nobody else and can go, `frozen` are held by
    nobody else and pinned, `pinned` are on the path to a hard pin. `entries` counts the leases of its nodes. `dead` is the
    time when it was flushed. Its parent is itself.
    """

    __slots__ = (
        "account",
        "adapter",
        "dead",
        "entries",
        "frozen",
        "idle",
        "namespace",
        "pages",
        "pinned",
        "root_key",
        "tokens",
    )

    def __init__(
        self, root_key: bytes, account: Account, *, namespace: bytes = b"", adapter: bytes = b""
    ) -> None:
        self.key = ()
        self.root = self
        super().__init__((), -1, self, root_key)
        self.root_key = root_key
        self.account = account
        self.namespace = namespace
        self.adapter = adapter
        self.pages = 0
        self.tokens = 0
        self.idle = 0
        self.frozen = 0
        self.pinned = 0
        self.entries = 0
        self.dead: float | None = None


@dataclass(slots=True, eq=False)
class Hold:
    """The leases on the first `tokens` tokens of a path that ends at `node`: last renewed at `used`, found `hits` times.

    `pause` is that of a conversation that waits for its tools; it is no entry and is over once the conversation goes on.
    """

    node: Node
    tokens: int
    used: float
    hits: int
    entries: dict[str, Entry]
    pause: Lease | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """A lease by its id. Without a `hold` it has lost pages, for `cause`. Its hits are `hits` and those of the hold since it
    had `before` of them; `used` is its last use, once it has no hold."""

    entry_id: str
    account: Account
    tokens: int
    lease: Lease
    node: Node
    hold: Hold | None
    hits: int
    before: int
    used: float
    broken: bool = False
    cause: EvictionCause | None = None

    @property
    def is_live(self) -> bool:
        """All that it promises can be found."""
        return self.hold is not None and self.node.root.dead is None

    def is_held(self, now: float) -> bool:
        """The same, and its time is not over."""
        if self.hold is None or self.node.root.dead is not None:
            return False
        return self.lease.pin != "none" or self.hold.used + self.lease.ttl > now


def below(top: Node) -> Iterator[Node]:
    """All nodes under this one, parents before children."""
    stack = list(top.nodes)
    while stack:
        node = stack.pop()
        if node.nodes:
            stack += node.nodes
        yield node

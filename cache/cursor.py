"""Where a sequence stands in the tree."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from .lease import CachePolicy
from .node import Node


@dataclass(slots=True, eq=False, weakref_slot=True)
class Cursor:
    """Where below its root a sequence has published to: `depth` whole pages, the last of them at `node`; and all that the
    cache has to know of its request.

    Without a `root_key` the sequence neither reads nor feeds the tree. `tenant`, `namespace` and `adapter` are the request's,
    for its owner's account and for flushes. Only a cursor that `counts` is a use of what it finds: of several choices of
    one request, the first. `limit` is how many tokens may be published; 0 once what it stands on was flushed.
    """

    root_key: bytes | None
    node: Node | None = None
    depth: int = 0
    tenant: str = field(default="", kw_only=True)
    namespace: bytes = field(default=b"", kw_only=True)
    adapter: bytes = field(default=b"", kw_only=True)
    policy: CachePolicy = field(default_factory=CachePolicy, kw_only=True)
    counts: bool = field(default=True, kw_only=True)
    limit: int = field(default=0, init=False)
    counted: int = field(default=0, init=False)  # pages that it found or wrote before
    streak: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        policy = self.policy
        if self.root_key is not None and policy.write:
            self.limit = sys.maxsize if policy.write_tokens is None else policy.write_tokens

    def reset(self) -> None:
        self.node = None
        self.depth = 0

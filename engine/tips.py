"""Where in the tree conversations have left off, for as long as somebody may still say that they go on."""

from __future__ import annotations

from cache.lease import Lease
from cache.node import Node
from cache.prefix_cache import PrefixCache

REMEMBERED = 256


class Tips:
    """Of the requests that ended last, the end of all that the first choice of each left in the tree."""

    __slots__ = ("_cache", "_nodes")

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._nodes: dict[str, Node] = {}  # the oldest first

    def add(self, request_id: str, node: Node) -> None:
        self._nodes[request_id] = node
        if len(self._nodes) > REMEMBERED:
            del self._nodes[next(iter(self._nodes))]

    def lease(self, request_id: str, lease: Lease) -> bool:
        """False if that is too long ago, or its end is gone."""
        node = self._nodes.get(request_id)
        return node is not None and self._cache.lease_tip(node, lease)

"""What the cache may and has to hold, known without a tree: who left which tokens where, and what was flushed since.

A hit has to be exactly the longest prefix that stands below the request's root, found here by comparing all that does; and it
may only be something that a request of the same namespace and adapter has left, which no flush has taken since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cache.cursor import Cursor
from cache.flushing import fits_root, fits_writer, takes_whole_roots
from cache.lease import FlushScope
from cache.node import SHARED, Node
from cache.prefix_cache import PrefixCache
from cache.reading import Match
from engine.request import GenerationRequest

Where = tuple[bytes, bytes]
"""A namespace and an adapter: who differs in either shares nothing."""


@dataclass(frozen=True, slots=True)
class _Left:
    tokens: list[int]
    group: bytes


class CacheOracle:
    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._left: dict[Where, list[_Left]] = {}
        self._silenced: set[str] = set()
        self._pinned: dict[str, tuple[bytes, list[int]]] = {}
        self._serving: dict[str, GenerationRequest] = {}
        self._readers: list[GenerationRequest] = []
        self._disturbed: set[str] = (
            set()
        )  # requests whose pins may have found others' gone that they counted on
        self._changed: set[str] = set()
        self.hits = 0

    # ---- requests ----------------------------------------------------------------------------------------------------

    def submitted(self, request: GenerationRequest) -> None:
        self._serving[request.request_id] = request
        if request.cache.read:
            self._readers.append(request)

    def started(
        self, request: GenerationRequest, cached: int, answers: list[list[int]], *, reads: bool
    ) -> None:
        """A request found so much, and will have computed this, unless it ends early."""
        left = self._left.setdefault(_where(request), [])
        longest = max((common(request.prompt, one.tokens) for one in left), default=0)
        assert 0 <= cached <= min(longest, len(request.prompt) - 1), (
            "found what was never left there, or flushed"
        )
        assert reads or not cached, "a request that bypasses the cache found something"
        self.hits += cached > 0
        policy = request.cache
        if policy.write and request.request_id not in self._silenced:
            for answer in answers:
                tokens = [*request.prompt, *answer]
                kept = tokens if policy.write_tokens is None else tokens[: policy.write_tokens]
                left.append(_Left(kept, policy.group))

    def ended(
        self, request: GenerationRequest, entries: Sequence[str], root_key: bytes, *, whole: bool
    ) -> None:
        """A request has made these entries; it was computed as a `whole`, or not."""
        policy = request.cache
        made = {spec.entry_id: spec for spec in policy.entries if spec.entry_id in entries}
        assert len(made) == len(entries), "an entry that nobody asked for"
        writes = policy.write and self._cache.enabled and request.request_id not in self._silenced
        if whole and writes:
            limit = len(request.prompt) if policy.write_tokens is None else policy.write_tokens
            calm = request.request_id not in self._disturbed
            wanted = {
                spec.entry_id
                for spec in policy.entries
                if spec.tokens <= limit and (calm or spec.lease.pin != "hard")
            }
            assert made.keys() >= wanted, "an entry was not made although its tokens were computed"
        self._silenced.discard(request.request_id)
        self._disturbed.discard(request.request_id)
        self._serving.pop(request.request_id, None)
        for name, spec in made.items():
            self._unpinned(name)
            entry = self._cache.entry(name)
            if entry is None:
                assert name in self._changed, "an entry was told of and never made"
                continue
            if spec.lease.pin == "hard" and policy.max_age is None and entry.status == "held":
                self._pinned[name] = (root_key, request.prompt[: spec.tokens])

    # ---- flushes -----------------------------------------------------------------------------------------------------

    def flushed(self, scope: FlushScope) -> None:
        """What requests of the scope have left is gone, and those that are served now leave nothing more."""
        self._pinned.clear()
        self._disturbed.update(self._serving)
        for request in self._serving.values():
            if _fits(scope, request) and fits_writer(scope, request.cache):
                self._silenced.add(request.request_id)
        if not takes_whole_roots(scope) and (
            scope.group is None or scope.tag or scope.entry_id or scope.idle_for
        ):
            return  # whatever it takes, nothing has to be gone that can be told from here
        for where, left in self._left.items():
            if fits_root(scope, tenant=tenant_of(where[0]), namespace=where[0], adapter=where[1]):
                self._left[where] = [] if scope.group is None else self._of_others(scope.group, where, left)

    def _of_others(self, group: bytes, where: Where, left: list[_Left]) -> list[_Left]:
        """What requests of other groups have left, or have found, if only to wait for room then."""
        readers = [
            request for request in self._readers if _where(request) == where and request.cache.group != group
        ]
        stays = [one for one in left if one.group != group]
        for one in left:
            if one.group == group:
                shared = max((common(one.tokens, reader.prompt) for reader in readers), default=0)
                shared = min(
                    shared + self._cache.page_size, len(one.tokens)
                )  # a page that is shared in part is shared
                stays += [_Left(one.tokens[:shared], SHARED)] if readers else []
        return stays

    def changed(self, entry_id: str) -> None:
        """An entry was given another lease, or dropped."""
        self._changed.add(entry_id)
        self._unpinned(entry_id)

    def _unpinned(self, entry_id: str) -> None:
        if self._pinned.pop(entry_id, None) is not None:
            self._disturbed.update(self._serving)

    # ---- the tree ----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Compare every match with the longest prefix there is."""
        match = self._cache.match

        def watched(cursor: Cursor, tokens: Sequence[int]) -> Match:
            longest, expired = self._longest(cursor, list(tokens))
            found = match(cursor, tokens)
            hit = found.tokens(self._cache.page_size)
            assert hit == longest or (expired and hit < longest), f"found {hit} of {longest} tokens"
            return found

        self._cache.match = watched  # type: ignore[method-assign]

    def check(self) -> None:
        """What is pinned hard is there, and no entry that holds stands on nothing."""
        for name, (root_key, tokens) in list(self._pinned.items()):
            entry = self._cache.entry(name)
            if entry is None or entry.lease.pin != "hard" or entry.tokens != len(tokens):
                self._unpinned(name)  # renewed, by a request that has not ended yet
                continue
            assert self._cache.peek(root_key, [*tokens, -1]) == len(tokens), "a hard pin was lost"

    def fingerprint(self) -> object:
        """All that a question must not change."""
        cache = self._cache
        nodes = [
            (
                root.root_key,
                node.page,
                node.key,
                node.used,
                node.hits,
                node.expires,
                node.group,
                node.pins,
                node.seat,
            )
            for root in cache._pages.tree.roots.values()
            for node in _below(root)
        ]
        pool = [cache.pool.holders(page) for page in range(cache.pool.total)]
        holds = [(view.entry_id, view.hits, view.idle, view.lease) for view in cache.all_entries()]
        return nodes, pool, holds, cache.freed, cache.published, cache.evicted

    def _longest(self, cursor: Cursor, tokens: list[int]) -> tuple[int, bool]:
        """By comparison with everything; and whether anything below the root has expired."""
        cache = self._cache
        root = None if cursor.root_key is None else cache._pages.tree.roots.get(cursor.root_key)
        if root is None or not cache.enabled or not cursor.policy.read:
            return 0, False
        now = cache.now()
        paths: dict[Node, list[int]] = {root: []}
        longest, expired = 0, False
        for node in _below(root):
            if node.parent not in paths:
                continue
            if node.expires <= now and cache.pool.holders(node.page) == 1:
                expired = True
                continue
            paths[node] = [*paths[node.parent], *node.key]
            longest = max(longest, common(paths[node], tokens[:-1]))
        return longest, expired


def tenant_of(namespace: bytes) -> str:
    """In these runs a namespace begins with its tenant's name, as long as it is."""
    return namespace[:1].decode()


def common(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


def _where(request: GenerationRequest) -> Where:
    return request.namespace, request.adapter


def _fits(scope: FlushScope, request: GenerationRequest) -> bool:
    return fits_root(scope, tenant=request.tenant, namespace=request.namespace, adapter=request.adapter)


def _below(top: Node) -> Iterator[Node]:
    for node in top.nodes:
        yield node
        yield from _below(node)

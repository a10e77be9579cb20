"""Which pages a flush takes: those that fit its scope and that nothing needs which does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .lease import CachePolicy, FlushScope
from .node import SHARED, Entry, Node, Root


@dataclass(slots=True)
class Flushed:
    """What was flushed, or would be: `pages` and `tokens` nobody finds any more, of these `in_use` pages are held by running
    sequences; `kept` pages fit the scope but others have used them too. `nodes` are the pages of a scope that is narrower than
    whole roots."""

    pages: int = 0
    tokens: int = 0
    entries: int = 0
    in_use: int = 0
    kept: int = 0
    nodes: list[Node] = field(default_factory=list, compare=False, repr=False)

    def add(self, node: Node, holders: int) -> None:
        self.pages += 1
        self.tokens += len(node.key)
        self.entries += sum(len(hold.entries) for hold in node.holds or ())
        self.in_use += holders > 1
        self.nodes.append(node)


AT_A_TIME = 64
"""So many pages are looked at before others have their turn: less than a millisecond's work."""


def takes_whole_roots(scope: FlushScope) -> bool:
    return all(part is None for part in (scope.group, scope.tag, scope.entry_id, scope.idle_for))


def fits_root(scope: FlushScope, *, tenant: str, namespace: bytes, adapter: bytes) -> bool:
    return (
        scope.tenant in (None, tenant)
        and scope.adapter in (None, adapter)
        and (scope.namespaces is None or namespace in scope.namespaces)
    )


def fits_writer(scope: FlushScope, policy: CachePolicy) -> bool:
    """Whether a sequence that runs is about to write what fits the scope; its root does."""
    named = scope.tag is None and scope.entry_id is None
    return (
        scope.idle_for is None
        and scope.group in (None, policy.group)
        and (
            named
            or any(
                scope.tag in (None, spec.lease.tag) and scope.entry_id in (None, spec.entry_id)
                for spec in policy.entries
            )
        )
    )


def sum_roots(roots: Iterable[Root]) -> Flushed:
    """All of these. O(1) each."""
    pages = tokens = entries = in_use = 0
    for root in roots:
        pages += root.pages
        tokens += root.tokens
        entries += root.entries
        in_use += root.pages - root.idle - root.frozen
    return Flushed(pages, tokens, entries, in_use)


class Search:
    """Looks through the pages of a scope that is narrower than whole roots, children before parents, each for what goes.

    Iterating yields a page that goes, or None for one that stays; `kept` counts those that fit but that others have used too.
    Whoever takes what goes out of the tree does so before the next is asked for. Others may change the tree in between: what
    they add below a page that would go is looked at before it.
    """

    __slots__ = ("_done", "_holders", "_now", "_parts", "_paths", "_scope", "_stays", "kept", "roots")

    def __init__(
        self, scope: FlushScope, roots: Iterable[Root], now: float, holders: Callable[[int], int]
    ) -> None:
        self.roots = roots
        self.kept = 0
        self._scope = scope
        self._now = now
        self._holders = holders
        self._done: set[Node] = set()  # decided about
        self._paths: set[Node] = set()  # to an entry of the scope, if it names some
        self._stays: set[Node] = set()  # something below does not go
        self._parts: set[Node] = set()  # something below goes, or would but for others

    def __iter__(self) -> Iterator[Node | None]:
        for root in self.roots:
            yield from self._below(root)

    def _below(self, root: Root) -> Iterator[Node | None]:
        left = [
            (node, False, False) for node in root.nodes
        ]  # with: an entry is above it; its children are done
        while left and root.dead is None:
            node, behind, done = left.pop()
            if node.page < 0:  # gone meanwhile
                continue
            fresh = [child for child in node.nodes if child not in self._done]
            if fresh and not (done and node in self._stays):
                inside = behind or any(_is_named(self._scope, entry) for entry in _entries(node))
                left.append((node, behind, True))
                left += [(child, inside, False) for child in fresh]
                continue
            self._done.add(node)
            yield node if self._goes(node, behind) else None

    def _goes(self, node: Node, behind: bool) -> bool:
        scope = self._scope
        on_path = self._on_path(node)
        if not (on_path or behind) or not _is_idle(scope, node, self._now, self._holders):
            self._stays.add(node.parent)
            return False
        fits = scope.group in (None, node.group)
        if fits and node not in self._stays and not _serves_others(scope, node):
            self._parts.add(node.parent)
            return True
        self._stays.add(node.parent)
        if on_path and (fits or (node.group == SHARED and node in self._parts)):
            self.kept += 1
            self._parts.add(node.parent)
        return False

    def _on_path(self, node: Node) -> bool:
        """Whether an entry of the scope ends here or below, if the scope names entries."""
        if self._scope.tag is None and self._scope.entry_id is None:
            return True
        if node not in self._paths and not any(_is_named(self._scope, entry) for entry in _entries(node)):
            return False
        self._paths.add(node.parent)
        return True


def _is_idle(scope: FlushScope, node: Node, now: float, holders: Callable[[int], int]) -> bool:
    return scope.idle_for is None or (holders(node.page) == 1 and now - node.used >= scope.idle_for)


def _serves_others(scope: FlushScope, node: Node) -> bool:
    """An entry that the scope does not name, though it names some, ends here."""
    if scope.tag is None and scope.entry_id is None:
        return False
    return any(not _is_named(scope, entry) for entry in _entries(node))


def _is_named(scope: FlushScope, entry: Entry) -> bool:
    return scope.tag in (None, entry.lease.tag) and scope.entry_id in (None, entry.entry_id)


def _entries(node: Node) -> Iterable[Entry]:
    for hold in node.holds or ():
        yield from hold.entries.values()

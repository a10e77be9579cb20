"""Which pages a flush takes: those that fit its scope and that nothing needs which does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .lease import CachePolicy, FlushScope
from .node import SHARED, Entry, Node, Root, below


@dataclass(frozen=True, slots=True)
class Flushed:
    """What was flushed, or would be: `pages` and `tokens` nobody finds any more, of these `in_use` pages are held by running
    sequences; `kept` pages fit the scope but others have used them too. `nodes` are the pages of a scope that is narrower than
    whole roots."""

    pages: int = 0
    tokens: int = 0
    entries: int = 0
    in_use: int = 0
    kept: int = 0
    nodes: tuple[Node, ...] = field(default=(), compare=False, repr=False)


@dataclass(slots=True)
class Going:
    """The nodes that go, children before parents, and how many fit but stay."""

    nodes: list[Node] = field(default_factory=list)
    kept: int = 0


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


def sum_nodes(going: Going, holders: Callable[[int], int]) -> Flushed:
    nodes = going.nodes
    return Flushed(
        pages=len(nodes),
        tokens=sum(len(node.key) for node in nodes),
        entries=sum(len(hold.entries) for node in nodes for hold in node.holds or ()),
        in_use=sum(holders(node.page) > 1 for node in nodes),
        kept=going.kept,
        nodes=tuple(nodes),
    )


def what_goes(scope: FlushScope, roots: Iterable[Root], now: float, holders: Callable[[int], int]) -> Going:
    """What a scope takes that is narrower than whole roots. Linear in them."""
    going = Going()
    for root in roots:
        nodes = list(below(root))  # parents first
        paths, behind = _of_entries(scope, nodes)
        stays: set[Node] = set()  # something below does not go
        parts: set[Node] = set()  # something below goes, or would but for others
        for node in reversed(nodes):
            on_path = paths is None or node in paths
            if not (on_path or node in behind) or not _is_idle(scope, node, now, holders):
                stays.add(node.parent)
                continue
            fits = scope.group in (None, node.group)
            if fits and node not in stays and not _serves_others(scope, node):
                going.nodes.append(node)
                parts.add(node.parent)
                continue
            stays.add(node.parent)
            if on_path and (fits or (node.group == SHARED and node in parts)):
                going.kept += 1
                parts.add(node.parent)
    return going


def _is_idle(scope: FlushScope, node: Node, now: float, holders: Callable[[int], int]) -> bool:
    return scope.idle_for is None or (holders(node.page) == 1 and now - node.used >= scope.idle_for)


def _of_entries(scope: FlushScope, nodes: list[Node]) -> tuple[set[Node] | None, set[Node]]:
    """The paths to the entries of the scope, None if it names no entries; and what goes on from them."""
    if scope.tag is None and scope.entry_id is None:
        return None, set()
    behind: set[Node] = set()
    paths: set[Node] = set()
    for node in nodes:
        if any(_is_named(scope, entry) for entry in _entries(node)):
            paths.add(node)
        if node.parent in behind or node.parent in paths:
            behind.add(node)
    for node in reversed(nodes):
        if node in paths:
            paths.add(node.parent)
    return paths, behind


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

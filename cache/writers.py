"""Who may still publish: what a flush has to reach."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Set
from contextlib import contextmanager

from .cursor import Cursor
from .flushing import fits_root, fits_writer
from .lease import FlushScope
from .node import Node


class Writers:
    """The cursors that may publish, or have published, for as long as somebody else keeps them."""

    __slots__ = ("_cursors", "_scopes")

    def __init__(self) -> None:
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()
        self._scopes: list[FlushScope] = []  # that are being flushed

    def add(self, cursor: Cursor) -> None:
        self._cursors.add(cursor)
        if any(_fits(scope, cursor) for scope in self._scopes):
            cursor.limit = 0

    def silence(self, scope: FlushScope) -> None:
        """What runs in a flushed scope publishes nothing more."""
        for cursor in self._cursors:
            if _fits(scope, cursor):
                cursor.limit = 0

    def silence_on(self, removed: Set[Node]) -> None:
        """Nor does what stands on pages that were flushed."""
        if removed:
            for cursor in self._cursors:
                if cursor.node in removed:
                    cursor.limit = 0

    @contextmanager
    def silencing(self, scope: FlushScope) -> Iterator[None]:
        """The same for what comes until this is over."""
        self.silence(scope)
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.remove(scope)


def _fits(scope: FlushScope, cursor: Cursor) -> bool:
    return fits_root(
        scope, tenant=cursor.tenant, namespace=cursor.namespace, adapter=cursor.adapter
    ) and fits_writer(scope, cursor.policy)

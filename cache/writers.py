"""Who may still publish: what a flush has to reach."""

from __future__ import annotations

import weakref

from .cursor import Cursor
from .flushing import fits_root, fits_writer
from .lease import FlushScope
from .node import Node


class Writers:
    """The cursors that may publish, or have published, for as long as somebody else keeps them."""

    __slots__ = ("_cursors",)

    def __init__(self) -> None:
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()

    def add(self, cursor: Cursor) -> None:
        self._cursors.add(cursor)

    def silence(self, scope: FlushScope, removed: set[Node]) -> None:
        """What runs in a flushed scope, or stands on what was flushed, publishes nothing more."""
        for cursor in self._cursors:
            fits = fits_root(
                scope, tenant=cursor.tenant, namespace=cursor.namespace, adapter=cursor.adapter
            ) and fits_writer(scope, cursor.policy)
            if fits or cursor.node in removed:
                cursor.limit = 0

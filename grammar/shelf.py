"""The backends of a process, each made when it is first needed: one of them takes seconds and 150 MB to import."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Protocol, cast

from .backends.base import Backend
from .spec import BackendName, Grammar
from .vocabulary import Vocabulary

BACKENDS = "grammar.backends.route"
"""The module that knows them. Tests put one in its place whose backends hang, crash and eat memory."""


class Route(Protocol):
    """What that module offers."""

    def candidates(self, grammar: Grammar) -> Sequence[BackendName]:
        """The backends that have a form for a grammar, the one to be tried first first."""
        ...

    def make(self, name: BackendName, vocabulary: Vocabulary) -> Backend: ...


class Shelf:
    """For any thread."""

    def __init__(self, vocabulary: Vocabulary, backends: str = BACKENDS) -> None:
        self._vocabulary = vocabulary
        self._module = backends
        self._lock = threading.Lock()
        self._made: dict[BackendName, Backend] = {}

    @property
    def names(self) -> tuple[BackendName, ...]:
        """What has been made."""
        return tuple(self._made)

    def candidates(self, grammar: Grammar) -> Sequence[BackendName]:
        return self._route().candidates(grammar)

    def get(self, name: BackendName) -> Backend:
        with self._lock:
            if name not in self._made:
                self._made[name] = self._route().make(name, self._vocabulary)
            return self._made[name]

    def _route(self) -> Route:
        return cast("Route", importlib.import_module(self._module))

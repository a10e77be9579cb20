"""Which constraint engine takes which grammar, and in what order they are tried."""

from __future__ import annotations

from ..spec import BackendName, Grammar, JsonSchema
from ..vocabulary import Vocabulary
from .base import Backend
from .lark import renders


def candidates(grammar: Grammar) -> tuple[BackendName, ...]:
    """The backends that have a form for a grammar, the one to be tried first first. Empty if none has.

    A schema by itself says which engines enforce all of it.
    """
    if isinstance(grammar, JsonSchema):
        return grammar.backends
    return ("llguidance",) if renders(grammar) else ()


def make(name: BackendName, vocabulary: Vocabulary) -> Backend:
    """Loads the engine, which takes seconds for some."""
    from .llguidance import LLGuidance  # noqa: PLC0415 - each engine is loaded by who uses it

    return LLGuidance(vocabulary)

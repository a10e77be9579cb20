"""Which constraint engine takes which grammar, in what order they are tried, and how each is loaded."""

from __future__ import annotations

from ..spec import BackendName, Concat, Ebnf, Either, Grammar, JsonSchema, Repeat
from ..vocabulary import Vocabulary
from .base import Backend
from .short_choice import is_short_choice


def candidates(grammar: Grammar) -> tuple[BackendName, ...]:
    """The backends to try, the best first. What they cannot express they refuse themselves.

    A schema by itself says which engines enforce all of it. EBNF and trees with EBNF in them are for the one that reads it.
    Short lists of choices have masks that are only copied.
    """
    if isinstance(grammar, JsonSchema):
        return grammar.backends
    if is_short_choice(grammar):
        return ("outlines", "llguidance")
    return ("xgrammar",) if _has_ebnf(grammar) else ("llguidance",)


def make(name: BackendName, vocabulary: Vocabulary) -> Backend:
    """Loads the engine, which takes seconds for some."""
    match name:
        case "llguidance":
            from .llguidance import LLGuidance

            return LLGuidance(vocabulary)
        case "xgrammar":
            from .xgrammar import XGrammar

            return XGrammar(vocabulary)
        case "outlines":
            from .outlines import Outlines

            return Outlines(vocabulary)


def _has_ebnf(grammar: Grammar) -> bool:
    match grammar:
        case Ebnf():
            return True
        case Concat(parts=nodes) | Either(options=nodes):
            return any(map(_has_ebnf, nodes))
        case Repeat(part=part):
            return _has_ebnf(part)
    return False

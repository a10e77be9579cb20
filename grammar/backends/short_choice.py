"""The lists of choices that are worth an automaton with a mask for each state."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, TypeGuard

from ..spec import Choice, Grammar

MOST_OPTIONS: Final = 100
MOST_CHARACTERS: Final = 1_000
"""Of all options together: at most as many states, each with a mask of its own, compiled in some tens of milliseconds."""


def is_short_choice(grammar: Grammar) -> TypeGuard[Choice]:
    """A few short texts of which none begins with another one."""
    return (
        isinstance(grammar, Choice)
        and 0 < len(grammar.options) <= MOST_OPTIONS
        and sum(map(len, grammar.options)) <= MOST_CHARACTERS
        and not any(later.startswith(text) for text, later in pairwise(sorted(set(grammar.options))))
    )

"""Parts with something between them, some of which may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grammar.spec import Either, Grammar, Literal, Repeat

from ..shapes import joined

_MOST_FIRST: Final = 16
"""Parts of which any may be the first. The grammar grows with their square; of more than these any may come in any order."""


def separated(parts: Sequence[tuple[Grammar, bool]], between: str) -> Grammar:
    """The parts in their order; the flag says that a part is required."""
    first = next((i for i, (_, required) in enumerate(parts) if required), None)
    if first is not None:
        before = [Repeat(joined(part, Literal(between)), 0, 1) for part, _ in parts[:first]]
        return joined(*before, parts[first][0], *_more(parts[first + 1 :], between))
    nodes = [part for part, _ in parts]
    if len(nodes) > _MOST_FIRST:
        return Repeat(Either(tuple(nodes)), between=between)
    starts = [joined(part, *_more(parts[i + 1 :], between)) for i, part in enumerate(nodes)]
    return Repeat(Either(tuple(starts)), 0, 1) if starts else Literal("")


def _more(parts: Sequence[tuple[Grammar, bool]], between: str) -> list[Grammar]:
    return [
        joined(Literal(between), part) if required else Repeat(joined(Literal(between), part), 0, 1)
        for part, required in parts
    ]

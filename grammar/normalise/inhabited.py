"""Which states have a value at all. What takes itself for ever does not."""

from __future__ import annotations

from dataclasses import replace

from .arrays import ArrayShape
from .locations import TYPES
from .objects import SolvedObject
from .solve import Alternatives, Solved
from .states import NOTHING, State


def inhabited(alternatives: Alternatives) -> set[State]:
    """The least fixed point: a state has a value if one of its alternatives needs only states that have one."""
    found: set[State] = set()
    order = list(reversed(alternatives))
    changed = True
    while changed:
        changed = False
        for state in order:
            if state in found:
                continue
            if any(_has_value(each, found) for kind in TYPES for each in alternatives[state][kind]):
                found.add(state)
                changed = True
    return found


def pruned(alternatives: Alternatives, found: set[State]) -> Alternatives:
    """Without the alternatives, keys and items that no value can have."""
    return {
        state: {kind: _pruned(by_kind[kind], found) for kind in TYPES}
        for state, by_kind in alternatives.items()
        if state in found
    }


def needed(each: Solved) -> list[State]:
    """The states that every value of the alternative has a value of."""
    if isinstance(each, ArrayShape):
        return [each.at(index) for index in range(min(each.low, len(each.prefix) + 1))]
    if isinstance(each, SolvedObject):
        named = dict(each.named)
        return [named[name] for name in each.needs]
    return []


def _has_value(each: Solved, found: set[State]) -> bool:
    if not all(state in found for state in needed(each)):
        return False
    if isinstance(each, SolvedObject) and each.low > len(each.needs):
        possible = sum(state in found for _, state in each.named)
        unnamed = (*(region.state for region in each.regions), each.rest)
        return any(state in found for state in unnamed) or possible >= each.low
    return True


def _pruned(kinds: tuple[Solved, ...], found: set[State]) -> tuple[Solved, ...]:
    kept: list[Solved] = []
    for each in kinds:
        if not _has_value(each, found):
            continue
        if isinstance(each, ArrayShape):
            trimmed = replace(
                each,
                prefix=tuple(state if state in found else NOTHING for state in each.prefix),
                rest=each.rest if each.rest in found else NOTHING,
            ).trimmed()
            if trimmed is not None:
                kept.append(trimmed)
        elif isinstance(each, SolvedObject):
            kept.append(
                replace(
                    each,
                    named=tuple((name, state if state in found else NOTHING) for name, state in each.named),
                    regions=tuple(region for region in each.regions if region.state in found),
                    rest=each.rest if each.rest in found else NOTHING,
                )
            )
        else:
            kept.append(each)
    return tuple(dict.fromkeys(kept))

"""Objects with the keys that a schema declares and no others."""

from __future__ import annotations

from dataclasses import replace

from .expression import ANYTHING
from .locations import TYPES
from .objects import SolvedObject
from .solve import Alternatives, Solved
from .states import NOTHING


def closed(alternatives: Alternatives) -> Alternatives:
    """Without the keys that no keyword of the schema speaks of, wherever it speaks of some and has enough of them."""
    return {
        state: {kind: tuple(map(_closed, by_kind[kind])) for kind in TYPES}
        for state, by_kind in alternatives.items()
    }


def asks_for_more(schema: object) -> bool:
    """Whether the schema says somewhere that further keys are welcome, all of them or those of a pattern."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if _welcomes(each):
                return True
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)
    return False


def _welcomes(part: dict[str, object]) -> bool:
    patterns = part.get("patternProperties")
    under = list(patterns.values()) if isinstance(patterns, dict) else []
    under += [part[name] for name in ("additionalProperties", "unevaluatedProperties") if name in part]
    return any(each is True or each == {} for each in under)


def _closed(each: Solved) -> Solved:
    if not isinstance(each, SolvedObject):
        return each
    declared = sum(state != NOTHING for _, state in each.named)
    takes_any = [(region.keys, region.state) for region in each.regions] == [(ANYTHING, ())]
    if not takes_any or not declared or declared < each.low:
        return each
    return replace(each, regions=(), rest=NOTHING)

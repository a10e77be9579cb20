"""Solved states as a JSON schema made of what engines keep, and of nothing else.

Used: type, enum, minimum, maximum, exclusive*, multipleOf, pattern, minLength, maxLength, prefixItems, items, minItems,
maxItems, properties, required, patternProperties, additionalProperties, minProperties, maxProperties, anyOf, allOf of
patterns, and $ref to #/$defs without siblings.

Keys of any name beside named ones are written as `patternProperties`: engines compare additional keys with the named
ones by their spelling, so that `"\\u0061"` would slip past `"a"`; keys that match a pattern they take in one spelling.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from . import faithful
from .arrays import ArrayShape
from .expand import ANY_SHAPE, AtomShape
from .expression import ANYTHING, text_of
from .locations import TYPES
from .numbers import NumberShape
from .objects import SolvedObject
from .solve import Alternatives, Solved, children
from .states import NOTHING, State
from .strings import StringShape

_DEEPEST = 16
Schema = dict[str, Any] | bool


def render(root: State, alternatives: Alternatives) -> dict[str, Any]:
    schema = _Writer(root, alternatives).schema()
    return {} if isinstance(schema, bool) else schema


class _Writer:
    def __init__(self, root: State, alternatives: Alternatives) -> None:
        self._root = root
        self._alternatives = alternatives
        self._shared = _shared(root, alternatives)
        self._names: dict[State, str] = {}
        self._waiting: list[State] = []

    def schema(self) -> Schema:
        top = self._at(self._root, 0)
        definitions = {}
        while self._waiting:
            state = self._waiting.pop()
            definitions[self._names[state]] = self._state(state, 1)
        if definitions:
            assert isinstance(top, dict)
            top["$defs"] = definitions
        return top

    def _at(self, state: State, depth: int) -> Schema:
        """The state where it is used: itself, or a reference if it is used elsewhere too or stands very deep."""
        if state == NOTHING:
            return False
        if state in self._shared or (depth >= _DEEPEST and not self._small(state)):
            if state not in self._names:
                self._names[state] = f"s{len(self._names)}"
                self._waiting.append(state)
            return {"$ref": f"#/$defs/{self._names[state]}"}
        return self._state(state, depth)

    def _small(self, state: State) -> bool:
        return not any(
            True
            for kind in ("array", "object")
            for each in self._alternatives[state][kind]
            for _ in children(each)
        )

    def _state(self, state: State, depth: int) -> Schema:
        by_kind = self._alternatives[state]
        free = [kind for kind in TYPES if _free(by_kind[kind], kind)]
        if len(free) == len(TYPES):
            return True
        options: list[dict[str, Any]] = []
        values: list[Any] = []
        for kind in TYPES:
            if kind in free:
                continue
            for each in by_kind[kind]:
                if (listed := _listed(each)) is not None:
                    values.extend(listed)
                else:
                    options.extend(self._option(each, depth))
        if free:
            options.insert(0, {"type": free[0] if len(free) == 1 else free})
        if values:
            options.append({"enum": values})
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _option(self, each: Solved, depth: int) -> list[dict[str, Any]]:
        match each:
            case NumberShape():
                return _number(each)
            case StringShape():
                return [_string(each)]
            case ArrayShape():
                return [self._array(each, depth)]
            case SolvedObject():
                return [self._object(each, depth)]
        raise AssertionError(each)

    def _array(self, each: ArrayShape, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array"}
        if each.prefix:
            schema["prefixItems"] = [self._at(state, depth + 1) for state in each.prefix]
        if each.rest != ():
            schema["items"] = self._at(each.rest, depth + 1)
        if each.low:
            schema["minItems"] = each.low
        if each.high is not None:
            schema["maxItems"] = each.high
        return schema

    def _object(self, each: SolvedObject, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        named = {name: state for name, state in each.named if state != NOTHING or each.open}
        if named:
            schema["properties"] = {name: self._at(state, depth + 1) for name, state in named.items()}
        rest = self._at(each.rest, depth + 1)
        open_to_all = len(each.regions) == 1 and each.regions[0].keys == ANYTHING and not named
        if open_to_all:
            if each.regions[0].state != ():
                schema["additionalProperties"] = self._at(each.regions[0].state, depth + 1)
        else:
            if each.regions:
                schema["patternProperties"] = {
                    text_of(region.keys): self._at(region.state, depth + 1) for region in each.regions
                }
            schema["additionalProperties"] = rest
        if each.needs:
            needs = set(each.needs)
            schema["required"] = [name for name in named if name in needs]
        if each.low:
            schema["minProperties"] = each.low
        if each.high is not None:
            schema["maxProperties"] = each.high
        return schema


def _free(kinds: tuple[Solved, ...], kind: str) -> bool:
    """Whether the state says nothing about values of that type."""
    if kind == "array":
        return any(each == ArrayShape(losses=each.losses) for each in kinds)
    if kind == "object":
        return any(
            isinstance(each, SolvedObject)
            and not each.named
            and not each.needs
            and not each.low
            and each.high is None
            and [(region.keys, region.state) for region in each.regions] == [(ANYTHING, ())]
            for each in kinds
        )
    anything = ANY_SHAPE[kind]
    return any(type(anything)(losses=each.losses, **_values(anything)) == each for each in kinds)


def _values(anything: object) -> dict[str, Any]:
    return {"values": anything.values} if isinstance(anything, AtomShape) else {}


def _listed(each: Solved) -> list[Any] | None:
    match each:
        case AtomShape(values):
            return list(values)
        case StringShape(patterns=(), values=values) if values is not None:
            return list(values)
        case NumberShape(values=numbers) if numbers is not None:
            return [_plain(number) for number in numbers]
        case _:
            return None


LEAST, MOST = Fraction(-(10**18)), Fraction(10**18)
"""Whole numbers without bounds of their own are written within these: inside what programs take a whole number for (63
bits), and numbers that engines, which read them as doubles, take for themselves. JSON leaves the range to whoever reads
it (RFC 8259, section 6)."""


def _plain(number: Fraction) -> int | float:
    return int(number) if number.denominator == 1 else float(number)


def _number(each: NumberShape) -> list[dict[str, Any]]:
    """More than one where multiples have decimals: engines write all of them, so 1.5 takes a step of 0.5 beside 0.25."""
    schema: dict[str, Any] = {"type": "integer" if each.integers else "number"}
    if each.integers and not each.losses:  # what was lost may have been a bound further out
        each = _within_range(each)
    if each.low is not None:
        schema["exclusiveMinimum" if each.low_open else "minimum"] = _plain(each.low)
    if each.high is not None:
        schema["exclusiveMaximum" if each.high_open else "maximum"] = _plain(each.high)
    if each.step is None:
        return [schema]
    steps = [each.step]
    for places in range((faithful.decimals(each.step) or 0) - 1, -1, -1):
        coarser = _multiple_with(each.step, places)
        if coarser != steps[-1] and faithful.decimals(coarser) is not None:
            steps.append(coarser)
    return [{**schema, "multipleOf": _plain(step)} for step in steps]


def _within_range(each: NumberShape) -> NumberShape:
    """With a bound on a side that has none: small models, once they write digits, may write them for ever."""
    return replace(
        each,
        low=LEAST if each.low is None else each.low,
        high=MOST if each.high is None else each.high,
    )


def _multiple_with(step: Fraction, places: int) -> Fraction:
    """The least multiple of the step with so many decimals."""
    return Fraction((step * 10**places).numerator, 10**places)


def _string(each: StringShape) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if each.values is not None:
        schema["enum"] = list(each.values)
    patterns = [text_of(pattern) for pattern in each.patterns]
    if len(patterns) == 1:
        schema["pattern"] = patterns[0]
    elif patterns:
        schema["allOf"] = [{"type": "string", "pattern": pattern} for pattern in patterns]
    if each.low:
        schema["minLength"] = each.low
    if each.high is not None:
        schema["maxLength"] = each.high
    return schema


def _shared(root: State, alternatives: Alternatives) -> set[State]:
    """States that are used more than once and have others below them; those on a circle among them."""
    uses: dict[State, int] = {root: 1}
    below: dict[State, list[State]] = {}
    waiting = [root]
    while waiting:
        state = waiting.pop()
        below[state] = [
            child
            for kind in TYPES
            for each in alternatives[state][kind]
            for child in children(each)
            if child not in (NOTHING, ())
        ]
        for child in below[state]:
            uses[child] = uses.get(child, 0) + 1
            if uses[child] == 1:
                waiting.append(child)
    return {
        state for state, count in uses.items() if count > 1 and (below[state] or _long(alternatives[state]))
    }


def _long(by_kind: dict[str, tuple[Solved, ...]]) -> bool:
    return any(len(listed) > 8 for kind in TYPES for each in by_kind[kind] if (listed := _listed(each)))

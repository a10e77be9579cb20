"""All states that can be reached from the root, each as alternatives that engines can keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Union

from ..errors import TooComplex
from . import arrays, automaton, faithful, formats, node, objects
from . import expression as rx
from .arrays import ArrayShape
from .expand import AtomShape, Expander
from .expression import Expression, TooLarge
from .locations import TYPES
from .node import Node, Site
from .numbers import NumberShape
from .objects import Fallback, ObjectShape, SolvedObject
from .reader import in_place
from .states import NOTHING, Loss, State, States
from .strings import StringShape

_MOST_NODES = 8_000
_MOST_WORK = 6_000
_GENEROSITY = ((256, 1.0), (16, 0.5), (1, 0.5))
"""How many alternatives a combination may make, and how much of the most work that may take: two seconds for all of it."""
_MOST_VALUES = 16
_MOST_COUNTING = 20_000

Solved = Union[AtomShape, NumberShape, StringShape, ArrayShape, SolvedObject]  # noqa: UP007
Alternatives = dict[State, dict[str, tuple[Solved, ...]]]


def solve(root: State, states: States) -> Alternatives:
    """What would become too large is tried again with fewer alternatives, that is with more losses.

    Raises TooComplex for what is too large even so.
    """
    for most_shapes, share in _GENEROSITY:
        try:
            return _Solver(states, most_shapes, round(_MOST_WORK * share)).all(root)
        except TooLarge:
            continue
    raise TooComplex("The schema becomes too large when its combinations are written out.")


def children(each: Solved) -> Iterator[State]:
    """The states of items and of values under keys."""
    if isinstance(each, ArrayShape):
        yield from each.prefix
        yield each.rest
    elif isinstance(each, SolvedObject):
        yield from (state for _, state in each.named)
        yield from (region.state for region in each.regions)
        yield each.rest


@dataclass(frozen=True, slots=True)
class _Blame:
    numbers: tuple[Site, ...]
    strings: tuple[Site, ...]
    lengths: tuple[Site, ...]
    objects: Fallback


class _Solver:
    def __init__(self, states: States, most_shapes: int, most_work: int) -> None:
        self._states = states
        self._expander = Expander(states, most_shapes, most_work)
        self._nodes_left = _MOST_NODES
        self._blamed: dict[State, _Blame] = {}

    def all(self, root: State) -> Alternatives:
        found: Alternatives = {}
        waiting = [root]
        while waiting:
            state = waiting.pop()
            if state in found or state == NOTHING:
                continue
            found[state] = solved = self._state(state)
            below = [list(children(each)) for kind in TYPES for each in solved[kind]]
            self._nodes_left -= len(below) + sum(map(len, below))
            if self._nodes_left < 0:
                raise TooLarge
            waiting.extend(child for each in below for child in each)
        return found

    def _state(self, state: State) -> dict[str, tuple[Solved, ...]]:
        return {
            kind: tuple(
                dict.fromkeys(
                    each
                    for shape in self._expander.shapes(state, kind)
                    for each in self._solved(shape, state)
                )
            )
            for kind in TYPES
        }

    def _solved(self, shape: object, state: State) -> list[Solved]:
        match shape:
            case AtomShape():
                return [shape]
            case NumberShape():
                return [self._number(shape, state)]
            case StringShape():
                return [] if shape.unwritable() else [self._string(shape, state)]
            case ArrayShape():
                return list(arrays.solved(shape, self._states, self._listed))
            case ObjectShape():
                blame = self._blame(state).objects
                return list(objects.solved(shape, self._states, self._possible, blame))
        raise AssertionError(shape)

    def _possible(self, state: State) -> bool:
        return state != NOTHING

    def _number(self, shape: NumberShape, state: State) -> NumberShape:
        kept = faithful.kept(shape)
        if kept != shape:
            for site in self._blame(state).numbers:
                kept = kept.lossy(Loss(site, "a number that engines cannot tell from its neighbours"))
        return kept

    def _string(self, shape: StringShape, state: State) -> StringShape:
        shape = shape.settled()
        strict = [pattern for pattern in shape.patterns if formats.wider(pattern) != pattern]
        if (
            shape.values is not None and strict
        ):  # none of the values is of the stricter form, which leaves the format itself
            shape = replace(shape, patterns=tuple(each for each in shape.patterns if each not in strict))
            for site in self._blame(state).strings:
                shape = shape.lossy(Loss(site, "values that are not known to have the format"))
        patterns: list[Expression] = []
        lost = False
        for pattern in shape.patterns:
            for part in pattern.parts if isinstance(pattern, rx.Both) else (pattern,):
                try:
                    patterns.append(automaton.simplified(part))
                except TooLarge:
                    lost = True
        kept = replace(shape, patterns=tuple(dict.fromkeys(patterns)))
        if lost:
            for site in self._blame(state).strings:
                kept = kept.lossy(Loss(site, "a regular expression that is too complex"))
        bound = max(kept.low, kept.high or 0)
        if bound * max(map(rx.counting, kept.patterns), default=0) > _MOST_COUNTING:
            kept = replace(kept, low=0, high=None)
            for site in self._blame(state).lengths:
                kept = kept.lossy(Loss(site, "a length beside a regular expression that counts as well"))
        return kept

    def _listed(self, state: State) -> tuple[State, ...] | None:
        """The values of a state, if they are few scalars that it lists."""
        values: list[object] = []
        for kind in TYPES:
            for shape in self._expander.shapes(state, kind):
                listed = _values(shape)
                if listed is None or shape.losses:
                    return None
                values.extend(listed)
        if len(values) > _MOST_VALUES:
            return None
        return tuple(dict.fromkeys(self._states.constant(value) for value in values))

    def _blame(self, state: State) -> _Blame:
        """The keywords in a state that speak of numbers, of strings, of patterns for keys, and of the number of keys."""
        found = self._blamed.get(state)
        if found is None:
            found = self._blamed[state] = self._find_blame(state)
        return found

    def _find_blame(self, state: State) -> _Blame:
        numbers: list[Site] = []
        strings: list[Site] = []
        lengths: list[Site] = []
        patterns: list[Site] = []
        counts: list[Site] = []
        named: list[Site] = []
        for atom, sites in self._atoms(state):
            match atom:
                case node.Range() | node.Multiple() | node.ValueIs():
                    numbers.extend(sites)
                case node.Matches():
                    strings.extend(sites)
                case node.Length():
                    lengths.extend(sites)
                case node.Fields() | node.Names() | node.UnevaluatedFields():
                    for site in sites:
                        (named if site.keyword == "properties" else patterns).append(site)
                case node.FieldCount():
                    counts.extend(sites)
                case _:
                    pass
        return _Blame(
            tuple(dict.fromkeys(numbers)),
            tuple(dict.fromkeys(strings)),
            tuple(dict.fromkeys(lengths)),
            Fallback(*(tuple(dict.fromkeys(sites)) for sites in (patterns, counts, named))),
        )

    def _atoms(self, state: State) -> Iterator[tuple[node.Atom, tuple[Site, ...]]]:
        seen: set[Node] = set()
        for number in state:
            literal = self._states[number]
            waiting = [literal.node]
            while waiting:
                each = waiting.pop()
                if each in seen:
                    continue
                seen.add(each)
                for atom in each.atoms:
                    yield atom, atom.sites if literal.blame is None else (literal.blame,)
                waiting.extend(in_place(each))


def _values(shape: object) -> list[object] | None:
    match shape:
        case AtomShape(values):
            return list(values)
        case StringShape(values=values, patterns=()) if values is not None:
            return list(values)
        case NumberShape():
            return _numbers(shape)
        case _:
            return None


def _numbers(shape: NumberShape) -> list[object] | None:
    numbers = shape.values
    if numbers is None:
        if not shape.integers or shape.low is None or shape.high is None or shape.step is not None:
            return None
        if shape.high - shape.low >= _MOST_VALUES:
            return None
        numbers = tuple(Fraction(value) for value in range(int(shape.low), int(shape.high) + 1))
    return [int(value) if value.denominator == 1 else float(value) for value in numbers]

"""What a state allows for values of each type: alternatives without logic in them.

For one type at a time most keywords fall silent, and with them most of oneOf, anyOf and not. Negation is pushed inward to
single assertions; what cannot be negated there, or would make too many alternatives, is left out and noted as a loss, so
that the alternatives together accept at least what the state does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Union

from . import automaton, formats, node
from . import expression as rx
from .arrays import ArrayShape, Demand
from .expression import TooLarge
from .locations import TYPES
from .node import Node, Site
from .numbers import NumberShape
from .objects import Extra, Layer, ObjectShape
from .reader import exact
from .states import EVERYTHING, NOTHING, Loss, State, States
from .strings import StringShape

_MOST_UNEVALUATED = 5
_PROBE_DEPTH = 3
_MOST_PROBES = 50_000
_MOST_PAIRS = 4_000
_MOST_DENIALS = 200


@dataclass(frozen=True, slots=True)
class AtomShape:
    """null, true or false: those of the values that are allowed."""

    values: tuple[Any, ...]
    losses: frozenset[Loss] = frozenset()

    def lossy(self, loss: Loss) -> AtomShape:
        return replace(self, losses=self.losses | {loss})


Shape = Union[AtomShape, NumberShape, StringShape, ArrayShape, ObjectShape]  # noqa: UP007
Shapes = tuple[Shape, ...]

ANY_SHAPE: dict[str, Shape] = {
    "null": AtomShape((None,)),
    "boolean": AtomShape((False, True)),
    "number": NumberShape(),
    "string": StringShape(),
    "array": ArrayShape(),
    "object": ObjectShape(),
}

_ANY_SHAPES = frozenset(ANY_SHAPE.values())


@dataclass(frozen=True, slots=True)
class Seen:
    """What a subschema evaluates: keys or items that unevaluatedProperties and unevaluatedItems then leave alone."""

    layers: tuple[Layer, ...] = ()
    items: int = 0
    all: bool = False

    def __add__(self, other: Seen) -> Seen:
        return Seen(self.layers + other.layers, max(self.items, other.items), self.all or other.all)


Tracked = tuple[tuple[Shape, Seen], ...]


class Expander:
    """`most_shapes` bounds the alternatives that a combination may make; past it part of the combination is left out.

    Raises TooLarge when all combinations together are more than `most_work`.
    """

    def __init__(self, states: States, most_shapes: int, most_work: int) -> None:
        self._states = states
        self._most_shapes = most_shapes
        self._work_left = most_work
        self._of_state: dict[tuple[State, str], Shapes] = {}
        self._of_literal: dict[tuple[int, str], Shapes] = {}
        self._empty: dict[tuple[State, int], bool] = {}
        self._active: set[State] = set()
        self._probes = 0

    def shapes(self, state: State, kind: str) -> Shapes:
        """The alternatives for values of that type; none: the state allows no such value."""
        if state == NOTHING:
            return ()
        key = (state, kind)
        found = self._of_state.get(key)
        if found is None:
            found = self._literal(state[0], kind) if state else (ANY_SHAPE[kind],)
            for number in state[1:]:
                found = self._product(found, self._literal(number, kind), self._sites(number))
            self._of_state[key] = found
        return found

    def apart(self, one: Shapes, other: Shapes) -> bool:
        """Whether it is known that no value is in both."""
        if len(one) * len(other) > _MOST_PAIRS:
            return False
        for left in one:
            for right in other:
                if self._told_apart(left, right):
                    continue
                met = self._meet(left, right)
                if met is not None and not self.empty(met, _PROBE_DEPTH):
                    return False
        return True

    def empty(self, shape: Shape, depth: int) -> bool:
        """Whether it is known that there is no such value."""
        self._probes += 1
        if self._probes > _MOST_PROBES:
            return False
        match shape:
            case StringShape():
                return shape.empty()
            case ArrayShape():
                needed = [shape.at(index) for index in range(min(shape.low, len(shape.prefix) + 1))]
                return any(self._empty_state(state, depth) for state in needed)
            case ObjectShape():
                self._work_left -= shape.weight // 8
                return any(self._empty_state(state, depth) for state in shape.needed(self._states))
            case _:
                return False

    def _empty_state(self, state: State, depth: int) -> bool:
        if state == NOTHING:
            return True
        if not state or depth == 0 or state in self._active:
            return False
        key = (state, depth)
        known = self._empty.get(key)
        if known is None:
            self._active.add(state)
            known = all(self.empty(shape, depth - 1) for kind in TYPES for shape in self.shapes(state, kind))
            self._active.discard(state)
            self._empty[key] = known
        return known

    def _told_apart(self, one: Shape, other: Shape) -> bool:
        """A key that both need, or one needs, with different constants: told without looking any further."""
        if not (isinstance(one, ObjectShape) and isinstance(other, ObjectShape)):
            return False
        mine, theirs = _tags(one), _tags(other)
        for name in {*one.needs, *other.needs}:
            if name in mine and name in theirs:
                left, right = self._texts(mine[name]), self._texts(theirs[name])
                if left is not None and right is not None and not (left & right):
                    return True
        return False

    def _texts(self, state: State) -> frozenset[str] | None:
        """The strings of a state that has nothing but a few."""
        for number in state:
            literal = self._states[number]
            if literal.holds:
                for atom in literal.node.atoms:
                    if isinstance(atom, node.ValueIs) and all(
                        isinstance(value, str) for value in atom.values
                    ):
                        return frozenset(atom.values)
        return None

    def _sites(self, number: int) -> node.Sites:
        literal = self._states[number]
        if literal.blame is not None:
            return (literal.blame,)
        return tuple(site for atom in literal.node.atoms for site in atom.sites)

    def _meet(self, one: Shape, other: Shape) -> Shape | None:
        self._work_left -= 1
        if self._work_left < 0:
            raise TooLarge
        match one, other:
            case NumberShape(), NumberShape():
                return one.meet(other)
            case StringShape(), StringShape():
                return one.meet(other)
            case ArrayShape(), ArrayShape():
                return one.meet(other, self._states)
            case ObjectShape(), ObjectShape():
                self._work_left -= (one.weight + other.weight) // 8
                return one.meet(other, self._states)
            case AtomShape(values, losses), AtomShape():
                kept = tuple(value for value in values if value in other.values)
                return AtomShape(kept, losses | other.losses) if kept else None
        raise AssertionError("shapes of different types never meet")

    def _product(self, one: Shapes, other: Shapes, sites: Iterable[Site]) -> Shapes:
        """What is in both; without the second, noted at the sites, if that makes too many alternatives."""
        if len(one) * len(other) > self._most_shapes and min(len(one), len(other)) > 1:
            return _all_lossy(one, sites, "too many alternatives together")
        if len(one) == 1 and one[0] in _ANY_SHAPES:
            return other
        if len(other) == 1 and other[0] in _ANY_SHAPES:
            return one
        met = (self._meet(left, right) for left in one for right in other)
        return tuple(dict.fromkeys(shape for shape in met if shape is not None))

    def _literal(self, number: int, kind: str) -> Shapes:
        key = (number, kind)
        found = self._of_literal.get(key)
        if found is None:
            literal = self._states[number]
            if literal.holds:
                found = self._held(literal.node, kind)
            else:
                assert literal.blame is not None
                found = self._denied(literal.node, kind, literal.blame)
            self._of_literal[key] = found
        return found

    def _holds(self, each: Node, kind: str) -> Shapes:
        return self.shapes(self._states.holding(each), kind)

    def _denies(self, each: Node, kind: str, blame: Site) -> Shapes:
        return self.shapes(self._states.denying(each, blame), kind)

    # A node that holds

    def _held(self, each: Node, kind: str) -> Shapes:
        found: Shapes | None = None
        for atom in each.atoms:
            if kind in _KINDS.get(type(atom), TYPES):
                part = self._atom(atom, kind)
                found = part if found is None else self._product(found, part, atom.sites)
                if not found:
                    return ()
        return (ANY_SHAPE[kind],) if found is None else found

    def _atom(self, atom: node.Atom, kind: str) -> Shapes:  # noqa: C901, PLR0911, PLR0912 - one case a keyword
        states = self._states
        match atom:
            case node.TypeIs(types=types, integers=integers):
                if kind not in types:
                    return ()
                return (NumberShape(integers=True),) if kind == "number" and integers else (ANY_SHAPE[kind],)
            case node.ValueIs(values=values):
                return self._listed(values, kind)
            case node.Range(low=low, high=high, open=opened):
                return (NumberShape(low, high, opened and low is not None, opened and high is not None),)
            case node.Multiple(step=step):
                shape = NumberShape(step=step).settled()
                return () if shape is None else (shape,)
            case node.Length(low=low, high=high):
                return (StringShape((), low, high),)
            case node.Matches(expression=expression, reason=reason):
                if expression is None:
                    return _all_lossy((StringShape(),), atom.sites, reason)
                return (StringShape((expression,)),)
            case node.Items(prefix=prefix, rest=rest):
                items = tuple(states.holding(item) for item in prefix)
                array = ArrayShape(items, EVERYTHING if rest is None else states.holding(rest)).trimmed()
                return () if array is None else (array,)
            case node.ItemCount(low=low, high=high):
                return (ArrayShape(low=low, high=high),)
            case node.Contains(node=below, low=low, high=high):
                return (ArrayShape(demands=(self._demand(atom.sites[0], below, low, high),)),)
            case node.Unique():
                return (ArrayShape(unique=atom.sites[0]),)
            case node.Fields():
                return self._fields(atom)
            case node.Needs(names=names):
                return (ObjectShape(needs=names),)
            case node.FieldCount(low=low, high=high):
                return (ObjectShape(low=low, high=high),)
            case node.Names(node=below):
                return self._names(atom, below)
            case node.DependentNeeds(needs=needs):
                return self._each(
                    ((_without(name), ObjectShape(needs=(name, *names))) for name, names in needs.items()),
                    kind,
                    atom.sites,
                )
            case node.DependentNodes(nodes=nodes):
                return self._each(
                    (
                        (_without(name), *self._product((_with(name),), self._holds(below, kind), atom.sites))
                        if kind == "object"
                        else (ANY_SHAPE[kind],)
                        for name, below in nodes.items()
                    ),
                    kind,
                    atom.sites,
                )
            case node.All(nodes=nodes):
                return self._each((self._holds(below, kind) for below in nodes), kind, atom.sites)
            case node.Either(nodes=nodes):
                return self._either(self._holds(below, kind) for below in nodes)
            case node.One(nodes=nodes):
                return self._one(nodes, kind, atom.sites[0], [self._holds(below, kind) for below in nodes])
            case node.No(node=below):
                return self._denies(below, kind, atom.sites[0])
            case node.If():
                return self._if(atom, kind)
            case node.UnevaluatedFields() | node.UnevaluatedItems():
                return self._unevaluated(atom, kind)
            case node.Beyond(reason=reason):
                return _all_lossy((ANY_SHAPE[kind],), atom.sites, reason)

    def _each(self, parts: Iterable[Sequence[Shape]], kind: str, sites: node.Sites) -> Shapes:
        found: Shapes = (ANY_SHAPE[kind],)
        for part in parts:
            found = self._product(found, tuple(part), sites)
        return found

    @staticmethod
    def _either(parts: Iterable[Shapes]) -> Shapes:
        return tuple(dict.fromkeys(shape for part in parts for shape in part))

    def _one(self, nodes: tuple[Node, ...], kind: str, site: Site, parts: list[Shapes]) -> Shapes:
        """Each branch without those of the others that it may have values in common with."""
        found: list[Shape] = []
        denials = 0
        for index, part in enumerate(parts):
            for other, below in enumerate(nodes):
                if other == index or not parts[other] or not part or self.apart(part, parts[other]):
                    continue
                denials += 1
                if denials > _MOST_DENIALS:
                    return _all_lossy(self._either(parts), (site,), "too many alternatives that may overlap")
                denied = self._denies(below, kind, site)
                part = self._product(part, denied, (site,))  # noqa: PLW2901
                part = tuple(shape for shape in part if not self.empty(shape, _PROBE_DEPTH))  # noqa: PLW2901
            found.extend(part)
        return tuple(dict.fromkeys(found))

    def _if(self, atom: node.If, kind: str) -> Shapes:
        condition = self._holds(atom.condition, kind)
        if atom.then is not None:
            condition = self._product(condition, self._holds(atom.then, kind), atom.sites)
        otherwise = self._denies(atom.condition, kind, atom.sites[0])
        if atom.otherwise is not None:
            otherwise = self._product(otherwise, self._holds(atom.otherwise, kind), atom.sites)
        return self._either([condition, otherwise])

    def _fields(self, atom: node.Fields) -> Shapes:
        states = self._states
        rest = EVERYTHING if atom.rest is None else states.holding(atom.rest)
        named = tuple((name, states.holding(below)) for name, below in atom.named.items())
        patterns = []
        losses = frozenset[Loss]()
        for expression, below in atom.patterns:
            if expression is None:
                losses = _losses(atom.sites, "a regular expression that cannot be enforced")
            else:
                patterns.append((expression, states.holding(below)))
        if losses:
            rest, patterns = EVERYTHING, []
        return (ObjectShape((Layer(named, tuple(patterns), rest),), losses=losses),)

    def _names(self, atom: node.Names, below: Node) -> Shapes:
        allowed = self._holds(below, "string")
        losses = frozenset(loss for shape in allowed for loss in shape.losses)
        named: list[str] = []
        patterns = []
        for shape in allowed:
            assert isinstance(shape, StringShape)
            if shape.values is not None and not shape.patterns:
                named.extend(shape.values)
            else:
                patterns.append(shape.expression())
        layer = Layer(
            tuple((name, EVERYTHING) for name in dict.fromkeys(named)),
            tuple((pattern, EVERYTHING) for pattern in patterns),
            NOTHING,
        )
        return (ObjectShape((layer,), losses=losses),)

    def _demand(self, site: Site, below: Node, low: int, high: int | None) -> Demand:
        holding, denying = self._states.holding(below), self._states.denying(below, site)
        return Demand(holding, denying, 0, low, high, site)

    def _listed(self, values: tuple[Any, ...], kind: str) -> Shapes:
        match kind:
            case "null":
                return (AtomShape((None,)),) if any(value is None for value in values) else ()
            case "boolean":
                kept = tuple(flag for flag in (False, True) if any(value is flag for value in values))
                return (AtomShape(kept),) if kept else ()
            case "number":
                numbers = tuple(dict.fromkeys(exact(value) for value in values if _is_number(value)))
                return (NumberShape(values=numbers),) if numbers else ()
            case "string":
                texts = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
                return (StringShape(values=texts),) if texts else ()
            case "array":
                return tuple(self._exact_array(value) for value in values if isinstance(value, list))
            case _:
                return tuple(self._exact_object(value) for value in values if isinstance(value, dict))

    def _exact_array(self, value: list[Any]) -> ArrayShape:
        prefix = tuple(self._states.constant(item) for item in value)
        return ArrayShape(prefix, NOTHING, len(value), len(value))

    def _exact_object(self, value: dict[str, Any]) -> ObjectShape:
        named = tuple((name, self._states.constant(each)) for name, each in value.items())
        return ObjectShape((Layer(named, (), NOTHING),), tuple(value))

    # unevaluatedProperties, unevaluatedItems

    def _unevaluated(self, atom: node.UnevaluatedFields | node.UnevaluatedItems, kind: str) -> Shapes:
        """For each way in which the schema beside it may hold, the rest of the keys or items.

        The more branches of an anyOf hold the more is evaluated, so a value is fine if it is fine for any set of
        branches that hold; that the others do not hold need not be said.
        """
        try:
            ways = self._tracked(atom.owner, kind, atom)
        except TooLarge:
            return _all_lossy((ANY_SHAPE[kind],), atom.sites, "too many ways to evaluate")
        rest = self._states.holding(atom.node)
        found = []
        for shape, seen in ways:
            closed: Shape
            if seen.all:
                closed = ANY_SHAPE[kind]
            elif kind == "array":
                closed = ArrayShape((EVERYTHING,) * seen.items, rest)
            else:
                layer = Layer(
                    tuple((name, EVERYTHING) for each in seen.layers for name, _ in each.named),
                    tuple((pattern, EVERYTHING) for each in seen.layers for pattern, _ in each.patterns),
                    rest,
                )
                closed = ObjectShape((layer,))
            met = self._meet(shape, closed)
            if met is not None:
                found.append(met)
        return tuple(dict.fromkeys(found))

    def _tracked(self, owner: Node, kind: str, until: node.Atom | None = None) -> Tracked:
        """The alternatives of a node with what each evaluates. Raises TooLarge."""
        if owner.never:
            return ()
        found: Tracked = ((ANY_SHAPE[kind], Seen()),)
        for atom in owner.atoms:
            if atom is until:
                break
            if kind in _KINDS.get(type(atom), TYPES):
                found = self._tracked_product(found, self._tracked_atom(atom, kind))
        return found

    def _tracked_atom(self, atom: node.Atom, kind: str) -> Tracked:  # noqa: C901, PLR0911, PLR0912 - one case a keyword
        match atom:
            case node.Fields(rest=rest):
                if any(expression is None for expression, _ in atom.patterns):
                    raise TooLarge
                (shape,) = self._fields(atom)
                assert isinstance(shape, ObjectShape)
                return ((shape, Seen(shape.layers, 0, rest is not None)),)
            case node.Items(prefix=prefix, rest=rest):
                return tuple(
                    (shape, Seen((), len(prefix), rest is not None)) for shape in self._atom(atom, kind)
                )
            case node.Contains() | node.Beyond():
                raise TooLarge
            case node.All(nodes=nodes):
                found: Tracked = ((ANY_SHAPE[kind], Seen()),)
                for below in nodes:
                    found = self._tracked_product(found, self._tracked(below, kind))
                return found
            case node.Either(nodes=nodes):
                return self._tracked_any([self._tracked(below, kind) for below in nodes])
            case node.One(nodes=nodes):
                parts = [self._tracked(below, kind) for below in nodes]
                return tuple(
                    (shape, seen)
                    for index, part in enumerate(parts)
                    for whole, seen in part
                    for shape in self._alone(whole, index, atom, kind)
                )
            case node.If():
                return self._tracked_if(atom, kind)
            case node.DependentNodes(nodes=named):
                found = ((ANY_SHAPE[kind], Seen()),)
                for name, below in named.items():
                    with_it = self._tracked_product(((_with(name), Seen()),), self._tracked(below, kind))
                    found = self._tracked_product(found, ((_without(name), Seen()), *with_it))
                return found
            case node.UnevaluatedFields() | node.UnevaluatedItems():
                return tuple((shape, Seen(all=True)) for shape in self._unevaluated(atom, kind))
            case _:
                return tuple((shape, Seen()) for shape in self._atom(atom, kind))

    def _alone(self, whole: Shape, index: int, atom: node.One, kind: str) -> Shapes:
        """What of this alternative of one branch is in no other branch."""
        found: Shapes = (whole,)
        for other, below in enumerate(atom.nodes):
            if other != index and not self.apart(found, self._holds(below, kind)):
                found = self._product(found, self._denies(below, kind, atom.sites[0]), atom.sites)
        return found

    def _tracked_any(self, parts: list[Tracked]) -> Tracked:
        parts = [part for part in parts if part]
        if len(parts) > _MOST_UNEVALUATED:
            raise TooLarge
        found: list[tuple[Shape, Seen]] = []
        for count in range(1, len(parts) + 1):
            for chosen in combinations(parts, count):
                together = chosen[0]
                for part in chosen[1:]:
                    together = self._tracked_product(together, part)
                found.extend(together)
        return tuple(dict.fromkeys(found))

    def _tracked_if(self, atom: node.If, kind: str) -> Tracked:
        condition = self._tracked(atom.condition, kind)
        if atom.then is not None:
            condition = self._tracked_product(condition, self._tracked(atom.then, kind))
        otherwise: Tracked = tuple(
            (shape, Seen()) for shape in self._denies(atom.condition, kind, atom.sites[0])
        )
        if atom.otherwise is not None:
            otherwise = self._tracked_product(otherwise, self._tracked(atom.otherwise, kind))
        return (*condition, *otherwise)

    def _tracked_product(self, one: Tracked, other: Tracked) -> Tracked:
        if len(one) * len(other) > self._most_shapes:
            raise TooLarge
        found = []
        for left, seen in one:
            for right, more in other:
                met = self._meet(left, right)
                if met is not None:
                    found.append((met, seen + more))
        return tuple(dict.fromkeys(found))

    # A node that does not hold

    def _denied(self, each: Node, kind: str, blame: Site) -> Shapes:
        parts = (
            self._denied_atom(atom, kind, blame)
            for atom in each.atoms
            if kind in _KINDS.get(type(atom), TYPES)
        )
        return self._either(parts)

    def _denied_atom(self, atom: node.Atom, kind: str, blame: Site) -> Shapes:  # noqa: C901, PLR0911, PLR0912
        states = self._states
        anything: Shapes = (ANY_SHAPE[kind],)
        match atom:
            case node.TypeIs(types=types, integers=integers):
                if kind not in types:
                    return anything
                if kind == "number" and integers:
                    return _all_lossy(anything, (blame,), "numbers that are not whole")
                return ()
            case node.ValueIs(values=values):
                return self._unlisted(values, kind, blame)
            case node.Range(low=low, high=high, open=opened):
                if low is not None:
                    return (NumberShape(high=low, high_open=not opened),)
                return (NumberShape(low=high, low_open=not opened),)
            case node.Multiple(step=step):
                return _all_lossy(anything, (blame,), f"numbers that are no multiple of {step}")
            case node.Length(low=low, high=high):
                below: Shapes = (StringShape((), 0, low - 1),) if low else ()
                return below if high is None else (*below, StringShape((), high + 1))
            case node.Matches(expression=expression):
                return _no_match(expression, blame)
            case node.Items(prefix=prefix, rest=rest):
                return self._denied_items(prefix, rest, blame)
            case node.ItemCount(low=low, high=high):
                fewer: Shapes = (ArrayShape(low=0, high=low - 1),) if low else ()
                return fewer if high is None else (*fewer, ArrayShape(low=high + 1))
            case node.Contains(node=item, low=low, high=high):
                demands = [self._demand(blame, item, 0, low - 1)] if low else []
                if high is not None:
                    demands.append(self._demand(blame, item, high + 1, None))
                return tuple(ArrayShape(demands=(demand,)) for demand in demands)
            case node.Unique():
                return _all_lossy(anything, (blame,), "arrays in which an item comes twice")
            case node.Fields():
                return self._denied_fields(atom, blame)
            case node.Needs(names=names):
                return tuple(_without(name) for name in names)
            case node.FieldCount(low=low, high=high):
                few: Shapes = (ObjectShape(high=low - 1),) if low else ()
                return few if high is None else (*few, ObjectShape(low=high + 1))
            case node.Names(node=name):
                if not self._holds(name, "string"):
                    return (ObjectShape(low=1),)
                return _all_lossy(anything, (blame,), "some key of any name")
            case node.DependentNeeds(needs=needs):
                return tuple(
                    ObjectShape((Layer(((absent, NOTHING),)),), (name,))
                    for name, names in needs.items()
                    for absent in names
                    if absent != name
                )
            case node.DependentNodes(nodes=nodes):
                if kind != "object":
                    return ()
                return self._either(
                    self._product((_with(name),), self._denies(item, kind, blame), (blame,))
                    for name, item in nodes.items()
                )
            case node.All(nodes=nodes):
                return self._either(self._denies(item, kind, blame) for item in nodes)
            case node.Either(nodes=nodes):
                return self._each((self._denies(item, kind, blame) for item in nodes), kind, (blame,))
            case node.One(nodes=nodes):
                none = self._each((self._denies(item, kind, blame) for item in nodes), kind, (blame,))
                parts = [self._holds(item, kind) for item in nodes]
                pairs = [self._product(left, right, (blame,)) for left, right in combinations(parts, 2)]
                return self._either([none, *pairs])
            case node.No(node=item):
                return self._holds(item, kind)
            case node.If(condition=condition, then=then, otherwise=otherwise):
                return self._denied_if(condition, then, otherwise, kind, blame)
            case node.UnevaluatedFields() | node.UnevaluatedItems():
                return _all_lossy(anything, (blame,), "what is left unevaluated")
            case node.Beyond(reason=reason):
                return _all_lossy(anything, (blame,), reason)
        raise AssertionError(states)

    def _denied_if(
        self, condition: Node, then: Node | None, otherwise: Node | None, kind: str, blame: Site
    ) -> Shapes:
        parts: list[Shapes] = []
        if then is not None:
            met = self._holds(condition, kind)
            parts.append(self._product(met, self._denies(then, kind, blame), (blame,)))
        if otherwise is not None:
            unmet = self._denies(condition, kind, blame)
            parts.append(self._product(unmet, self._denies(otherwise, kind, blame), (blame,)))
        return self._either(parts)

    def _denied_items(self, prefix: tuple[Node, ...], rest: Node | None, blame: Site) -> Shapes:
        states = self._states
        found: list[Shape] = []
        for index, item in enumerate(prefix):
            state = states.denying(item, blame)
            if state != NOTHING:
                found.append(ArrayShape((EVERYTHING,) * index + (state,), low=index + 1))
        if rest is not None:
            state = states.denying(rest, blame)
            if state == EVERYTHING:
                found.append(ArrayShape(low=len(prefix) + 1))
            elif state != NOTHING:
                demand = Demand(state, states.holding(rest), len(prefix), 1, None, blame)
                found.append(ArrayShape(demands=(demand,), low=len(prefix) + 1))
        return tuple(found)

    def _denied_fields(self, atom: node.Fields, blame: Site) -> Shapes:
        states = self._states
        found: list[Shape] = []
        for name, below in atom.named.items():
            state = states.denying(below, blame)
            if state != NOTHING:
                found.append(ObjectShape((Layer(((name, state),)),), (name,)))
        for _, below in atom.patterns:
            if states.denying(below, blame) != NOTHING:
                loss = Loss(blame, "some key that matches a pattern")
                found.append(ObjectShape(low=1, losses=frozenset([loss])))
        if atom.rest is not None and states.denying(atom.rest, blame) != NOTHING:
            if atom.patterns or states.denying(atom.rest, blame) != EVERYTHING:
                found.append(ObjectShape(low=1, losses=frozenset([Loss(blame, "some key of any name")])))
            else:
                named = tuple((name, EVERYTHING) for name in atom.named)
                extra = Extra(frozenset(atom.named), blame)
                found.append(ObjectShape((Layer(named),), low=1, extras=(extra,)))
        return tuple(found)

    def _unlisted(self, values: tuple[Any, ...], kind: str, blame: Site) -> Shapes:  # noqa: PLR0911 - one case a type
        match kind:
            case "null":
                return () if any(value is None for value in values) else (ANY_SHAPE[kind],)
            case "boolean":
                kept = tuple(flag for flag in (False, True) if not any(value is flag for value in values))
                return (AtomShape(kept),) if kept else ()
            case "number":
                return self._each(
                    (
                        (NumberShape(high=number, high_open=True), NumberShape(low=number, low_open=True))
                        for number in sorted({exact(value) for value in values if _is_number(value)})
                    ),
                    kind,
                    (blame,),
                )
            case "string":
                texts = [value for value in values if isinstance(value, str)]
                if not texts:
                    return (StringShape(),)
                try:
                    return (StringShape((rx.none_of(texts),)),)
                except TooLarge:
                    return _all_lossy((StringShape(),), (blame,), "strings that are none of so many")
            case "array":
                arrays = [value for value in values if isinstance(value, list)]
                return self._each((self._other_arrays(value, blame) for value in arrays), kind, (blame,))
            case _:
                objects = [value for value in values if isinstance(value, dict)]
                return self._each((self._other_objects(value, blame) for value in objects), kind, (blame,))

    def _other_arrays(self, value: list[Any], blame: Site) -> Shapes:
        found: list[Shape] = [ArrayShape(low=len(value) + 1)]
        if value:
            found.append(ArrayShape(high=len(value) - 1))
        for index, item in enumerate(value):
            state = self._states.denying(self._states.constant_node(item), blame)
            found.append(ArrayShape((EVERYTHING,) * index + (state,), low=index + 1))
        return tuple(found)

    def _other_objects(self, value: dict[str, Any], blame: Site) -> Shapes:
        named = tuple((name, EVERYTHING) for name in value)
        found: list[Shape] = [ObjectShape((Layer(named),), low=1, extras=(Extra(frozenset(value), blame),))]
        for name, item in value.items():
            state = self._states.denying(self._states.constant_node(item), blame)
            found.append(_without(name))
            found.append(ObjectShape((Layer(((name, state),)),), (name,)))
        return tuple(found)


_OBJECTS, _ARRAYS, _STRINGS, _NUMBERS = ("object",), ("array",), ("string",), ("number",)
_KINDS: dict[type, tuple[str, ...]] = {
    node.Range: _NUMBERS,
    node.Multiple: _NUMBERS,
    node.Length: _STRINGS,
    node.Matches: _STRINGS,
    node.Items: _ARRAYS,
    node.ItemCount: _ARRAYS,
    node.Contains: _ARRAYS,
    node.Unique: _ARRAYS,
    node.UnevaluatedItems: _ARRAYS,
    node.Fields: _OBJECTS,
    node.Needs: _OBJECTS,
    node.FieldCount: _OBJECTS,
    node.Names: _OBJECTS,
    node.DependentNeeds: _OBJECTS,
    node.DependentNodes: _OBJECTS,
    node.UnevaluatedFields: _OBJECTS,
}
"""Atoms that say something about values of these types only."""


def _with(name: str) -> ObjectShape:
    return ObjectShape(needs=(name,))


def _without(name: str) -> ObjectShape:
    return ObjectShape((Layer(((name, NOTHING),)),))


def _tags(shape: ObjectShape) -> dict[str, State]:
    return {name: state for layer in shape.layers for name, state in layer.named if state}


def _no_match(expression: rx.Expression | None, blame: Site) -> Shapes:
    try:
        if expression is None:
            raise TooLarge
        return (StringShape((automaton.simplified(rx.Complement(formats.wider(expression))),)),)
    except TooLarge:
        return _all_lossy((StringShape(),), (blame,), "strings that a regular expression does not match")


def _losses(sites: Iterable[Site], reason: str) -> frozenset[Loss]:
    return frozenset(Loss(site, reason) for site in sites)


def _all_lossy(shapes: Shapes, sites: Iterable[Site], reason: str) -> Shapes:
    found = shapes
    for site in sites:
        found = tuple(shape.lossy(Loss(site, reason)) for shape in found)
    return found


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))

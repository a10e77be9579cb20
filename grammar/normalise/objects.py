"""One alternative for objects, and its solution: every key that is named, and everything about those that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

from . import automaton
from . import expression as rx
from .expression import Expression, TooLarge
from .node import Site
from .states import EVERYTHING, NOTHING, Loss, State, States

_MOST_CHOICES = 64
_MOST_PATTERNS = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """What one schema object says about keys. Each key has to satisfy every layer of an object.

    A key satisfies its named state and those of all patterns that match it; `rest` if neither names nor patterns know it.
    """

    named: tuple[tuple[str, State], ...] = ()
    patterns: tuple[tuple[Expression, State], ...] = ()
    rest: State = EVERYTHING


@dataclass(frozen=True, slots=True)
class Extra:
    """There is a key that is none of these names. A layer names them all."""

    names: frozenset[str]
    site: Site


@dataclass(frozen=True, slots=True)
class ObjectShape:
    layers: tuple[Layer, ...] = ()
    needs: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    extras: tuple[Extra, ...] = ()
    losses: frozenset[Loss] = frozenset()

    def meet(self, other: ObjectShape, states: States) -> ObjectShape | None:
        highs = [high for high in (self.high, other.high) if high is not None]
        met = ObjectShape(
            tuple(dict.fromkeys(self.layers + other.layers)),
            tuple(dict.fromkeys(self.needs + other.needs)),
            max(self.low, other.low),
            min(highs, default=None),
            tuple(dict.fromkeys(self.extras + other.extras)),
            self.losses | other.losses,
        )
        if met.high is not None and max(met.low, len(met.needs)) > met.high:
            return None
        impossible = any(met.state_of(name, states) == NOTHING for name in met.needs)
        return None if impossible else met

    def state_of(self, name: str, states: States) -> State:
        """What the value under a key has to satisfy. Where a pattern is too hard to try: everything, which is too much."""
        state = EVERYTHING
        for layer in self.layers:
            try:
                state = states.both(state, _in_layer(layer, name, states))
            except TooLarge:
                continue
        return state

    def names(self) -> list[str]:
        """All keys that are named, in the order of the schema; then those that are only required."""
        named = dict.fromkeys(name for layer in self.layers for name, _ in layer.named)
        return list(named | dict.fromkeys(self.needs))

    def lossy(self, loss: Loss) -> ObjectShape:
        return replace(self, losses=self.losses | {loss})


def _in_layer(layer: Layer, name: str, states: States) -> State:
    found = [state for known, state in layer.named if known == name]
    found.extend(state for pattern, state in layer.patterns if automaton.matches(pattern, name))
    if not found:
        return layer.rest
    state = found[0]
    for other in found[1:]:
        state = states.both(state, other)
    return state


@dataclass(frozen=True, slots=True)
class Region:
    """Keys that match the expression; `state` is what their values have to satisfy.

    No named key matches it, except where the state says nothing: then the named keys need not be left out.
    """

    keys: Expression
    state: State


@dataclass(frozen=True, slots=True)
class SolvedObject:
    """Regions are disjoint; a key in none of them is not allowed."""

    named: tuple[tuple[str, State], ...]
    regions: tuple[Region, ...]
    needs: tuple[str, ...]
    low: int
    high: int | None
    losses: frozenset[Loss]


@dataclass(frozen=True, slots=True)
class Fallback:
    """The keywords to blame for what cannot be kept about patterns and about counts."""

    patterns: tuple[Site, ...]
    counts: tuple[Site, ...]


def solved(
    shape: ObjectShape, states: States, possible: Callable[[State], bool], blame: Fallback
) -> list[SolvedObject]:
    """In one or more alternatives. `possible` may say no only to states that no value satisfies."""
    losses = set(shape.losses)
    try:
        named = tuple((name, _strict_state(shape, name, states)) for name in shape.names())
        regions = _regions(shape.layers, [name for name, _ in named], states)
    except TooLarge:
        losses |= {Loss(site, "regular expressions that are too complex together") for site in blame.patterns}
        named = tuple((name, EVERYTHING) for name in shape.names())
        regions = (Region(rx.ANYTHING, EVERYTHING),)
    named = tuple((name, state if possible(state) else NOTHING) for name, state in named)
    regions = tuple(region for region in regions if possible(region.state))
    known = dict(named)
    if any(known[name] == NOTHING for name in shape.needs):
        return []
    plain = SolvedObject(named, regions, shape.needs, shape.low, shape.high, frozenset(losses))
    found: list[SolvedObject] = []
    for each in _with_extras(plain, shape.extras, blame):
        found.extend(_counted(each, blame))
    return found


def _strict_state(shape: ObjectShape, name: str, states: States) -> State:
    state = EVERYTHING
    for layer in shape.layers:
        state = states.both(state, _in_layer(layer, name, states))
    return state


def _regions(layers: tuple[Layer, ...], names: list[str], states: States) -> tuple[Region, ...]:
    """The keys that nobody names, divided by the patterns of all layers."""
    patterns = list(dict.fromkeys(pattern for layer in layers for pattern, _ in _grouped(layer)))
    grouped = [replace(layer, patterns=_grouped(layer)) for layer in layers]
    if len(patterns) > _MOST_PATTERNS:
        raise TooLarge
    parts: list[tuple[tuple[Expression, ...], tuple[Expression, ...]]] = [((), ())]
    for pattern in patterns:
        parts = [
            part
            for inside, outside in parts
            for part in (((*inside, pattern), outside), (inside, (*outside, pattern)))
        ]
    by_state: dict[State, list[Expression]] = {}
    for inside, outside in parts:
        state = EVERYTHING
        for layer in grouped:
            state = states.both(state, _for_part(layer, inside, states))
        if state == NOTHING:
            continue
        keys = _keys(inside, outside)
        if keys is not None:
            by_state.setdefault(state, []).append(keys)
    return tuple(
        Region(keys, state)
        for state, parts_of in by_state.items()
        if (keys := _unnamed(rx.alternatives(parts_of), names if state else [])) != rx.NOTHING
    )


def _unnamed(keys: Expression, names: list[str]) -> Expression:
    """The keys without those that are named."""
    keys = automaton.simplified(keys)
    if keys != rx.ANYTHING:
        matcher = automaton.Matcher(keys) if names else None
        names = [name for name in names if matcher is not None and matcher(name)]
    if not names:
        return keys
    others = rx.none_of(names)
    return others if keys == rx.ANYTHING else automaton.simplified(rx.both([keys, others]))


def _grouped(layer: Layer) -> tuple[tuple[Expression, State], ...]:
    """Patterns with the same state as one; those without consequence left out."""
    groups: dict[State, list[Expression]] = {}
    for pattern, state in layer.patterns:
        groups.setdefault(state, []).append(pattern)
    if layer.rest == EVERYTHING:
        groups.pop(EVERYTHING, None)
    return tuple((rx.alternatives(patterns), state) for state, patterns in groups.items())


def _for_part(layer: Layer, inside: tuple[Expression, ...], states: States) -> State:
    matching = [state for pattern, state in layer.patterns if pattern in inside]
    if not matching:
        return layer.rest
    state = matching[0]
    for other in matching[1:]:
        state = states.both(state, other)
    return state


def _keys(inside: tuple[Expression, ...], outside: tuple[Expression, ...]) -> Expression | None:
    """The keys in all of these and in none of those; None if there are none."""
    if len(inside) > 1 and automaton.is_empty(rx.both(inside)):
        return None
    touching = outside
    if inside:
        touching = tuple(other for other in outside if not automaton.disjoint(rx.both(inside), other))
    keys = rx.both([*inside, *(rx.Complement(other) for other in touching)])
    if touching and automaton.is_empty(keys):
        return None
    return automaton.simplified(keys)


def _with_extras(shape: SolvedObject, extras: tuple[Extra, ...], blame: Fallback) -> Iterator[SolvedObject]:
    """At least one key beyond those names, for each of the extras. A key that is not named is beyond all of them."""
    if not extras:
        yield shape
        return
    extra, others = extras[0], extras[1:]
    allowed = [name for name, state in shape.named if state != NOTHING]
    for name in allowed:
        if name not in extra.names:
            needing = tuple(dict.fromkeys((*shape.needs, name)))
            yield from _with_extras(replace(shape, needs=needing), others, blame)
    if not shape.regions:
        return
    optional = [name for name in allowed if name not in shape.needs]
    if 2 ** len(optional) > _MOST_CHOICES:
        yield replace(shape, losses=shape.losses | {Loss(extra.site, "it takes some key of any name")})
        return
    for present in _subsets(optional):
        chosen = _choosing(shape, optional, present)
        yield replace(chosen, low=max(chosen.low, len(chosen.needs) + 1))


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    for count in range(len(names) + 1):
        yield from combinations(names, count)


def _choosing(shape: SolvedObject, optional: list[str], present: tuple[str, ...]) -> SolvedObject:
    """Exactly these of the optional keys."""
    gone = set(optional) - set(present)
    named = tuple((name, NOTHING if name in gone else state) for name, state in shape.named)
    return replace(shape, named=named, needs=tuple(dict.fromkeys((*shape.needs, *present))))


def _counted(shape: SolvedObject, blame: Fallback) -> Iterator[SolvedObject]:
    """With a number of keys that an engine can keep, in one or more alternatives.

    Engines count keys only where all that are named are required, and do not see that a key of any name came twice. So at
    least two of those are beyond them; at most any number is not, as to repeat a key only makes fewer.
    """
    optional = [name for name, state in shape.named if state != NOTHING and name not in shape.needs]
    least = max(0, shape.low - len(shape.needs))
    most = None if shape.high is None else shape.high - len(shape.needs)
    if most is not None and most < 0:
        return
    if not shape.regions and most is not None and most >= len(optional):
        most = None
    if not least and most is None:
        yield replace(shape, low=0, high=None)
    elif not shape.regions:
        yield from _counted_closed(shape, optional, least, most, blame)
    elif 2 ** len(optional) > _MOST_CHOICES:
        yield _uncounted(shape, blame, "too many keys may be left out")
    else:
        for present in _subsets(optional):
            left = max(0, least - len(present))
            if most is not None and len(present) > most:
                continue
            chosen = _choosing(shape, optional, present)
            if left > 1:
                yield _uncounted(chosen, blame, "a key of any name may come twice and is counted twice")
            else:
                low = len(chosen.needs) + left if left else 0
                yield replace(chosen, low=low)


def _counted_closed(
    shape: SolvedObject, optional: list[str], least: int, most: int | None, blame: Fallback
) -> Iterator[SolvedObject]:
    """Only named keys: the first `least` that are present, and as many others as stay away for sure."""
    if least > len(optional):
        return
    away = 0 if most is None else len(optional) - most
    if comb(len(optional), least) * comb(len(optional), away) > _MOST_CHOICES * 4:
        yield _uncounted(shape, blame, "too many keys may be left out")
        return
    free = replace(shape, low=0, high=None)
    for present in combinations(optional, least):
        before = optional[: optional.index(present[-1])] if present else []
        skipped = [name for name in before if name not in present]
        behind = [name for name in optional if name not in present and name not in skipped]
        more = max(0, away - len(skipped))
        for absent in combinations(behind, more):
            gone = {*skipped, *absent}
            named = tuple((name, NOTHING if name in gone else state) for name, state in free.named)
            yield replace(free, named=named, needs=tuple(dict.fromkeys((*free.needs, *present))))


def _uncounted(shape: SolvedObject, blame: Fallback, reason: str) -> SolvedObject:
    losses = {Loss(site, reason) for site in blame.counts}
    return replace(shape, low=0, high=None, losses=shape.losses | losses)

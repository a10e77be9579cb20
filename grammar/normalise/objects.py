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
_MOST_PATTERNS = 32
_MOST_PARTS = 128


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
    """`order` has the named keys in the order of the schema where that is not the order of the layers."""

    layers: tuple[Layer, ...] = ()
    needs: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    extras: tuple[Extra, ...] = ()
    losses: frozenset[Loss] = frozenset()
    order: tuple[str, ...] | None = None

    def meet(self, other: ObjectShape, states: States) -> ObjectShape | None:
        highs = [high for high in (self.high, other.high) if high is not None]
        met = ObjectShape(
            _merged(self.layers, other.layers, states),
            tuple(dict.fromkeys(self.needs + other.needs)),
            max(self.low, other.low),
            min(highs, default=None),
            tuple(dict.fromkeys(self.extras + other.extras)),
            self.losses | other.losses,
            tuple(dict.fromkeys((*self.named(), *other.named()))),
        )
        if met.high is not None and max(met.low, len(met.needs)) > met.high:
            return None
        return None if any(state == NOTHING for state in met.needed(states)) else met

    def needed(self, states: States) -> list[State]:
        """What the values under the needed keys have to satisfy. Where a pattern is too hard to try: too much."""
        if not self.needs:
            return []
        known = [dict(layer.named) for layer in self.layers]
        return [_state_of(name, self.layers, known, states) for name in self.needs]

    def named(self) -> tuple[str, ...]:
        """All keys that are named, in the order of the schema."""
        if self.order is not None:
            return self.order
        return tuple(dict.fromkeys(name for layer in self.layers for name, _ in layer.named))

    @property
    def weight(self) -> int:
        """About what it costs to look at."""
        return len(self.layers) * len(self.needs)

    def lossy(self, loss: Loss) -> ObjectShape:
        return replace(self, losses=self.losses | {loss})


def _merged(one: tuple[Layer, ...], other: tuple[Layer, ...], states: States) -> tuple[Layer, ...]:
    """The layers of both; those that speak of named keys only as one."""
    layers = tuple(dict.fromkeys(one + other))
    if len(layers) < 2:
        return layers
    named: dict[str, State] = {}
    kept = []
    for layer in layers:
        if layer.patterns or layer.rest:
            kept.append(layer)
        else:
            for name, state in layer.named:
                named[name] = states.both(named[name], state) if name in named else state
    return (Layer(tuple(named.items())), *kept) if named else tuple(kept)


def _state_of(
    name: str,
    layers: tuple[Layer, ...],
    known: list[dict[str, State]],
    states: States,
    *,
    strict: bool = False,
) -> State:
    """What the value under a key has to satisfy. A pattern that is too hard to try raises TooLarge or is left out."""
    state = EVERYTHING
    for layer, named in zip(layers, known, strict=True):
        try:
            state = states.both(state, _in_layer(name, layer, named, states))
        except TooLarge:
            if strict:
                raise
    return state


def _in_layer(name: str, layer: Layer, named: dict[str, State], states: States) -> State:
    found = [named[name]] if name in named else []
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
    """Regions are disjoint; `rest` is for keys that are not named and in none of them."""

    named: tuple[tuple[str, State], ...]
    regions: tuple[Region, ...]
    rest: State
    needs: tuple[str, ...]
    low: int
    high: int | None
    losses: frozenset[Loss]

    @property
    def open(self) -> bool:
        """Whether it may have keys that are not named."""
        return bool(self.regions) or self.rest != NOTHING


@dataclass(frozen=True, slots=True)
class Fallback:
    """The keywords to blame for what cannot be kept about patterns, about counts and about named keys."""

    patterns: tuple[Site, ...]
    counts: tuple[Site, ...]
    named: tuple[Site, ...]


def solved(
    shape: ObjectShape, states: States, possible: Callable[[State], bool], blame: Fallback
) -> list[SolvedObject]:
    """In one or more alternatives. `possible` may say no only to states that no value satisfies."""
    losses = set(shape.losses)
    known = [dict(layer.named) for layer in shape.layers]
    names = tuple(dict.fromkeys(shape.named() + shape.needs))
    try:
        named = tuple((name, _state_of(name, shape.layers, known, states, strict=True)) for name in names)
        regions, rest = _regions(shape.layers, [name for name, _ in named], states)
        if rest != NOTHING:
            losses |= {
                Loss(site, "keys that no pattern matches, however they are spelled")
                for site in blame.patterns
            }
    except TooLarge:
        losses |= {Loss(site, "regular expressions that are too complex together") for site in blame.patterns}
        named = tuple((name, EVERYTHING) for name in names)
        regions, rest = (Region(rx.ANYTHING, EVERYTHING),), NOTHING
    named = tuple((name, state if possible(state) else NOTHING) for name, state in named)
    regions = tuple(region for region in regions if possible(region.state))
    by_name = dict(named)
    if any(by_name[name] == NOTHING for name in shape.needs):
        return []
    if not possible(rest):
        rest = NOTHING
    if regions and any(state != EVERYTHING and _has_control_character(name) for name, state in named):
        losses |= {Loss(site, "a key with a control character beside others") for site in blame.named}
    plain = SolvedObject(named, regions, rest, shape.needs, shape.low, shape.high, frozenset(losses))
    found: list[SolvedObject] = []
    for each in _with_extras(plain, shape.extras, blame):
        found.extend(_counted(each, blame))
    return found


def _has_control_character(name: str) -> bool:
    """Engines let such a key pass for an unnamed one in its other spelling, as `\\u000a` for `\\n`."""
    return any(character < " " or character == "\x7f" for character in name)


def _regions(layers: tuple[Layer, ...], names: list[str], states: States) -> tuple[tuple[Region, ...], State]:
    """The keys that nobody names, divided by the patterns of all layers, and the state of other keys if those that no
    pattern matches are too hard to describe."""
    grouped = [replace(layer, patterns=_grouped(layer)) for layer in layers]
    patterns = list(dict.fromkeys(pattern for layer in grouped for pattern, _ in layer.patterns))
    if len(patterns) > _MOST_PATTERNS:
        raise TooLarge
    touching = _touching(patterns)
    by_state: dict[State, list[Expression]] = {}
    for inside in _parts(patterns, touching):
        state = EVERYTHING
        for layer in grouped:
            state = states.both(state, _for_part(layer, inside, states))
        if state == NOTHING:
            continue
        met = set.intersection(*(touching[pattern] for pattern in inside)) if inside else set(patterns)
        keys = rx.both([*inside, *(rx.Complement(other) for other in patterns if other in met - set(inside))])
        by_state.setdefault(state, []).append(keys)
    regions = []
    rest = NOTHING
    for state, parts in by_state.items():
        try:
            keys = _unnamed(
                rx.alternatives(automaton.simplified(part) for part in parts), names if state else []
            )
        except TooLarge:
            if rest != NOTHING or not any(_of_no_pattern(part) for part in parts):
                raise
            rest = state
        else:
            if keys != rx.NOTHING:
                regions.append(Region(keys, state))
    return tuple(regions), rest


def _of_no_pattern(keys: Expression) -> bool:
    parts = keys.parts if isinstance(keys, rx.Both) else (keys,)
    return all(isinstance(part, rx.Complement) for part in parts)


def _touching(patterns: list[Expression]) -> dict[Expression, set[Expression]]:
    """For each pattern those that match some key which it matches too, itself among them."""
    found = {pattern: {pattern} for pattern in patterns}
    for one, other in combinations(patterns, 2):
        if not automaton.disjoint(one, other):
            found[one].add(other)
            found[other].add(one)
    return found


def _parts(
    patterns: list[Expression], touching: dict[Expression, set[Expression]]
) -> Iterator[tuple[Expression, ...]]:
    """The sets of patterns that match some key together, the empty one first."""
    waiting: list[tuple[tuple[Expression, ...], int]] = [((), 0)]
    for count, (inside, start) in enumerate(waiting, 1):
        if count > _MOST_PARTS:
            raise TooLarge
        yield inside
        for index in range(start, len(patterns)):
            pattern = patterns[index]
            if all(pattern in touching[other] for other in inside):
                more = (*inside, pattern)
                if len(more) <= 2 or not automaton.is_empty(rx.both(more)):
                    waiting.append((more, index + 1))


def _unnamed(keys: Expression, names: list[str]) -> Expression:
    """The keys without those that are named."""
    keys = automaton.simplified(keys)
    if keys != rx.ANYTHING:
        names = [name for name in names if automaton.matches(keys, name)]
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
    if not shape.open:
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
    if not shape.open and most is not None and most >= len(optional):
        most = None
    if not least and most is None:
        yield replace(shape, low=0, high=None)
    elif not shape.open:
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

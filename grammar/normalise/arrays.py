"""One alternative for arrays, and its solution: the same without demands that no engine can keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb

from .node import Site
from .states import EVERYTHING, NOTHING, Loss, State, States

_MOST_PLACES = 64


@dataclass(frozen=True, slots=True)
class Demand:
    """At least `low` and at most `high` items from position `start` on satisfy the state, and the others do not."""

    state: State
    denied: State
    start: int
    low: int
    high: int | None
    site: Site


@dataclass(frozen=True, slots=True)
class ArrayShape:
    prefix: tuple[State, ...] = ()
    rest: State = EVERYTHING
    low: int = 0
    high: int | None = None
    demands: tuple[Demand, ...] = ()
    unique: Site | None = None
    losses: frozenset[Loss] = frozenset()

    def at(self, index: int) -> State:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def meet(self, other: ArrayShape, states: States) -> ArrayShape | None:
        length = max(len(self.prefix), len(other.prefix))
        prefix = tuple(states.both(self.at(index), other.at(index)) for index in range(length))
        highs = [high for high in (self.high, other.high) if high is not None]
        met = ArrayShape(
            prefix,
            states.both(self.rest, other.rest),
            max(self.low, other.low),
            min(highs, default=None),
            tuple(dict.fromkeys(self.demands + other.demands)),
            self.unique or other.unique,
            self.losses | other.losses,
        )
        return met.trimmed()

    def trimmed(self) -> ArrayShape | None:
        """Bounded where an item is impossible, without a prefix past the bound; None if there is no such array."""
        high = self.high
        for index, state in enumerate(self.prefix):
            if state == NOTHING and (high is None or index < high):
                high = index
        if self.rest == NOTHING and (high is None or len(self.prefix) < high):
            high = len(self.prefix)
        if high is not None and self.low > high:
            return None
        prefix = self.prefix if high is None else self.prefix[:high]
        rest = NOTHING if high is not None and len(prefix) >= high else self.rest
        while prefix and prefix[-1] == rest:
            prefix = prefix[:-1]
        return replace(self, prefix=prefix, rest=rest, high=high)

    def lossy(self, loss: Loss) -> ArrayShape:
        return replace(self, losses=self.losses | {loss})


def solved(
    shape: ArrayShape, states: States, listed: Callable[[State], tuple[State, ...] | None]
) -> list[ArrayShape]:
    """Without demands and uniqueness, in one or more alternatives. `listed` gives the values of a state if they are few."""
    waiting = [shape]
    done: list[ArrayShape] = []
    while waiting:
        each = waiting.pop()
        if each.demands:
            demand, rest = each.demands[0], replace(each, demands=each.demands[1:])
            waiting.extend(_demanded(rest, demand, states))
        elif each.unique is not None:
            done.extend(_distinct(each, each.unique, states, listed))
        else:
            done.append(each)
    return done


def _with_item(shape: ArrayShape, index: int, state: State, states: States) -> ArrayShape:
    prefix = list(shape.prefix) + [shape.rest] * (index + 1 - len(shape.prefix))
    prefix[index] = states.both(prefix[index], state)
    return replace(shape, prefix=tuple(prefix))


def _all_items(shape: ArrayShape, start: int, state: State, states: States) -> ArrayShape:
    prefix = list(shape.prefix) + [shape.rest] * (start - len(shape.prefix))
    for index in range(start, len(prefix)):
        prefix[index] = states.both(prefix[index], state)
    return replace(shape, prefix=tuple(prefix), rest=states.both(shape.rest, state))


def _demanded(shape: ArrayShape, demand: Demand, states: States) -> Iterator[ArrayShape]:
    if demand.low == 0 and demand.high is None:
        yield shape
        return
    if demand.high is not None and demand.high < demand.low:
        return
    if demand.high == 0:
        yield from _trimmed(_all_items(shape, demand.start, demand.denied, states))
        return
    if _always(shape, demand):
        low = demand.start + demand.low if demand.low else 0
        high = None if demand.high is None else demand.start + demand.high
        highs = [each for each in (shape.high, high) if each is not None]
        yield from _trimmed(replace(shape, low=max(shape.low, low), high=min(highs, default=None)))
        return
    yield from _placed(shape, demand, states)


def _always(shape: ArrayShape, demand: Demand) -> bool:
    """Whether whatever may stand there satisfies the demand's state anyway."""
    wanted = set(demand.state)
    items = [shape.at(index) for index in range(demand.start, max(demand.start, len(shape.prefix)))]
    return all(wanted <= set(item) for item in [*items, shape.rest] if item != NOTHING)


def _placed(shape: ArrayShape, demand: Demand, states: States) -> Iterator[ArrayShape]:
    """One alternative for each way to place the items that are demanded."""
    if shape.high is None or _ways(shape.high - demand.start, demand) > _MOST_PLACES:
        yield shape.lossy(Loss(demand.site, "it takes an item somewhere in an array of any length"))
        return
    places = range(demand.start, shape.high)
    counts = [demand.low] if demand.high is None else range(demand.low, demand.high + 1)
    for count in counts:
        for chosen in combinations(places, count):
            placed = replace(shape, low=max(shape.low, chosen[-1] + 1 if chosen else 0))
            for index in places:
                if index in chosen:
                    placed = _with_item(placed, index, demand.state, states)
                elif demand.high is not None:
                    placed = _with_item(placed, index, demand.denied, states)
            yield from _trimmed(placed)


def _ways(places: int, demand: Demand) -> int:
    """In how many ways the demanded items can be placed, or more than the bound."""
    if places > _MOST_PLACES:
        return _MOST_PLACES + 1
    counts = [demand.low] if demand.high is None else range(demand.low, min(demand.high, places) + 1)
    return sum(comb(max(places, 0), count) for count in counts)


def _trimmed(shape: ArrayShape) -> Iterator[ArrayShape]:
    trimmed = shape.trimmed()
    if trimmed is not None:
        yield trimmed


def _distinct(
    shape: ArrayShape, site: Site, states: States, listed: Callable[[State], tuple[State, ...] | None]
) -> Iterator[ArrayShape]:
    """One alternative for each array of distinct values, if they are few."""
    if shape.high is not None and shape.high <= 1:
        yield replace(shape, unique=None)
        return
    choices: list[tuple[State, ...]] = []
    known = listed(shape.rest) if shape.rest != NOTHING else ()
    for index in range(len(shape.prefix)):
        options = listed(shape.prefix[index])
        if options is None:
            break
        choices.append(options)
    longest = _longest(shape, known)
    if len(choices) < len(shape.prefix) or longest is None:
        yield replace(shape, unique=None).lossy(Loss(site, "items that differ from all before them"))
        return
    choices.extend([known or ()] * (longest - len(choices)))
    arrays = _arrays(choices[:longest], shape.low)
    if arrays is None:
        yield replace(shape, unique=None).lossy(Loss(site, "items that differ from all before them"))
        return
    for array in arrays:
        yield ArrayShape(array, NOTHING, len(array), len(array), (), None, shape.losses)


def _longest(shape: ArrayShape, known: tuple[State, ...] | None) -> int | None:
    if shape.rest == NOTHING:
        return len(shape.prefix)
    if known is None:
        return None
    bound = len(shape.prefix) + len(known)
    return bound if shape.high is None else min(bound, shape.high)


def _arrays(choices: list[tuple[State, ...]], low: int) -> list[tuple[State, ...]] | None:
    """All arrays of distinct values of at least that length; None if there are too many."""
    found: list[tuple[State, ...]] = []
    rows: list[tuple[State, ...]] = [()]
    for options in [*choices, ()]:
        found.extend(row for row in rows if len(row) >= low)
        if len(found) > _MOST_PLACES:
            return None
        rows = [(*row, option) for row in rows for option in options if option not in row]
        if len(rows) > _MOST_PLACES:
            return None
    return found

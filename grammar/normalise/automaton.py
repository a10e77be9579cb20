"""Deciding about sets of strings given as expressions: members, emptiness, and the same set without intersections and
complements.

Nondeterministic automata (Thompson 1968) made deterministic on demand over the classes of characters that the expressions
tell apart. Everything is bounded; what goes past a bound raises TooLarge.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from . import expression as rx
from .expression import Both, Chars, Complement, Concat, Expression, Property, Repeat, TooLarge

_MOST_POINTS = 4_000
_MOST_STATES = 600
_MOST_ELIMINATED = 200
_MOST_TEXT = 5_000
Points = frozenset[int]


def matches(expression: Expression, text: str) -> bool:
    """Whether the whole text is in the set. Linear in the text. Raises TooLarge."""
    match expression:
        case Both(parts):
            return all(matches(part, text) for part in parts)
        case Complement(part):
            return not matches(part, text)
        case _:
            return matcher(expression)(text)


@lru_cache(maxsize=64)
def matcher(expression: Expression) -> Matcher:
    """For many texts, and again for the next of the same expression. Raises TooLarge."""
    return Matcher(expression)


class Matcher:
    """Decides for one expression and many texts, remembering what it worked out. Raises TooLarge."""

    def __init__(self, expression: Expression) -> None:
        self._machine = _Machine(_Alphabet.of([expression]), expression)

    def __call__(self, text: str) -> bool:
        machine = self._machine
        state = machine.start
        for char in text:
            state = machine.step(state, machine.alphabet.letter(ord(char)))
        return machine.accepts(state)


def is_empty(expression: Expression) -> bool:
    """Whether no string is in the set. Raises TooLarge."""
    if rx.plain(expression):
        return _no_way_through(expression)
    return _first_accepted(expression) is None


def _first_accepted(expression: Expression) -> object | None:
    solver = _Solver(expression, _Alphabet.of([expression]))
    seen = {solver.start}
    waiting = [solver.start]
    while waiting:
        state = waiting.pop()
        if solver.accepts(state):
            return state
        for letter in range(len(solver.alphabet.ranges)):
            to = solver.step(state, letter)
            if to not in seen and not solver.dead(to):
                if len(seen) >= _MOST_STATES * 4:
                    raise TooLarge
                seen.add(to)
                waiting.append(to)
    return None


def disjoint(one: Expression, other: Expression) -> bool:
    """Whether no string is in both. Raises TooLarge."""
    return is_empty(rx.both([one, other]))


def simplified(expression: Expression) -> Expression:
    """The same set without intersections and complements. Raises TooLarge."""
    if rx.plain(expression):
        return expression
    return _eliminated(_Explored.of(expression).minimal())


def _no_way_through(expression: Expression) -> bool:
    match expression:
        case Chars(ranges):
            return not ranges
        case Concat(parts):
            return any(_no_way_through(part) for part in parts)
        case Repeat(part, least, _):
            return least > 0 and _no_way_through(part)
        case rx.Alternatives(parts):
            return all(_no_way_through(part) for part in parts)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class _Alphabet:
    """Letters 0..n-1: the classes of characters that no expression tells apart."""

    starts: tuple[int, ...]
    letters: tuple[int, ...]
    ranges: tuple[tuple[rx.Range, ...], ...]

    @classmethod
    def of(cls, expressions: Iterable[Expression]) -> _Alphabet:
        sets = list(dict.fromkeys(_char_sets(expressions)))
        points = sorted(
            {0, *(edge for chars in sets for low, high in chars.ranges for edge in (low, high + 1))}
        )
        points = [point for point in points if point <= rx.LAST]
        if len(points) > _MOST_POINTS:
            raise TooLarge
        marks: dict[tuple[bool, ...], int] = {}
        letters: list[int] = []
        ranges: list[list[rx.Range]] = []
        for start, stop in zip(points, [*points[1:], rx.LAST + 1], strict=True):
            mark = tuple(_contains(chars, start) for chars in sets)
            letter = marks.setdefault(mark, len(marks))
            if letter == len(ranges):
                ranges.append([])
            ranges[letter].append((start, stop - 1))
            letters.append(letter)
        return cls(tuple(points), tuple(letters), tuple(rx.chars(each).ranges for each in ranges))

    def letter(self, code: int) -> int:
        return self.letters[bisect_right(self.starts, code) - 1]

    def letters_in(self, chars: Chars) -> list[int]:
        found: dict[int, None] = {}
        for low, high in chars.ranges:
            at = bisect_right(self.starts, low) - 1
            while at < len(self.starts) and self.starts[at] <= high:
                found[self.letters[at]] = None
                at += 1
        return list(found)


def _contains(chars: Chars, code: int) -> bool:
    at = bisect_right(chars.ranges, (code, rx.LAST)) - 1
    return at >= 0 and chars.ranges[at][1] >= code


def _char_sets(expressions: Iterable[Expression]) -> Iterable[Chars]:
    waiting = list(expressions)
    while waiting:
        match waiting.pop():
            case Chars() as chars:
                yield chars
            case Property():
                raise TooLarge
            case Concat(parts) | rx.Alternatives(parts) | Both(parts):
                waiting.extend(parts)
            case Repeat(part, _, _) | Complement(part):
                waiting.append(part)


class _Machine:
    """An expression, made deterministic on demand. Its states are whatever `start` and `step` give."""

    def __init__(self, alphabet: _Alphabet, expression: Expression) -> None:
        self.alphabet = alphabet
        self._size = 0
        self._silent: list[list[int]] = []
        self._moves: list[dict[int, list[int]]] = []
        self._steps: dict[tuple[Points, int], Points] = {}
        first = self._point()
        self._last = self._build(expression, first)
        self.start = self._closure([first])

    def step(self, state: Points, letter: int) -> Points:
        key = (state, letter)
        known = self._steps.get(key)
        if known is None:
            nexts = [to for point in state for to in self._moves[point].get(letter, ())]
            known = self._steps[key] = self._closure(nexts)
            if len(self._steps) > _MOST_STATES * 200:
                raise TooLarge
        return known

    def accepts(self, state: Points) -> bool:
        return self._last in state

    def _point(self) -> int:
        if len(self._moves) >= _MOST_POINTS:
            raise TooLarge
        self._silent.append([])
        self._moves.append({})
        return len(self._moves) - 1

    def _closure(self, points: Iterable[int]) -> Points:
        seen = set(points)
        waiting = list(seen)
        while waiting:
            for to in self._silent[waiting.pop()]:
                if to not in seen:
                    seen.add(to)
                    waiting.append(to)
        return frozenset(seen)

    def _build(self, expression: Expression, first: int) -> int:
        """Points and moves for the expression from `first` on; gives the point at its end."""
        match expression:
            case Chars() as chars:
                last = self._point()
                for letter in self.alphabet.letters_in(chars):
                    self._moves[first].setdefault(letter, []).append(last)
                return last
            case Concat(parts):
                for part in parts:
                    first = self._build(part, first)
                return first
            case rx.Alternatives(parts):
                last = self._point()
                for part in parts:
                    start = self._point()
                    self._silent[first].append(start)
                    self._silent[self._build(part, start)].append(last)
                return last
            case Repeat(part, least, most):
                return self._build_repeat(part, least, most, first)
            case Both() | Complement():
                return self._build_solved(expression, first)
            case _:
                raise TooLarge

    def _build_repeat(self, part: Expression, least: int, most: int | None, first: int) -> int:
        for _ in range(least):
            first = self._build(part, first)
        if most is None:
            hub = self._point()
            self._silent[first].append(hub)
            self._silent[self._build(part, hub)].append(hub)
            return hub
        last = self._point()
        self._silent[first].append(last)
        for _ in range(most - least):
            first = self._build(part, first)
            self._silent[first].append(last)
        return last

    def _build_solved(self, expression: Expression, first: int) -> int:
        solved = _Explored.of(expression, self.alphabet)
        points = [self._point() for _ in solved.moves]
        last = self._point()
        self._silent[first].append(points[0])
        for point, moves in zip(points, solved.moves, strict=True):
            for letter, to in moves.items():
                self._moves[point].setdefault(letter, []).append(points[to])
        for state in solved.accepting:
            self._silent[points[state]].append(last)
        return last


class _Solver:
    """Boolean combinations of machines, stepped together."""

    def __init__(self, expression: Expression, alphabet: _Alphabet) -> None:
        self.alphabet = alphabet
        self._machines: list[_Machine] = []
        self._rule = self._combine(expression)
        self._musts = list(_must_hold(self._rule))

    @property
    def start(self) -> tuple[Points, ...]:
        return tuple(machine.start for machine in self._machines)

    def step(self, state: tuple[Points, ...], letter: int) -> tuple[Points, ...]:
        return tuple(machine.step(at, letter) for machine, at in zip(self._machines, state, strict=True))

    def accepts(self, state: tuple[Points, ...]) -> bool:
        return self._holds(self._rule, state)

    def dead(self, state: tuple[Points, ...]) -> bool:
        """Whether nothing can be accepted from here on because a part that has to match is at an end."""
        return any(not state[index] for index in self._musts)

    def _combine(self, expression: Expression) -> tuple[str, tuple[object, ...]]:
        match expression:
            case Both(parts):
                return "and", tuple(self._combine(part) for part in parts)
            case Complement(part):
                return "not", (self._combine(part),)
            case _:
                self._machines.append(_Machine(self.alphabet, expression))
                return "machine", (len(self._machines) - 1,)

    def _holds(self, rule: tuple[str, tuple[object, ...]], state: tuple[Points, ...]) -> bool:
        kind, parts = rule
        if kind == "machine":
            (index,) = parts
            assert isinstance(index, int)
            return self._machines[index].accepts(state[index])
        held = (self._holds(part, state) for part in parts)  # type: ignore[arg-type]
        return all(held) if kind == "and" else not next(held)


def _must_hold(rule: tuple[str, tuple[object, ...]]) -> Iterable[int]:
    kind, parts = rule
    if kind == "machine":
        (index,) = parts
        assert isinstance(index, int)
        yield index
    elif kind == "and":
        for part in parts:
            yield from _must_hold(part)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Explored:
    """A whole deterministic automaton; state 0 is the start. Only states from which an end can be reached."""

    alphabet: _Alphabet
    moves: tuple[Mapping[int, int], ...]
    accepting: frozenset[int]

    @classmethod
    def of(cls, expression: Expression, alphabet: _Alphabet | None = None) -> _Explored:
        alphabet = alphabet or _Alphabet.of([expression])
        solver = _Solver(expression, alphabet)
        numbers = {solver.start: 0}
        states = [solver.start]
        moves: list[dict[int, int]] = []
        for state in states:
            ways: dict[int, int] = {}
            for letter in range(len(alphabet.ranges)):
                to = solver.step(state, letter)
                if solver.dead(to):
                    continue
                if to not in numbers:
                    if len(numbers) >= _MOST_STATES:
                        raise TooLarge
                    numbers[to] = len(numbers)
                    states.append(to)
                ways[letter] = numbers[to]
            moves.append(ways)
        accepting = {number for state, number in numbers.items() if solver.accepts(state)}
        return cls(alphabet, tuple(moves), frozenset(accepting))._pruned()

    def _pruned(self) -> _Explored:
        backwards: dict[int, set[int]] = {}
        for state, ways in enumerate(self.moves):
            for to in ways.values():
                backwards.setdefault(to, set()).add(state)
        alive = set(self.accepting)
        waiting = list(alive)
        while waiting:
            for state in backwards.get(waiting.pop(), ()):
                if state not in alive:
                    alive.add(state)
                    waiting.append(state)
        alive.add(0)
        renumbered = {state: number for number, state in enumerate(sorted(alive))}
        moves = tuple(
            {letter: renumbered[to] for letter, to in ways.items() if to in alive}
            for state, ways in enumerate(self.moves)
            if state in alive
        )
        return _Explored(self.alphabet, moves, frozenset(renumbered[state] for state in self.accepting))

    def minimal(self) -> _Explored:
        """Moore's refinement."""
        groups = [int(state in self.accepting) for state in range(len(self.moves))]
        count = len(set(groups))
        while True:
            marks: dict[tuple[object, ...], int] = {}
            refined = []
            for state, ways in enumerate(self.moves):
                mark = (groups[state], tuple(sorted((letter, groups[to]) for letter, to in ways.items())))
                refined.append(marks.setdefault(mark, len(marks)))
            groups = refined
            if len(marks) == count:
                break
            count = len(marks)
        moves: list[dict[int, int]] = [{} for _ in range(count)]
        for state, ways in enumerate(self.moves):
            moves[groups[state]] = {letter: groups[to] for letter, to in ways.items()}
        return _Explored(self.alphabet, tuple(moves), frozenset(groups[state] for state in self.accepting))


@dataclass(slots=True)
class _Diagram:
    """Arrows labelled with expressions, for state elimination (Brzozowski and McCluskey 1963)."""

    into: dict[int, set[int]] = field(default_factory=dict)
    arrows: dict[int, dict[int, Expression]] = field(default_factory=dict)

    def add(self, start: int, to: int, label: Expression) -> None:
        ways = self.arrows.setdefault(start, {})
        ways[to] = rx.alternatives([ways[to], label]) if to in ways else label
        self.into.setdefault(to, set()).add(start)

    def cost(self, state: int) -> int:
        return len(self.into.get(state, set()) - {state}) * len(self.arrows.get(state, {}).keys() - {state})

    def eliminate(self, state: int) -> int:
        """Takes the state out; gives about how long the labels became."""
        ways = self.arrows.pop(state, {})
        loop = ways.pop(state, None)
        middle = rx.EMPTY if loop is None else rx.repeat(loop, 0, None)
        sources = self.into.pop(state, set()) - {state}
        length = 0
        for to in ways:
            self.into[to].discard(state)
        for source in sources:
            label = self.arrows[source].pop(state)
            for to, more in ways.items():
                whole = rx.concat([label, middle, more])
                length += _size(whole)
                self.add(source, to, whole)
        return length


def _eliminated(machine: _Explored) -> Expression:
    if len(machine.moves) > _MOST_ELIMINATED:
        raise TooLarge
    diagram = _Diagram()
    start, end = -1, -2
    diagram.add(start, 0, rx.EMPTY)
    for state, ways in enumerate(machine.moves):
        labels: dict[int, list[rx.Range]] = {}
        for letter, to in ways.items():
            labels.setdefault(to, []).extend(machine.alphabet.ranges[letter])
        for to, ranges in labels.items():
            label = rx.chars(ranges)
            if label.ranges:
                diagram.add(state, to, label)
        if state in machine.accepting:
            diagram.add(state, end, rx.EMPTY)
    left = set(range(len(machine.moves)))
    spent = 0
    while left:
        state = min(left, key=lambda each: (diagram.cost(each), -each))
        left.remove(state)
        spent += diagram.eliminate(state)
        if spent > _MOST_TEXT * 4:
            raise TooLarge
    result = diagram.arrows.get(start, {}).get(end, rx.NOTHING)
    if _size(result) > _MOST_TEXT:
        raise TooLarge
    return result


def _size(expression: Expression) -> int:
    match expression:
        case Chars(ranges):
            return 1 + len(ranges)
        case Concat(parts) | rx.Alternatives(parts):
            return 1 + sum(_size(part) for part in parts)
        case Repeat(part, _, _):
            return 2 + _size(part)
        case _:
            return 1

"""Regular expressions as trees over sets of Unicode scalar values, and their text.

The text uses only what ECMA-262 with the u flag, Rust's regex crate and llguidance read alike: no flags, no shorthand
classes whose meaning differs, no operators inside classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union

LAST = 0x10FFFF
_LAST_CONTROL = 0x1F
_OF_CONTROLS = frozenset({"C", "Cc", "Control", "Other", "cntrl"})
LONGEST_LIST = 20_000
LONGEST_WORD = 100
SURROGATES = (0xD800, 0xDFFF)
Range = tuple[int, int]


class TooLarge(Exception):
    """Working this out would cost more than it is worth; nothing was decided."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of sorted, disjoint, non-adjacent ranges (both ends inside, no surrogates)."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Property:
    r"""One character of a Unicode property, `\\p{name}` or its complement. Automata cannot look into it."""

    name: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Concat:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of the parts; none of them: nothing matches."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Expression
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Both:
    """What all parts match. Has no text."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Complement:
    """Every string that the part does not match. Has no text."""

    part: Expression


Expression = Union[Chars, Property, Concat, Alternatives, Repeat, Both, Complement]  # noqa: UP007 - recursive

EMPTY = Concat(())
NOTHING = Alternatives(())
ANY_CHARACTER = Chars(((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, LAST)))
ANYTHING = Repeat(ANY_CHARACTER, 0, None)


def chars(ranges: Iterable[Range]) -> Chars:
    """A class from ranges in any order, overlapping or not. Surrogates fall out."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    clean: list[Range] = []
    for low, high in merged:
        if low < SURROGATES[0]:
            clean.append((low, min(high, SURROGATES[0] - 1)))
        if high > SURROGATES[1]:
            clean.append((max(low, SURROGATES[1] + 1), high))
    return Chars(tuple(clean))


def without(ranges: Iterable[Range]) -> Chars:
    """Every character outside these ranges."""
    kept: list[Range] = []
    next_free = 0
    for low, high in sorted(ranges):
        if low > next_free:
            kept.append((next_free, low - 1))
        next_free = max(next_free, high + 1)
    if next_free <= LAST:
        kept.append((next_free, LAST))
    return chars(kept)


def literal(text: str) -> Expression:
    """Exactly this text."""
    return concat(Chars(((ord(char), ord(char)),)) for char in text)


def concat(parts: Iterable[Expression]) -> Expression:
    flat: list[Expression] = []
    for part in parts:
        if isinstance(part, Concat):
            flat.extend(part.parts)
        elif part == NOTHING:
            return NOTHING
        else:
            flat.append(part)
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def alternatives(parts: Iterable[Expression]) -> Expression:
    flat: dict[Expression, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, Alternatives) else (part,)))
    return next(iter(flat)) if len(flat) == 1 else Alternatives(tuple(flat))


def both(parts: Iterable[Expression]) -> Expression:
    flat: dict[Expression, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, Both) else (part,)))
    flat.pop(ANYTHING, None)
    if not flat:
        return ANYTHING
    return next(iter(flat)) if len(flat) == 1 else Both(tuple(flat))


def repeat(part: Expression, least: int, most: int | None) -> Expression:
    if (least, most) == (1, 1) or part == EMPTY:
        return part
    if most == 0:
        return EMPTY
    return Repeat(part, least, most)


def nullable(expression: Expression) -> bool:
    """Whether the empty string matches."""
    match expression:
        case Chars() | Property():
            return False
        case Concat(parts) | Both(parts):
            return all(nullable(part) for part in parts)
        case Alternatives(parts):
            return any(nullable(part) for part in parts)
        case Repeat(part, least, _):
            return least == 0 or nullable(part)
        case Complement(part):
            return not nullable(part)


def plain(expression: Expression) -> bool:
    """Whether it has a text: neither intersection nor complement in it."""
    match expression:
        case Chars() | Property():
            return True
        case Concat(parts) | Alternatives(parts):
            return all(plain(part) for part in parts)
        case Repeat(part, _, _):
            return plain(part)
        case _:
            return False


def counting(expression: Expression) -> int:
    """How many repetitions of parts of no fixed length are counted at most: what a length beside them is multiplied by."""
    match expression:
        case Concat(parts) | Alternatives(parts) | Both(parts):
            return max(map(counting, parts), default=0)
        case Repeat(part, least, most):
            count = least if most is None else most
            return max(counting(part), count * max(1, counting(part)) if _varies(part) and count > 1 else 0)
        case Complement(part):
            return counting(part)
        case _:
            return 0


def _varies(expression: Expression) -> bool:
    match expression:
        case Concat(parts) | Both(parts):
            return any(map(_varies, parts))
        case Repeat(_, least, most):
            return least != most
        case Alternatives() | Complement():
            return True
        case _:
            return False


def any_of(texts: Iterable[str]) -> Expression:
    """One of these texts."""
    return alternatives(literal(text) for text in texts)


def none_of(texts: Iterable[str]) -> Expression:
    """Any string but these: a trie, every way out of which leads to freedom. As long as the texts together.

    Raises TooLarge for texts that together or alone are long.
    """
    words = sorted(set(texts))
    if sum(map(len, words)) > LONGEST_LIST or max(map(len, words), default=0) > LONGEST_WORD:
        raise TooLarge

    def beyond(depth: int, words: list[str]) -> Expression:
        nexts: dict[str, list[str]] = {}
        for word in words:
            if len(word) > depth:
                nexts.setdefault(word[depth], []).append(word)
        parts: list[Expression] = [EMPTY] if all(len(word) > depth for word in words) else []
        parts.append(concat([without((ord(char), ord(char)) for char in nexts), ANYTHING]))
        parts.extend(concat([literal(char), beyond(depth + 1, rest)]) for char, rest in nexts.items())
        return alternatives(parts)

    return beyond(0, words)


_PLAIN_IN_CLASS = frozenset(" !\"#%&'*+,./:;<=>?@_`{|}~$()")
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\f": "\\f"}


def text_of(expression: Expression) -> str:
    """The text of a plain expression that a whole string has to match, with `^` and `$` where it does not begin or end
    with anything at all."""
    parts = list(expression.parts) if isinstance(expression, Concat) else [expression]
    open_start = bool(parts) and parts[0] == ANYTHING
    open_end = len(parts) > 1 and parts[-1] == ANYTHING
    if expression == ANYTHING:
        return r"^[\s\S]*$"  # the same as no text at all, whose masks cost llguidance fifty times as much
    body = "".join(_part_text(part) for part in parts[open_start : len(parts) - open_end])
    return f"{'' if open_start else '^'}{body}{'' if open_end else '$'}"


def _part_text(expression: Expression) -> str:
    """The text, in parentheses if it would not hold together beside others."""
    text = _text(expression)
    return f"(?:{text})" if isinstance(expression, Alternatives) else text


def _text(expression: Expression) -> str:
    match expression:
        case Chars(ranges):
            return _class_text(ranges)
        case Property(name, negated):
            return _property_text(name, negated)
        case Concat(parts):
            return "".join(_part_text(part) for part in parts)
        case Alternatives(()):
            return "[^\\s\\S]"
        case Alternatives(parts):
            return "|".join(_text(part) for part in _gathered(parts))
        case Repeat(part, least, most):
            return _repeated_text(part) + _count_text(least, most)
        case _:
            raise ValueError("an intersection or a complement has no text")


def _gathered(parts: tuple[Expression, ...]) -> list[Expression]:
    """The alternatives with all characters among them in one class, which an engine would make of them anyway."""
    ranges = [range_ for part in parts if isinstance(part, Chars) for range_ in part.ranges]
    others = [part for part in parts if not isinstance(part, Chars)]
    return [*([chars(ranges)] if ranges else []), *others]


def _property_text(name: str, negated: bool) -> str:
    """Without U+0000 where the property may be a trap of the kind that `_without_trap` knows."""
    if negated:
        return f"[^\\p{{{name}}}\\x00]"
    return f"[\\p{{{name}}}--\\x00]" if name in _OF_CONTROLS else f"\\p{{{name}}}"


def _repeated_text(part: Expression) -> str:
    text = _text(part)
    return text if isinstance(part, Chars | Property) else f"(?:{text})"


def _count_text(least: int, most: int | None) -> str:
    named = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if named is not None:
        return named
    if most is None:
        return f"{{{least},}}"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _class_text(ranges: tuple[Range, ...]) -> str:
    if not ranges:
        return "[^\\s\\S]"
    if ranges == ANY_CHARACTER.ranges:
        return "[\\s\\S]"
    ranges = _without_trap(ranges)
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _char_text(ranges[0][0], _SYNTAX)
    if ranges and ranges[-1][1] == LAST:
        return f"[^{_ranges_text(without(ranges).ranges)}]"
    return f"[{_ranges_text(ranges)}]"


def _without_trap(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """The class without U+0000 where llguidance 1.9 would take too much for it.

    In JSON text it writes a class that has all control characters with every escape there is, those of `"` and `\\`
    included, though these may not be in the class.
    """
    low, high = ranges[0] if ranges else (1, 1)
    if low > 0 or high < _LAST_CONTROL or all(_holds(ranges, ord(char)) for char in '"\\'):
        return ranges
    return ((1, high), *ranges[1:])


def _holds(ranges: tuple[Range, ...], code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _ranges_text(ranges: tuple[Range, ...]) -> str:
    texts = []
    for low, high in ranges:
        texts.append(_class_char(low))
        if high > low:
            texts.append(("-" if high > low + 1 else "") + _class_char(high))
    return "".join(texts)


def _class_char(code: int) -> str:
    char = chr(code)
    if char.isascii() and (char.isalnum() or char in _PLAIN_IN_CLASS):
        return char
    return _char_text(code, frozenset("^\\[]-"))


def _char_text(code: int, escaped: frozenset[str]) -> str:
    char = chr(code)
    if char in _NAMED:
        return _NAMED[char]
    if char in escaped:
        return f"\\{char}"
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\x{code:02x}"
    return char

"""ECMA-262 regular expressions, as JSON Schema's `pattern` has them, read into trees.

Unicode semantics (the u flag), with the escapes that only Annex B allows accepted too. Anchors and lookarounds stay in
the tree as marks; `search` gives them their meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Union

from . import expression as rx
from .expression import Chars, Expression, Property, Range


class BadPattern(Exception):
    """Not a regular expression. `str(error)` says why."""


class NotRegular(Exception):
    """An expression that means something no finite automaton can tell, or that is not supported. Says what."""


@dataclass(frozen=True, slots=True)
class Start:
    """`^`"""


@dataclass(frozen=True, slots=True)
class End:
    """`$`"""


@dataclass(frozen=True, slots=True)
class Look:
    part: Marked
    ahead: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; some parts are marks or hold some."""

    parts: tuple[Marked, ...]


@dataclass(frozen=True, slots=True)
class Options:
    parts: tuple[Marked, ...]


@dataclass(frozen=True, slots=True)
class Optional:
    """The part or nothing."""

    part: Marked


Mark = Union[Start, End, Look]  # noqa: UP007 - recursive
Marked = Union[Expression, Mark, Sequence, Options, Optional]  # noqa: UP007 - recursive

_DIGIT: tuple[Range, ...] = ((0x30, 0x39),)
_WORD: tuple[Range, ...] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: tuple[Range, ...] = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_DOT = rx.without([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_MOST_REPEATS = 1 << 20
_DEEPEST = 100
_COUNT = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}", re.ASCII)
_PROPERTY = re.compile(r"\{([A-Za-z_]+(?:=[A-Za-z0-9_]+)?)\}")
_HEX2 = re.compile(r"[0-9a-fA-F]{2}")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_BRACED = re.compile(r"\{([0-9a-fA-F]{1,6})\}")


def parse(text: str) -> Marked:
    """Raises BadPattern or NotRegular."""
    return _Parser(text).all()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def all(self) -> Marked:
        tree = self._options()
        if self._at < len(self._text):
            raise BadPattern(f"unmatched ')' at {self._at}")
        return tree

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, start: str) -> bool:
        if self._text.startswith(start, self._at):
            self._at += len(start)
            return True
        return False

    def _options(self) -> Marked:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        if len(options) == 1:
            return options[0]
        unmarked = [option for option in options if not marked(option)]
        if len(unmarked) == len(options):
            return rx.alternatives(as_expression(option) for option in options)
        return Options(tuple(options))

    def _sequence(self) -> Marked:
        parts: list[Marked] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            parts.append(self._term())
        if not any(marked(part) for part in parts):
            return rx.concat(as_expression(part) for part in parts)
        return Sequence(tuple(parts))

    def _term(self) -> Marked:
        where = self._at
        atom = self._atom()
        counts = self._counts()
        if counts is None:
            return atom
        if isinstance(atom, Start | End):
            raise BadPattern(f"nothing to repeat at {where}")
        least, most = counts
        if not marked(atom):
            return rx.repeat(as_expression(atom), least, most)
        if most == 1:
            return atom if least == 1 else Optional(atom)
        raise NotRegular("a repeated anchor or lookaround")

    def _counts(self) -> tuple[int, int | None] | None:
        char = self._peek()
        counts: tuple[int, int | None]
        if char == "*":
            counts = (0, None)
        elif char == "+":
            counts = (1, None)
        elif char == "?":
            counts = (0, 1)
        else:
            found = _COUNT.match(self._text, self._at)
            if found is None:
                return None
            least = int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else None
            if most is not None and most < least:
                raise BadPattern(f"{found[0]} counts down at {self._at}")
            if max(least, most or 0) > _MOST_REPEATS:
                raise NotRegular(f"{found[0]}: more than {_MOST_REPEATS} repetitions")
            self._at = found.end()
            self._no_second_count()
            return least, most
        self._at += 1
        self._no_second_count()
        return counts

    def _no_second_count(self) -> None:
        self._take("?")  # lazy: finds the same strings
        if self._peek() in ("*", "+", "?") and self._peek():
            raise BadPattern(f"nothing to repeat at {self._at}")

    def _atom(self) -> Marked:  # noqa: PLR0911 - one case a character
        char = self._peek()
        if char == "(":
            return self._group()
        self._at += 1
        match char:
            case "^":
                return Start()
            case "$":
                return End()
            case ".":
                return _DOT
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise BadPattern(f"nothing to repeat at {self._at - 1}")
            case _:
                return _one(ord(char))

    def _group(self) -> Marked:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise NotRegular(f"groups nested more than {_DEEPEST} deep")
        opened = self._at
        self._at += 1
        ahead, negated, look = True, False, False
        if self._take("?"):
            if self._take(":"):
                pass
            elif self._take("=") or self._take("<="):
                look, ahead = True, self._text[self._at - 2] != "<"
            elif self._take("!") or self._take("<!"):
                look, negated, ahead = True, True, self._text[self._at - 2] != "<"
            else:
                name = re.compile(r"<[A-Za-z_$][\w$]*>").match(self._text, self._at)
                if name is None:
                    raise NotRegular(f"the group at {opened} is not one that ECMA-262 knows")
                self._at = name.end()
        inner = self._options()
        if not self._take(")"):
            raise BadPattern(f"unmatched '(' at {opened}")
        self._depth -= 1
        return Look(inner, ahead, negated) if look else inner

    def _escape(self) -> Marked:
        char = self._peek()
        if char in ("b", "B"):
            raise NotRegular(f"\\{char}, a word boundary")
        if char == "k" or (char.isascii() and char.isdigit() and char != "0"):
            raise NotRegular("a back reference")
        one = self._escaped()
        return one if isinstance(one, Property) else Chars(one)

    def _escaped(self) -> tuple[Range, ...] | Property:
        r"""What stands behind `\`, in a class or outside."""
        char = self._peek()
        if not char:
            raise BadPattern("a lone \\ at the end")
        self._at += 1
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else rx.without(ranges).ranges
        if char in ("p", "P"):
            found = _PROPERTY.match(self._text, self._at)
            if found is None:
                raise BadPattern(f"\\{char} without a property in braces")
            self._at = found.end()
            return Property(found[1], negated=char == "P")
        return _single(self._code(char))

    def _code(self, char: str) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "c":
            letter = self._peek()
            if not (letter.isascii() and letter.isalpha()):
                raise BadPattern("\\c without a letter")
            self._at += 1
            return ord(letter) % 32
        if char == "x":
            return self._hex(_HEX2, "\\x")
        if char == "u":
            return self._unicode()
        if char.isascii() and char.isalnum():
            raise NotRegular(f"\\{char}, which ECMA-262 does not define")
        return ord(char)

    def _hex(self, digits: re.Pattern[str], what: str) -> int:
        found = digits.match(self._text, self._at)
        if found is None:
            raise BadPattern(f"{what} without its digits")
        self._at = found.end()
        return int(found[0], 16)

    def _unicode(self) -> int:
        braced = _BRACED.match(self._text, self._at)
        if braced is not None:
            self._at = braced.end()
            code = int(braced[1], 16)
            if code > rx.LAST:
                raise BadPattern(f"\\u{braced[0]} is no character")
            return code
        high = self._hex(_HEX4, "\\u")
        if 0xD800 <= high < 0xDC00 and self._text.startswith("\\u", self._at):
            low = _HEX4.match(self._text, self._at + 2)
            if low is not None and 0xDC00 <= int(low[0], 16) < 0xE000:
                self._at = low.end()
                return 0x10000 + ((high - 0xD800) << 10) + int(low[0], 16) - 0xDC00
        return high

    def _class(self) -> Expression:
        opened = self._at - 1
        negated = self._take("^")
        ranges: list[Range] = []
        properties: list[Property] = []
        while not self._take("]"):
            if self._at >= len(self._text):
                raise BadPattern(f"unmatched '[' at {opened}")
            low = self._class_member()
            if isinstance(low, Property):
                properties.append(low)
                continue
            if (
                self._peek() == "-"
                and self._text[self._at + 1 : self._at + 2] not in ("]", "")
                and _is_one(low)
            ):
                self._at += 1
                high = self._class_member()
                if isinstance(high, Property) or not _is_one(high):
                    ranges += [*low, (0x2D, 0x2D)]  # Annex B: `a-\d` is three members
                    if isinstance(high, Property):
                        properties.append(high)
                    else:
                        ranges += high
                    continue
                if high[0][0] < low[0][0]:
                    raise BadPattern(f"a range that goes down in the class at {opened}")
                ranges.append((low[0][0], high[0][0]))
            else:
                ranges += low
        if not properties:
            return rx.without(ranges) if negated else rx.chars(ranges)
        if negated:
            if len(properties) == 1 and not ranges:
                return Property(properties[0].name, not properties[0].negated)
            raise NotRegular("a negated class with a Unicode property and more")
        return rx.alternatives([rx.chars(ranges), *properties] if ranges else properties)

    def _class_member(self) -> tuple[Range, ...] | Property:
        char = self._peek()
        self._at += 1
        if char != "\\":
            return _single(ord(char))
        if self._take("b"):
            return _single(8)
        if self._take("-"):
            return _single(0x2D)
        return self._escaped()


def marked(tree: Marked) -> bool:
    """Whether there are marks in it."""
    return isinstance(tree, Start | End | Look | Sequence | Options | Optional)


def as_expression(tree: Marked) -> Expression:
    assert not isinstance(tree, Start | End | Look | Sequence | Options | Optional)
    return tree


def _one(code: int) -> Expression:
    return Chars(_single(code))


def _single(code: int) -> tuple[Range, ...]:
    return ((code, code),)


def _is_one(ranges: tuple[Range, ...]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]

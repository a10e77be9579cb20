"""How deep a pattern or a grammar's text nests and how far its repetitions unfold, read off without compiling it.

Both are read as one flat run of tokens, in time linear in the text. Where languages disagree about what a token is, the
reading that counts more is taken. What only shows by following rules to other rules is not seen here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Syntax = Literal["ebnf", "lark"]

_REPEAT = r"(?P<repeat>\{\s*(?:\d+\s*(?:,\s*\d*\s*)?|,\s*\d+\s*)\})"
_PATTERN = re.compile(
    rf"{_REPEAT}|(?P<open>\()|(?P<close>\))|(?P<atom>\\.|\[(?:[^\]\\]|\\.)*+\]?|[^*+?|^$])", re.DOTALL
)
_STRING = r"\"(?:[^\"\\\n]|\\.)*+\"?"
_TEXTS = {
    "ebnf": re.compile(
        rf"#[^\n]*|{_REPEAT}|(?P<rule>::=)|(?P<open>\()|(?P<close>\))"
        rf"|(?P<atom>{_STRING}|\[(?:[^\]\\]|\\.)*+\]?|[\w-]+|[^\s*+?|:])"
    ),
    "lark": re.compile(
        rf"(?://|\#)[^\n]*|{_REPEAT}|(?P<tilde>~\s*\d+(?:\s*\.\.\s*\d+)?)|(?P<rule>:)|(?P<open>[(\[])|(?P<close>[)\]])"
        rf"|/(?P<regex>(?:[^/\\\n]|\\.)*+)/?|(?P<atom>{_STRING}|[\w%$@]+|[^\s*+?|])"
    ),
}
_NUMBER = re.compile(r"\d+")
DEEPEST = 1_000
"""Brackets after which no more is read: no limit is as large."""
_MANY = 10**9
"""What a number of more digits than this counts as."""


@dataclass(frozen=True, slots=True)
class Extent:
    """`depth` of brackets, the largest `product` of repetitions inside each other, all `positions` once unfolded, `rules`."""

    depth: int = 0
    product: int = 1
    positions: int = 0
    rules: int = 0


def pattern_extent(pattern: str) -> Extent:
    """Of a regular expression."""
    return _measure(_PATTERN.finditer(pattern))


def text_extent(text: str, syntax: Syntax) -> Extent:
    """Of a grammar, the regular expressions in it included."""
    return _measure(_TEXTS[syntax].finditer(text))


@dataclass(slots=True)
class _Group:
    """What is between two brackets so far. The last item is kept apart: a repetition may follow."""

    positions: int = 0
    product: int = 1
    last: int = 0
    last_product: int = 1

    def add(self, positions: int, product: int) -> None:
        self.positions += self.last
        self.product = max(self.product, self.last_product)
        self.last, self.last_product = positions, product

    def repeat(self, count: int) -> None:
        self.last *= count
        self.last_product *= count


def _measure(tokens: Iterable[re.Match[str]]) -> Extent:
    groups = [_Group()]
    deepest = rules = 0
    for token in tokens:
        match token.lastgroup:
            case "atom":
                groups[-1].add(1, 1)
            case "regex":
                inner = pattern_extent(token["regex"])
                deepest = max(deepest, len(groups) - 1 + inner.depth)
                groups[-1].add(inner.positions, inner.product)
            case "repeat" | "tilde":
                groups[-1].repeat(max(_number(digits) for digits in _NUMBER.findall(token[0])))
            case "open":
                groups.append(_Group())
                deepest = max(deepest, len(groups) - 1)
                if deepest == DEEPEST:
                    break
            case "close" if len(groups) > 1:
                group = groups.pop()
                group.add(0, 1)
                groups[-1].add(group.positions, group.product)
            case "rule":
                rules += 1
    while len(groups) > 1:  # what was never closed
        group = groups.pop()
        group.add(0, 1)
        groups[-1].add(group.positions, group.product)
    groups[0].add(0, 1)
    return Extent(deepest, groups[0].product, groups[0].positions, rules)


def _number(digits: str) -> int:
    return max(1, int(digits)) if len(digits) < len(str(_MANY)) else _MANY

"""Text that is another one each time: what makes prompts differ that mean the same.

Only the surroundings of one place are looked at, and every repetition is bounded, so that no text makes this slow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

VolatileKind = Literal["billing_header", "uuid", "datetime", "timestamp", "nonce"]

_MONTH = r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs?)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_TIME = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?: ?[AaPp]\.?[Mm]\b\.?)?(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?"

_PATTERNS: tuple[tuple[VolatileKind, int, re.Pattern[str]], ...] = (
    ("billing_header", 228, re.compile(r"x-anthropic-billing-header:[^\n]{0,200}")),
    (
        "uuid",
        36,
        re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9A-Za-z])"),
    ),
    (
        "datetime",
        64,
        re.compile(
            rf"(?<![0-9])[0-9]{{4}}([-/.])[0-9]{{1,2}}\1[0-9]{{1,2}}(?:[T ,]{{1,2}}{_TIME})?(?![0-9])"
            rf"|(?<![0-9])[0-9]{{1,2}}([-/.])[0-9]{{1,2}}\2[0-9]{{4}}(?:[T ,]{{1,2}}{_TIME})?(?![0-9])"
            rf"|(?<![A-Za-z0-9])(?:{_DAY},? )?[0-9]{{1,2}}(?:st|nd|rd|th)?[ -]{_MONTH}\b\.?,?(?:[ -][0-9]{{4}})?(?:[ ,]{{1,2}}{_TIME})?"
            rf"|\b(?:{_DAY},? )?{_MONTH} [0-9]{{1,2}}(?:st|nd|rd|th)?(?:,? [0-9]{{4}})?(?:[ ,]{{1,2}}{_TIME})?(?![0-9])"
            rf"|(?<![0-9:]){_TIME}(?![0-9:])"
            r"|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"
        ),
    ),
    (
        "timestamp",
        32,
        re.compile(
            r"(?<![0-9A-Za-z.])1[5-9][0-9]{8}(?:[0-9]{3}|[0-9]{6}|[0-9]{9})?(?:\.[0-9]{1,9})?(?![0-9A-Za-z])"
        ),
    ),
    ("nonce", 128, re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{16,128}(?![0-9A-Za-z])")),
    ("nonce", 130, re.compile(r"(?<![0-9A-Za-z+/_-])[0-9A-Za-z+/_-]{20,128}={0,2}(?![0-9A-Za-z+/_=-])")),
)
"""Each with how many characters it has at most: no more than so many to either side of the place are looked at."""


_FARTHEST = 64
_HINT = re.compile(r"[0-9]|day|x-anthropic")
"""Without any of these nearby there is nothing volatile."""


@dataclass(frozen=True, slots=True)
class Volatile:
    """Characters `start` to `end` of the text."""

    kind: VolatileKind
    start: int
    end: int


def volatile_at(text: str, other: str, char: int) -> Volatile | None:
    """What stands in `text` where it parts from `other`, at `char`, if that is something volatile that `other` has too.

    Both are the same before `char`.
    """
    if _HINT.search(text, max(char - _FARTHEST, 0), char + _FARTHEST) is None:
        return None
    for kind, reach, pattern in _PATTERNS:
        here = _covering(pattern, reach, text, char)
        there = None if here is None else _covering(pattern, reach, other, char)
        if here is None or there is None or here.start() != there.start() or here[0] == there[0]:
            continue
        if kind != "nonce" or (_drawn(here[0]) and _drawn(there[0])):
            return Volatile(kind, here.start(), here.end())
    return None


def _covering(pattern: re.Pattern[str], reach: int, text: str, char: int) -> re.Match[str] | None:
    """The match that holds the character, or ends before it: the other text may go on there."""
    for match in pattern.finditer(text, max(char - reach, 0), char + reach):
        if match.start() <= char <= match.end():
            return match
        if match.start() > char:
            return None
    return None


def _drawn(text: str) -> bool:
    """Whether it looks drawn by lot rather than written: digits among the letters, and many different characters."""
    digits = sum(char.isdigit() for char in text)
    return digits >= 2 and len(text) - digits >= 2 and len(set(text)) >= 8

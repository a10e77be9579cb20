"""Whether a finished text is JSON that satisfies a schema, told by jsonschema-rs: a second opinion to what decoding enforced.

Nothing is ever fetched: a reference that leads out of the schema does not compile. Time is bounded, since nothing can stop
the validator and it lets no other thread run: patterns that backtrack give up after some steps and count as not matched;
and what `check_cost` foresees to take too long is not begun.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any, NoReturn

import jsonschema_rs

from .check_cost import most_looks
from .dialect import adapted
from .errors import BadSchema, TooComplex

MAX_PROBLEMS = 16
"""Problems told of one text; the first say enough."""
MAX_MESSAGE = 300
BACKTRACK_LIMIT = 10_000
"""Steps one pattern may take on one string: about a tenth of a millisecond."""
PATTERN_BYTES = 1 << 20
"""Memory one compiled pattern may take."""

MAX_LOOKS = 1_000_000
"""Places times looks at each, while a verdict is found: some 50 ms at the very most."""
MAX_LOOKS_TOLD = 2_000
"""The same while reasons are gathered, each of which takes some 20 µs."""
KNOWN_LEVELS = 8

Schema = dict[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Problem:
    """`path` is the JSON pointer (RFC 6901) of the value at fault in the text, `keyword` the keyword it breaks."""

    path: str
    keyword: str
    message: str


TOO_DEEP = Problem("", "", "nested too deeply to be checked")
UNTOLD = Problem("", "", "does not satisfy the schema, which is too intricate for the reasons to be listed")


class Validator:
    """A schema, compiled once. Safe to use from several threads.

    Its draft is the one `$schema` names, else 2020-12; words of other dialects are understood (see `dialect`). Raises
    BadSchema for what is no schema, TooComplex for one nested hundreds deep.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = _adapted(schema)
        self._validator = _compiled(self._schema)
        self._looks = most_looks(self._schema, KNOWN_LEVELS)

    def problems(self, text: str) -> tuple[Problem, ...]:
        """What is wrong with the text; empty if it is valid. Takes milliseconds for long ones.

        Raises TooComplex if it could take too long to find out.
        """
        try:
            value = _read(text)
        except ValueError as error:
            return (Problem("", "", f"not JSON: {error}"[:MAX_MESSAGE]),)
        except RecursionError:
            return (TOO_DEEP,)
        return self.faults(value)

    def faults(self, value: object) -> tuple[Problem, ...]:
        """The same for a value that has been read already."""
        looks = self._foreseen(value)
        if looks > MAX_LOOKS:
            raise TooComplex("the schema is too intricate for a value of this depth to be checked")
        try:
            if self._validator.is_valid(value):
                return ()
            if looks > MAX_LOOKS_TOLD:
                return (UNTOLD,)
            return tuple(
                _problem(error) for error in islice(self._validator.iter_errors(value), MAX_PROBLEMS)
            )
        except ValueError:
            return (TOO_DEEP,)

    def _foreseen(self, value: object) -> int:
        places, levels = _extent(value)
        if levels >= len(self._looks):
            self._looks = most_looks(self._schema, 2 * levels)
        return places * self._looks[levels]


def _extent(value: object) -> tuple[int, int]:
    """How many places a value has, its root among them, and how many levels below that."""
    places = levels = 0
    row = [value]
    while True:
        places += len(row)
        row = [part for outer in row for part in _parts(outer)]
        if not row:
            return places, levels
        levels += 1


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _adapted(schema: Schema) -> Schema:
    try:
        return adapted(schema)
    except RecursionError:
        raise TooComplex("the schema is nested too deeply") from None


def _compiled(schema: Schema) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(schema, **_OPTIONS)
    except jsonschema_rs.ValidationError as error:
        # the instance of such an error is the schema: its path leads to what is wrong in it
        raise BadSchema(error.message[:MAX_MESSAGE], path=pointer(error.instance_path)) from None
    except ValueError:
        raise TooComplex("the schema is nested too deeply") from None


_OPTIONS: dict[str, Any] = {
    "validate_formats": True,
    "offline": True,
    "pattern_options": jsonschema_rs.FancyRegexOptions(
        backtrack_limit=BACKTRACK_LIMIT, size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_BYTES
    ),
}


def _problem(error: jsonschema_rs.ValidationError) -> Problem:
    path = error.schema_path
    keyword = next((str(step) for step in reversed(path) if isinstance(step, str)), "")
    return Problem(pointer(error.instance_path), keyword, error.message[:MAX_MESSAGE])


def pointer(steps: Iterable[str | int]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def _read(text: str) -> object:
    """The value of a JSON text, numbers of any size included. Raises ValueError, RecursionError."""
    if "\\ud" in text or "\\uD" in text:
        text = _SURROGATES.sub(_whole, text)
    return json.loads(text, parse_constant=_refuse, parse_int=_integer, parse_float=_decimal)


_SURROGATES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_HALF = 6
_HIGHEST = 999_999
"""An exponent that stands for every higher one."""


def _whole(found: re.Match[str]) -> str:
    """Half a surrogate pair is JSON, but no Unicode, and the validator reads Unicode: another character of the same length."""
    return "\\ufffd" if len(found[0]) == _HALF else found[0]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _integer(digits: str) -> int | Decimal:
    """Python turns only so many digits into an int, since that takes quadratic time."""
    return int(digits) if len(digits) < sys.int_info.default_max_str_digits else Decimal(digits)


def _decimal(digits: str) -> float | Decimal:
    number = float(digits)
    if math.isfinite(number):
        return number
    try:
        return Decimal(digits)
    except InvalidOperation:
        return Decimal(1).scaleb(_HIGHEST).copy_sign(Decimal(number))

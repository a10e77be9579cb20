"""JSON text into values and back. Stricter than the standard library's parser: one text, one meaning.

Values are what `json` gives: dict (in the order of the text), list, str, int, float, bool, None.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from .errors import BadSchema

DEEPEST = 128
_MOST_DIGITS = 1_000
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def parse(text: str | bytes, *, deepest: int = DEEPEST) -> Any:
    """The value of a JSON text (RFC 8259), for `audit` and the like.

    Raises BadSchema for what is no JSON, for keys that come twice, for lone surrogates, for numbers that are not finite
    or endless, and for nesting deeper than `deepest`.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            raise BadSchema("The JSON text is not UTF-8.") from None
    _check_depth(text, deepest)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadSchema(f"Not JSON: {error.msg} at character {error.pos}.") from None
    _check_text(text, value)
    return value


def dump(value: Any) -> str:
    """Compact text in the value's own key order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """One text for equal JSON values: keys sorted, 1.0 written as 1."""
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _check_depth(text: str, deepest: int) -> None:
    depth = 0
    for token in _BRACKETS.finditer(text):
        bracket = token[0]
        if bracket in "[{":
            depth += 1
            if depth > deepest:
                raise BadSchema(f"The JSON text is nested more than {deepest} deep.")
        elif bracket in "]}":
            depth -= 1


def _check_text(text: str, value: Any) -> None:
    """Lone surrogates come in by escapes, so only texts with some need a look."""
    if "\\ud" not in text and "\\uD" not in text:
        return
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            if any(0xD800 <= ord(char) <= 0xDFFF for char in each):
                raise BadSchema("The JSON text has half of a surrogate pair in it.")
        elif isinstance(each, list):
            waiting.extend(each)
        elif isinstance(each, dict):
            waiting.extend(each)
            waiting.extend(each.values())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadSchema(f"The key {key[:60]!r} comes twice in one object.")
            seen.add(key)
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise BadSchema(f"A number has more than {_MOST_DIGITS} digits.")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BadSchema(f"{digits[:60]} is beyond the numbers that JSON can pass on safely.")
    return value


def _constant(name: str) -> NoReturn:
    raise BadSchema(f"{name} is not JSON.")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant
)

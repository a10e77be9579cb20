"""Strings that stand bare between two marks, without quotes and escapes, and values that stand in the same place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from grammar.spec import Choice, FreeText, Grammar, Regex

from ..shapes import Shape, Slot
from ..source import SPECIAL, Marks, Out, Reading, Source
from .schemas import Branch, kind_of
from .style import Gap

_WHOLE: Final = re.compile(r"\A\^(?P<inside>.*)\$\Z", re.DOTALL)
_TOKENS: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?[=!<]|[()|^$]", re.DOTALL)
_WIDE: Final = re.compile(r"(?<!\\)(?:\\\\)*\.|\[\^|\\[DSWPxu]|\(\?(?!:)")
"""What may match characters that are not written."""

_SPECIAL: Final = re.compile(f"[{SPECIAL}]")
_BLANKS: Final = " \t\r\n"


def ending(shape: Shape) -> Shape:
    """The part of what follows a string that a string is told apart by: up to the first mark, all if there is none."""
    pieces: list[Any] = []
    for piece in shape:
        pieces.append(piece)
        if not isinstance(piece, str):
            break
    return tuple(pieces)


def spelled(end: Shape, marks: Marks | None = None) -> str:
    """The same as one text, as the vocabulary has it or, without `marks`, in letters."""
    assert Slot.KEY not in end, "a string ends with the same text whatever its name"
    parts = [piece if isinstance(piece, str) else piece.text for piece in end if not isinstance(piece, Slot)]
    if marks is not None:
        parts = [marks.spelled(part) for part in parts]
    return "".join(parts).strip(_BLANKS)


def write_string(branch: Branch, end: Shape) -> tuple[Grammar | None, tuple[Gap, ...]]:
    """Strings of the schema, bare, in which `end` does not occur. None if there are none."""
    schema, stop = branch.schema, spelled(end)
    if not branch.known:
        return FreeText((stop,)), (
            Gap(branch.path, "", "strings stand bare, and the schema is no simple one"),
        )
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        fitting = tuple(
            text for text in values if isinstance(text, str) and _fits(text, schema) and stop not in text
        )
        return (Choice(fitting), _unchecked(branch, "pattern", "format")) if fitting else (None, ())
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if "pattern" in schema:
        bound = _unchecked(branch, "format", *(("minLength",) if least else ()), "maxLength")
        node, exact = _matching(schema["pattern"], stop)
        unsure = () if exact else _unchecked(branch, "pattern")
        return node, (*bound, *unsure)
    if least or most is not None:
        # a text shorter than its end cannot hold it; a longer one does without its first character
        character = "(?s:.)" if most is not None and most < len(stop) else f"[^{re.escape(stop[0])}]"
        return Regex(f"{character}{{{least},{'' if most is None else most}}}"), _unchecked(branch, "format")
    return FreeText((stop,)), _unchecked(branch, "format")


def _fits(text: str, schema: Mapping[str, Any]) -> bool:
    most = schema.get("maxLength")
    return len(text) >= schema.get("minLength", 0) and (most is None or len(text) <= most)


def _unchecked(branch: Branch, *keywords: str) -> tuple[Gap, ...]:
    return tuple(
        Gap(f"{branch.path}/{keyword}", keyword, "strings stand bare in this model's call format")
        for keyword in keywords
        if keyword in branch.schema
    )


def _matching(pattern: str, stop: str) -> tuple[Grammar, bool]:
    """Texts that a pattern is found in, and whether it is certain that none holds the end."""
    whole = _WHOLE.match(pattern)
    if whole is None or _anchored(whole["inside"]):
        return FreeText((stop,)), False
    inside = whole["inside"]
    return Regex(inside), stop[0] not in inside and not _WIDE.search(inside)


def _anchored(inside: str) -> bool:
    """Whether there are anchors in it, or alternatives that the anchors around it do not hold together."""
    depth = 0
    for token in _TOKENS.finditer(inside):
        match token[0]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "|" if depth == 0:
                return True
            case "^" | "$" | "\\b" | "\\B" | "(?=" | "(?!" | "(?<":
                return True
    return False


# -- reading -----------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """Text inside the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def quoted(text: str) -> str:
    """Text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def read_string(source: Source, end: str, out: Out, *, padded: bool) -> Reading[bool]:
    """A string up to its end, which is left, as a JSON string. `padded`: a line break before the end belongs to it."""
    out('"')
    while True:
        count, found = _bare(source, end, padded=padded)
        if count:
            out(escaped(source.take(count)))
        if found:
            if padded and source.text.startswith("\n", source.at):
                source.take(1)
            out('"')
            return True
        if source.ended or _SPECIAL.match(source.text, source.at):
            return False
        yield


def _bare(source: Source, end: str, *, padded: bool) -> tuple[int, bool]:
    """How many characters are certainly the string's, and whether its end follows them."""
    text, start = source.text, source.at
    at = text.find(end, start)
    limit = at
    if at < 0:
        limit = len(text) if source.ended else _back(text, start, end)
    special = _SPECIAL.search(text, start, limit)
    if special is not None:
        return special.start() - start, False
    if padded and limit > start and text[limit - 1] == "\n" and (at >= 0 or not source.ended):
        limit -= 1
    return limit - start, at >= 0


def _back(text: str, start: int, end: str) -> int:
    """Where the longest end of the text begins that may be the beginning of `end`."""
    for position in range(max(start, len(text) - len(end) + 1), len(text)):
        if end.startswith(text[position:]):
            return position
    return len(text)


def read_until(source: Source, end: str) -> Reading[tuple[str, bool]]:
    """Everything up to an end, which is left, and whether it came."""
    pieces: list[str] = []
    while True:
        at = source.text.find(end, source.at)
        if at >= 0:
            pieces.append(source.take(at - source.at))
            return "".join(pieces), True
        if source.ended:
            return "".join([*pieces, source.rest()]), False
        pieces.append(source.take(_back(source.text, source.at, end) - source.at))
        yield


def is_json(text: str, kinds: frozenset[str]) -> bool:
    """Whether a text is JSON of one of these kinds."""
    try:
        return kind_of(json.loads(text, parse_constant=_refuse)) in kinds
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    raise ValueError(constant)

"""Strings that stand bare between two marks, without quotes and escapes, and values that stand in the same place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grammar.spec import Choice, FreeText, Grammar, Lark, Regex

from ..shapes import Shape, Slot, joined, written
from ..source import SPECIAL, Marks, Out, Reading, Source
from .schemas import Branch, kind_of
from .style import Gap

_WHOLE: Final = re.compile(r"\A\^(?P<inside>.*)\$\Z", re.DOTALL)
_TOKENS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[=!<]|.", re.DOTALL)
_CLASSES: Final = frozenset("dDsSwW")
_CODES: Final = frozenset("pPxuU0")

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


@dataclass(frozen=True, slots=True)
class Bare:
    """Strings and what is behind them; `gaps` as in `Written`."""

    node: Grammar
    gaps: tuple[Gap, ...] = ()


def write_string(branch: Branch, close: Shape) -> Bare | None:
    """Strings of the schema and what follows them, whose ending does not occur in them. None if there are none."""
    schema, stop = branch.schema, spelled(ending(close))
    free = joined(FreeText((stop,)), written(_without_break(close)))
    if not branch.known:
        return Bare(free, (Gap(branch.path, "", "strings stand bare, and the schema is no simple one"),))
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        fitting = tuple(
            text for text in values if isinstance(text, str) and _fits(text, schema) and stop not in text
        )
        if not fitting:
            return None
        return Bare(joined(Choice(fitting), written(close)), _unchecked(branch, "pattern", "format"))
    pattern, bounds = schema.get("pattern"), _bounds(schema)
    whole = None if pattern is None else _inside(pattern)
    if pattern is not None and whole is None:
        return Bare(free, _unchecked(branch, "pattern", "format", "minLength", "maxLength"))
    if whole is None and bounds is None:
        return Bare(free, _unchecked(branch, "format"))
    if whole is not None and bounds is None and not _may_match(whole, stop[0]):
        node = joined(Regex(whole), written(close))
    else:
        node = _apart([each for each in (whole, bounds) if each is not None], stop, close)
    return Bare(node, _unchecked(branch, "format"))


def _without_break(shape: Shape) -> Shape:
    """The shape without a line break before it: free text holds that itself."""
    first = shape[0]
    return (first.removeprefix("\n"), *shape[1:]) if isinstance(first, str) else shape


def _apart(patterns: list[str], stop: str, close: Shape) -> Grammar:
    """Texts of all the patterns in which `stop` does not occur, and what follows them. That is in one terminal with them
    as far as it is text: a terminal by itself would go on as long as it could."""
    text = next((i for i, piece in enumerate(close) if not isinstance(piece, str)), len(close))
    behind = "".join(piece for piece in close[:text] if isinstance(piece, str))
    body = " & ".join(
        [f"/{_in_slashes(one)}/" for one in patterns] + [f"~(/(?s:.*)/ {_literal(stop)} /(?s:.*)/)"]
    )
    return joined(
        Lark(f"start: TEXT\nTEXT: ({body}) {_literal(behind) if behind else ''}\n"), written(close[text:])
    )


def _literal(text: str) -> str:
    return json.dumps(text)


def _in_slashes(pattern: str) -> str:
    """A pattern as Lark has it between slashes."""
    return re.sub(r"\\.|/|\n", lambda m: {"/": r"\/", "\n": r"\n"}.get(m[0], m[0]), pattern, flags=re.DOTALL)


def _bounds(schema: Mapping[str, Any]) -> str | None:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not least and most is None:
        return None
    return f"(?s:.{{{least},{'' if most is None else most}}})"


def _fits(text: str, schema: Mapping[str, Any]) -> bool:
    most = schema.get("maxLength")
    return len(text) >= schema.get("minLength", 0) and (most is None or len(text) <= most)


def _unchecked(branch: Branch, *keywords: str) -> tuple[Gap, ...]:
    return tuple(
        Gap(f"{branch.path}/{keyword}", keyword, "strings stand bare in this model's call format")
        for keyword in keywords
        if keyword in branch.schema
    )


def _inside(pattern: str) -> str | None:
    """The pattern without the anchors around it; None if it has none, or others, or lookarounds, or alternatives that
    the anchors do not hold together."""
    whole = _WHOLE.match(pattern)
    if whole is None:
        return None
    depth = 0
    for token in _TOKENS.finditer(whole["inside"]):
        match token[0]:
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "|" if depth == 0:
                return None
            case "^" | "$" | "\\b" | "\\B" | "(?=" | "(?!" | "(?<":
                return None
    return whole["inside"]


def _may_match(pattern: str, character: str) -> bool:
    """Whether some text of the pattern may hold the character. Says yes where that is not easy to tell."""
    for token in _TOKENS.finditer(pattern):
        text = token[0]
        if text[0] in "([" or (text[0] == "\\" and text[1:] in _CLASSES):
            if text != "(" and re.fullmatch(text, character):
                return True
        elif text == "." or text.removeprefix("\\") == character or text[1:2] in _CODES:
            return True
    return "(?" in pattern.replace("(?:", "")


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

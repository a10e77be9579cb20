"""Arguments as Python writes them in a call: `city="Oslo", days=3, exact=True`.

Strings are written with double quotes and JSON's escapes, which Python reads as the same; lists and dictionaries as JSON
text. Other ways that Python has for them are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from grammar.spec import Choice, Either, Grammar, Literal, Regex, Repeat

from ..shapes import Shape, joined
from ..source import SPECIAL, Marks, Out, Reading, Source, blanks, run, upto
from .bare import is_json, quoted
from .schemas import KINDS, Branch, Field, Root, narrowed
from .separated import separated
from .style import Inexpressible, ToolShape, Written

_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_SPELLED: Final = {True: "True", False: "False", None: "None"}
_KEY: Final = re.compile(r"[^\W\d][\w.-]*\Z")
_SCALAR: Final = re.compile(rf"[^\s,:()\[\]{{}}'\"{SPECIAL}]{{,512}}")
_LONGEST: Final = 512
_DEEPEST: Final = 100
_ESCAPES: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "0": "\0",
    "\n": "",
    "a": "\a",
    "v": "\v",
}
_CODES: Final = {"x": 2, "u": 4, "U": 8}
_CODE: Final = re.compile(r"\\[xuU]([0-9a-fA-F]+)")
_INSIDE: Final = re.compile(rf"[\"'\\{SPECIAL}]")


@dataclass(frozen=True, slots=True)
class Pythonic:
    @property
    def shapes(self) -> tuple[Shape, ...]:
        return ()

    @property
    def opening(self) -> str:
        return ""

    def write(self, tool: ToolShape) -> Written:
        root = Root.of(tool)
        some = root.fields()
        parts: list[tuple[Grammar, bool]] = []
        for field in some:
            node = self._argument(root, field)
            if node is not None:
                parts.append((node, field.required))
        if not some and root.others() is not False:
            value = _value(root, Field("", root.others(), "", required=False))
            named = joined(Regex("[A-Za-z_][A-Za-z0-9_]{0,63}"), Literal("="), value)
            return Written(Repeat(named, between=", "), root.gaps())
        return Written(separated(parts, ", "), root.gaps())

    def _argument(self, root: Root, field: Field) -> Grammar | None:
        """None for an optional one that cannot be written."""
        try:
            if not _KEY.match(field.name):
                raise Inexpressible(
                    f"{field.name!r} cannot name an argument in a Python call", path=field.path
                )
            return joined(Literal(f"{field.name}="), _value(root, field))
        except Inexpressible:
            if field.required:
                raise
            return None

    def read(self, source: Source, tool: ToolShape, marks: Marks, out: Out) -> Reading[bool]:
        out("{")
        comma = ""
        while True:
            over = yield from _end(source, ")", again=bool(comma), take=False)
            if over is not None:
                if over:
                    out("}")
                return over
            end = yield from upto(source, "=", 0, _LONGEST)
            name = source.text[source.at : source.at + max(0, end)].strip()
            if not _KEY.match(name):
                return False
            source.take(end + 1)
            out(f"{comma}{quoted(name)}: ")
            comma = ", "
            if not (yield from _read(source, out, 0)):
                return False


def _value(root: Root, field: Field) -> Grammar:
    options = [form for branch in root.branches(field.schema, field.path) for form in _forms(root, branch)]
    if not options:
        raise Inexpressible("there is no value for it", path=field.path)
    return options[0] if len(options) == 1 else Either(tuple(options))


def _forms(root: Root, branch: Branch) -> Iterator[Grammar]:
    """JSON text, but True, False and None."""
    words = branch.kinds & {"boolean", "null"}
    if words:
        own = branch.schema
        values = [own["const"]] if "const" in own else own.get("enum")
        spelled = tuple(
            text
            for value, text in _SPELLED.items()
            if ("null" if value is None else "boolean") in words
            and (values is None or any(value is one for one in values))
        )
        if spelled:
            yield Choice(spelled)
    rest = branch.kinds - words
    if rest:
        yield root.leaf(branch.schema if not words else narrowed(branch.schema, rest))


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(source: Source, out: Out, depth: int) -> Reading[bool]:
    source.take((yield from blanks(source)))
    first = source.text[source.at : source.at + 1]
    if first in ("'", '"'):
        return (yield from _string(source, out))
    if first in ("[", "{"):
        return depth < _DEEPEST and (yield from _items(source, out, depth))
    end = yield from run(source, _SCALAR, 0)
    text = source.take(end)
    out(_WORDS.get(text, text))
    return text in _WORDS or is_json(text, frozenset(KINDS))


def _items(source: Source, out: Out, depth: int) -> Reading[bool]:
    opening = source.take(1)
    closing = "]" if opening == "[" else "}"
    out(opening)
    comma = ""
    while True:
        end = yield from _end(source, closing, again=bool(comma))
        if end is not None:
            if end:
                out(closing)
            return end
        out(comma)
        comma = ", "
        if not (yield from _read(source, out, depth + 1)):
            return False
        if opening == "{":
            offset = yield from blanks(source)
            if not source.text.startswith(":", source.at + offset):
                return False
            source.take(offset + 1)
            out(": ")
            if not (yield from _read(source, out, depth + 1)):
                return False


def _end(source: Source, closing: str, *, again: bool, take: bool = True) -> Reading[bool | None]:
    """None if another item follows; there may be a comma behind the last one. Otherwise whether the end is a right one."""
    offset = yield from blanks(source)
    comma = again and source.text.startswith(",", source.at + offset)
    if comma:
        offset = yield from blanks(source, offset + 1)
    if source.text.startswith(closing, source.at + offset):
        source.take(offset + len(closing) * take)
        return True
    if again and not comma:
        return False
    source.take(offset)
    return None


def _string(source: Source, out: Out) -> Reading[bool]:
    """A string of Python, which is one of JSON if it has double quotes and only escapes that both know."""
    quote = source.take(1)
    out('"')
    while True:
        match = _INSIDE.search(source.text, source.at)
        end = len(source.text) if match is None else match.start()
        if end > source.at:
            out(quoted(source.take(end - source.at))[1:-1])
        if match is None:
            if source.ended:
                return False
            yield
        elif match[0] == quote:
            source.take(1)
            out('"')
            return True
        elif match[0] in "\"'":
            out(quoted(source.take(1))[1:-1])
        elif match[0] != "\\" or not (yield from _escape(source, out)):
            return False


def _escape(source: Source, out: Out) -> Reading[bool]:
    while len(source.text) - source.at < 2:
        if source.ended:
            return False
        yield
    letter = source.text[source.at + 1]
    digits = _CODES.get(letter, 0)
    while len(source.text) - source.at < 2 + digits:
        if source.ended:
            return False
        yield
    text = source.take(2 + digits)
    code = _CODE.fullmatch(text) if digits else None
    value = 0 if code is None else int(code[1], 16)
    if digits and (code is None or value > 0x10FFFF):
        return False
    if letter == "u":
        out(text)  # JSON's own, halves of pairs too
    elif digits:
        out(quoted(chr(value))[1:-1])
    elif letter in _ESCAPES:
        out(quoted(_ESCAPES[letter])[1:-1])
    elif letter in "\\/\"'":
        out(quoted(letter)[1:-1])
    else:
        out(quoted(text)[1:-1])
    return True

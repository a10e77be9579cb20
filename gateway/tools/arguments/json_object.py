"""Arguments as a JSON object. They pass as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..shapes import Shape
from ..source import SPECIAL, Marks, Out, Reading, Source, blanks
from .style import ToolShape, Written

_OUTSIDE = re.compile(rf'[{{}}\[\]"{SPECIAL}]')
_INSIDE = re.compile(rf'["\\{SPECIAL}]')
_CLOSES = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class JsonObject:
    @property
    def shapes(self) -> tuple[Shape, ...]:
        return ()

    @property
    def opening(self) -> str:
        return "{"

    def write(self, tool: ToolShape) -> Written:
        return Written(tool.arguments)

    def read(self, source: Source, tool: ToolShape, marks: Marks, out: Out) -> Reading[bool]:
        source.take((yield from blanks(source)))
        return (yield from read_nested(source, out))


def read_nested(source: Source, out: Out) -> Reading[bool]:
    """An object or an array (or a string) of JSON text, up to its end. Looks at strings and brackets only."""
    open_brackets: list[str] = []
    inside = escaped = False
    position = source.at
    while True:
        if escaped and position < len(source.text):
            escaped = False
            position += 1
        match = (_INSIDE if inside else _OUTSIDE).search(source.text, position)
        if match is None:
            if source.at < len(source.text):
                out(source.rest())
            if source.ended:
                return False
            yield
            position = source.at
            continue
        found, position = match[0], match.end()
        if found == "\\":
            escaped = True
        elif found == '"':
            inside = not inside
        elif found in _CLOSES:
            open_brackets.append(_CLOSES[found])
        elif not open_brackets or open_brackets.pop() != found:
            if match.start() > source.at:
                out(source.take(match.start() - source.at))
            return False
        if not inside and not open_brackets:
            out(source.take(position - source.at))
            return True

"""Tools that take a text. To a model they are functions with one argument, a string.

Except those whose text has a grammar of its own in Lark: it is written as it is, to the end of the reply.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, Final

from grammar.spec import FreeText, JsonSchema, Regex

from ..source import Out
from .style import Inexpressible, ToolShape

INPUT: Final = "input"


def as_function(tool: ToolShape) -> ToolShape:
    """A custom tool as the function that it is to a model; a function as it is."""
    if tool.custom is None:
        return tool
    text: dict[str, Any] = {"type": "string"}
    match tool.custom:
        case FreeText(without=()):
            pass
        case Regex(pattern=pattern):
            text["pattern"] = f"^(?:{pattern})$"
        case _:
            raise Inexpressible("the input of a custom tool is free text, a pattern or a Lark grammar")
    schema = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return replace(tool, schema=schema, arguments=JsonSchema(json.dumps(schema, ensure_ascii=False)))


class Unwrap:
    """Takes the arguments of such a function as JSON text in pieces, and puts the text itself out."""

    __slots__ = ("_begun", "_done", "_held", "_out")

    def __init__(self, out: Out) -> None:
        self._out = out
        self._held = ""
        self._begun = self._done = False

    def __call__(self, piece: str) -> None:
        if self._done:
            return
        text = self._held + piece
        if not self._begun:
            begin = _BEGIN.match(text)
            if begin is None:
                self._held = text
                return
            text = text[begin.end() :]
            self._begun = True
        end = _whole(text)
        self._held = text[end:]
        if self._held.startswith('"'):
            self._done = True
            self._held = ""
        if end:
            self._out(_unescaped(text[:end]))


_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_STRING = re.compile(
    r'(?:[^"\\]+|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[0-9a-fA-F]{4}|(?=\\[^u]|[^\\]))|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*'
)


def _whole(text: str) -> int:
    """How much of it is whole characters, up to the end of the string. The halves of a surrogate pair stay together."""
    match = _STRING.match(text)
    return 0 if match is None else match.end()


def _unescaped(text: str) -> str:
    try:
        plain: str = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text  # no JSON; what was written is the best that can be said
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

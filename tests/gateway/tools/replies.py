"""Replies for the tests of call formats: feeding them in pieces, and what comes out as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.tools.arguments.style import ToolShape
from gateway.tools.family import Family
from gateway.tools.parser import (
    Arguments,
    CallBegins,
    CallEnds,
    Content,
    Part,
    Reasoning,
    ReplyParser,
    Special,
)
from grammar.spec import JsonSchema


def tool(name: str, properties: dict[str, Any], required: Sequence[str] | None = None) -> ToolShape:
    """A function; everything is required unless said otherwise, nothing else allowed."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }
    return ToolShape(name, JsonSchema(json.dumps(schema, ensure_ascii=False)), schema)


SET_TEMP = tool("set_temp", {"unit": {"enum": ["C", "F"]}, "on": {"type": "boolean"}})


@dataclass
class Call:
    name: str
    arguments: str = ""
    whole: bool = False
    id: str | None = None
    kind: str = "function"

    @property
    def value(self) -> Any:
        return json.loads(self.arguments)


@dataclass
class Reply:
    """What a client would put together from the parts."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


def put_together(parts: Iterable[Part]) -> Reply:
    """Checks on the way that the indices count up and that parts of calls come between their beginning and their end."""
    reply = Reply()
    for part in parts:
        match part:
            case Content(text):
                assert text
                reply.content += text
            case Reasoning(text):
                assert text
                reply.reasoning += text
            case CallBegins(index, name, id_, kind):
                assert index == len(reply.calls)
                reply.calls.append(Call(name, id=id_, kind=kind))
            case Arguments(index, text):
                assert text
                assert index == len(reply.calls) - 1
                assert not reply.calls[index].whole
                reply.calls[index].arguments += text
            case CallEnds(index):
                assert index == len(reply.calls) - 1
                assert not reply.calls[index].whole
                reply.calls[index].whole = True
    return reply


Mode = Literal["off", "open", "optional"]


def read(
    family: Family,
    tools: Sequence[ToolShape],
    pieces: Iterable[str | Special],
    *,
    specials: Collection[str] = (),
    reasoning: Mode = "off",
    stopped: bool = True,
    must: bool = False,
) -> Reply:
    parser = ReplyParser(family, tools, specials=specials, reasoning=reasoning, must=must)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return put_together([*parts, *parser.finish(stopped=stopped)])


def tokens(text: str, specials: Collection[str]) -> list[str | Special]:
    """Text cut at its special tokens."""
    if not specials:
        return [text]
    cut = re.split(f"({'|'.join(map(re.escape, sorted(specials, key=len, reverse=True)))})", text)
    return [Special(piece) if piece in specials else piece for piece in cut if piece]


def characters(pieces: Iterable[str | Special]) -> list[str | Special]:
    return [c for piece in pieces for c in (piece if isinstance(piece, str) else [piece])]


def read_all_ways(
    family: Family,
    tools: Sequence[ToolShape],
    text: str,
    *,
    specials: Collection[str] = (),
    reasoning: Mode = "off",
    stopped: bool = True,
    must: bool = False,
) -> Reply:
    """The reply, which is the same read at once, by the character, and cut in two anywhere (in 50 places of long texts)."""
    whole = tokens(text, specials)
    options: dict[str, Any] = {"specials": specials, "reasoning": reasoning, "stopped": stopped, "must": must}
    first = read(family, tools, whole, **options)
    letters = characters(whole)
    assert read(family, tools, letters, **options) == first
    for cut in range(1, len(letters), 1 + len(letters) // 50):
        halves = [*merged(letters[:cut]), *merged(letters[cut:])]
        assert read(family, tools, halves, **options) == first, cut
    return first


def merged(pieces: Iterable[str | Special]) -> list[str | Special]:
    """Neighbouring texts in one."""
    together: list[str | Special] = []
    for piece in pieces:
        if isinstance(piece, str) and together and isinstance(together[-1], str):
            together[-1] += piece
        else:
            together.append(piece)
    return together

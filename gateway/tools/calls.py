"""The calls in a reply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .parser import Arguments, CallBegins, CallEnds, Part


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` (or the input) as far as they came; `whole`: to their end."""

    begin: CallBegins
    arguments: str
    whole: bool


def calls_of(parts: Iterable[Part]) -> list[Call]:
    """In order."""
    begun: list[CallBegins] = []
    texts: list[list[str]] = []
    ended: set[int] = set()
    for part in parts:
        match part:
            case CallBegins():
                begun.append(part)
                texts.append([])
            case Arguments(index, text):
                texts[index].append(text)
            case CallEnds(index):
                ended.add(index)
    return [
        Call(begin, "".join(arguments), begin.index in ended)
        for begin, arguments in zip(begun, texts, strict=True)
    ]

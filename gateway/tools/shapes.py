"""Pieces that call formats are put together from.

A shape is a sequence of pieces. A `str` is text: the blanks in it (spaces, line breaks) are written exactly so, and read
as any number of blanks. A `Marker` is the special token of that text where the vocabulary has one, else the text. A
`Slot` stands for what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from grammar.spec import Concat, Grammar, Literal, Marker


class Slot(Enum):
    """In calls: NAME of the tool, NUMBER (digits that count the call), ARGUMENTS. In arguments: KEY, and TYPE of a value."""

    NAME = "name"
    NUMBER = "number"
    ARGUMENTS = "arguments"
    KEY = "key"
    TYPE = "type"


Shape = tuple[str | Marker | Slot, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before and after something."""

    open: Shape = ()
    close: Shape = ()


BARE = Frame()


def nodes(shape: Shape, values: Mapping[Slot, Grammar] | None = None) -> Iterator[Grammar]:
    """The shape as a grammar writes it, with `values` for its slots."""
    for piece in shape:
        if isinstance(piece, Slot):
            assert values is not None, piece
            yield values[piece]
        else:
            yield Literal(piece) if isinstance(piece, str) else piece


def written(shape: Shape, values: Mapping[Slot, Grammar] | None = None) -> Grammar:
    return joined(*nodes(shape, values))


def filled(shape: Shape, values: Mapping[Slot, str]) -> str:
    """The shape as a text, in letters."""
    return "".join(
        piece if isinstance(piece, str) else values[piece] if isinstance(piece, Slot) else piece.text
        for piece in shape
    )


def joined(*parts: Grammar) -> Grammar:
    """The parts one after the other, in as few nodes as say it."""
    flat: list[Grammar] = []
    for part in parts:
        for node in part.parts if isinstance(part, Concat) else (part,):
            if isinstance(node, Literal) and flat and isinstance(flat[-1], Literal):
                flat[-1] = Literal(flat[-1].text + node.text)
            elif node != Literal(""):
                flat.append(node)
    if not flat:
        return Literal("")
    return flat[0] if len(flat) == 1 else Concat(tuple(flat))


def marker_texts(*shapes: Shape) -> tuple[str, ...]:
    """The texts of all markers, each once."""
    return tuple(dict.fromkeys(p.text for shape in shapes for p in shape if isinstance(p, Marker)))


def bracketed(*shapes: Shape) -> tuple[str, ...]:
    """The same, each with the `<` or `</` that is written apart before it."""
    texts: dict[str, None] = {}
    for shape in shapes:
        for before, piece in zip(("", *shape), shape, strict=False):
            if isinstance(piece, Marker):
                bracket = before if isinstance(before, str) and before in ("<", "</") else ""
                texts[bracket + piece.text] = None
    return tuple(texts)

"""What a style of writing arguments is, and what it is told of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from grammar.errors import BadSchema
from grammar.spec import ANY_OBJECT, Grammar, JsonSchema

from ..shapes import Shape
from ..source import Marks, Out, Reading, Source


@dataclass(frozen=True, slots=True)
class ToolShape:
    """What a call of a tool looks like.

    `arguments`: JSON text of its arguments, the grammar of its contract. `schema`: the client's own schema, which says
    of which type a value is where a format does not. `custom` is the input of a tool that takes a text, None for one
    that takes arguments.
    """

    name: str
    arguments: JsonSchema = ANY_OBJECT
    schema: Mapping[str, Any] = field(default_factory=dict)
    custom: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Something of a schema that a style cannot hold a model to. `path` is the JSON pointer of the keyword."""

    path: str
    keyword: str
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """`node` accepts what fits the schema, and more where there are `gaps`.

    It may accept less: keys come in the order of the schema, and not every way to say a value is offered.
    """

    node: Grammar
    gaps: tuple[Gap, ...] = ()


class Inexpressible(BadSchema):
    """No value that fits the schema can be written in the style."""


class Style(Protocol):
    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Everything fixed that it writes."""
        ...

    @property
    def opening(self) -> str:
        """What arguments begin with in any case."""
        ...

    def write(self, tool: ToolShape) -> Written:
        """The arguments of the tool. Raises Inexpressible."""
        ...

    def read(self, source: Source, tool: ToolShape, marks: Marks, out: Out) -> Reading[bool]:
        """Put the arguments out as JSON text, as they come, and stop behind them.

        False if they are not of this style; what was put out is then the beginning of an object, and the source stands
        at what could not be read.
        """
        ...

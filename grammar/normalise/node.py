"""A schema as nodes with references resolved. Every assertion of a node is an atom that knows the keywords it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Union

from .expression import Expression


@dataclass(eq=False, slots=True)
class Site:
    """A keyword in the client's schema; `path` is its JSON pointer."""

    path: str
    keyword: str


Sites = tuple[Site, ...]


@dataclass(eq=False, slots=True)
class Node:
    """A subschema. Without atoms it accepts everything; `never` accepts nothing."""

    path: str
    atoms: list[Atom] = field(default_factory=list)
    never: bool = False


@dataclass(eq=False, slots=True)
class TypeIs:
    """`types` out of the six JSON types; of numbers only integers if `integers`."""

    sites: Sites
    types: frozenset[str]
    integers: bool = False


@dataclass(eq=False, slots=True)
class ValueIs:
    """const or enum."""

    sites: Sites
    values: tuple[Any, ...]


@dataclass(eq=False, slots=True)
class Range:
    sites: Sites
    low: Fraction | None = None
    high: Fraction | None = None
    open: bool = False  # the bound itself is out


@dataclass(eq=False, slots=True)
class Multiple:
    sites: Sites
    step: Fraction


@dataclass(eq=False, slots=True)
class Length:
    """Of strings, in code points."""

    sites: Sites
    low: int = 0
    high: int | None = None


@dataclass(eq=False, slots=True)
class Matches:
    """pattern or format. `expression` is None if it is beyond us; `reason` says why."""

    sites: Sites
    expression: Expression | None
    reason: str = ""


@dataclass(eq=False, slots=True)
class Items:
    sites: Sites
    prefix: tuple[Node, ...]
    rest: Node | None


@dataclass(eq=False, slots=True)
class ItemCount:
    sites: Sites
    low: int = 0
    high: int | None = None


@dataclass(eq=False, slots=True)
class Contains:
    sites: Sites
    node: Node
    low: int
    high: int | None


@dataclass(eq=False, slots=True)
class Unique:
    sites: Sites


@dataclass(eq=False, slots=True)
class Fields:
    """properties, patternProperties, additionalProperties of one schema object. A pattern of None is beyond us."""

    sites: Sites
    named: dict[str, Node]
    patterns: tuple[tuple[Expression | None, Node], ...]
    rest: Node | None


@dataclass(eq=False, slots=True)
class Needs:
    """required"""

    sites: Sites
    names: tuple[str, ...]


@dataclass(eq=False, slots=True)
class FieldCount:
    sites: Sites
    low: int = 0
    high: int | None = None


@dataclass(eq=False, slots=True)
class Names:
    """propertyNames"""

    sites: Sites
    node: Node


@dataclass(eq=False, slots=True)
class DependentNeeds:
    """dependentRequired: whoever has the key needs the names."""

    sites: Sites
    needs: dict[str, tuple[str, ...]]


@dataclass(eq=False, slots=True)
class DependentNodes:
    """dependentSchemas: whoever has the key satisfies the node."""

    sites: Sites
    nodes: dict[str, Node]


@dataclass(eq=False, slots=True)
class All:
    """allOf or $ref."""

    sites: Sites
    nodes: tuple[Node, ...]


@dataclass(eq=False, slots=True)
class Either:
    """anyOf"""

    sites: Sites
    nodes: tuple[Node, ...]


@dataclass(eq=False, slots=True)
class One:
    """oneOf"""

    sites: Sites
    nodes: tuple[Node, ...]


@dataclass(eq=False, slots=True)
class No:
    """not"""

    sites: Sites
    node: Node


@dataclass(eq=False, slots=True)
class If:
    sites: Sites
    condition: Node
    then: Node | None
    otherwise: Node | None


@dataclass(eq=False, slots=True)
class UnevaluatedFields:
    """unevaluatedProperties; `owner` is the schema object it stands in."""

    sites: Sites
    node: Node
    owner: Node


@dataclass(eq=False, slots=True)
class UnevaluatedItems:
    sites: Sites
    node: Node
    owner: Node


@dataclass(eq=False, slots=True)
class Beyond:
    """An assertion that cannot be expressed at all; `reason` says why."""

    sites: Sites
    reason: str


Atom = Union[  # noqa: UP007 - recursive
    TypeIs,
    ValueIs,
    Range,
    Multiple,
    Length,
    Matches,
    Items,
    ItemCount,
    Contains,
    Unique,
    Fields,
    Needs,
    FieldCount,
    Names,
    DependentNeeds,
    DependentNodes,
    All,
    Either,
    One,
    No,
    If,
    UnevaluatedFields,
    UnevaluatedItems,
    Beyond,
]

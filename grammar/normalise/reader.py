"""Reads a client's schema into nodes and says what is wrong with it.

Drafts 4 to 2020-12 and OpenAPI's `nullable`. Every subschema that can be reached is checked; definitions that nothing
refers to are not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ..errors import BadSchema, TooComplex
from . import formats, locations, node
from .expression import Expression
from .locations import TYPES, pointer
from .node import Node, Site
from .parse import BadPattern, NotRegular
from .references import Document, Place
from .search import found_by

_LONGEST_CHAIN = 48


@dataclass(slots=True)
class Reading:
    """What was read: the root, all nodes that can be reached from it, and the annotations seen on the way."""

    root: Node
    nodes: list[Node] = field(default_factory=list)
    annotations: list[tuple[Site, str]] = field(default_factory=list)


def read(schema: object) -> Reading:
    """Raises BadSchema, or TooComplex for references in long chains."""
    reading = _Reader(schema).reading()
    _check_in_place(reading)
    return reading


class _Reader:
    def __init__(self, schema: object) -> None:
        self._document = Document(schema)
        self._nodes: dict[str, Node] = {}
        self._waiting: list[tuple[Place, Node]] = []
        self._annotations: list[tuple[Site, str]] = []
        self._expressions: dict[str, tuple[Expression | None, str]] = {}

    def reading(self) -> Reading:
        root = self._node(self._document.root)
        while self._waiting:
            place, each = self._waiting.pop()
            self._read(place, each)
        return Reading(root, list(self._nodes.values()), self._annotations)

    def _node(self, place: Place) -> Node:
        """The node of a place, to be read later."""
        known = self._nodes.get(place.path)
        if known is None:
            known = self._nodes[place.path] = Node(place.path)
            self._waiting.append((place, known))
        return known

    def _below(self, place: Place, *steps: str | int) -> Node:
        return self._node(self._document.subschema(place, *steps))

    def _read(self, place: Place, into: Node) -> None:
        schema = place.value
        if isinstance(schema, bool):
            into.never = not schema
            return
        if not isinstance(schema, dict):
            raise BadSchema(f"A schema is an object, true or false, not {_shown(schema)}.", path=place.path)
        one = _One(self, place, into)
        ignoring = place.draft <= 7 and "$ref" in schema
        for keyword in schema:
            if not isinstance(keyword, str):
                raise BadSchema("The keys of a schema are strings.", path=place.path)
            if keyword not in locations.ASSERTIONS:
                self._annotations.append((one.site(keyword), ""))
            elif ignoring and keyword != "$ref":
                reason = f"draft {place.draft} ignores what stands beside $ref"
                self._annotations.append((one.site(keyword), reason))
            elif keyword == "$ref":
                one.refer()
            else:
                one.read(keyword)
        if not ignoring:
            one.close()

    def annotate(self, site: Site, reason: str) -> None:
        self._annotations.append((site, reason))

    def below(self, place: Place, *steps: str | int) -> Node:
        return self._below(place, *steps)

    def referred(self, reference: str, at: Place) -> Node | None:
        found = self._document.find(reference, at)
        return None if found is None else self._node(found)

    def dynamic(self, anchor: str) -> int:
        return len(self._document.dynamic(anchor))

    def pattern(self, text: str, path: str, keyword: str) -> tuple[Expression | None, str]:
        """What it finds, or None and why that is beyond us."""
        if text not in self._expressions:
            try:
                self._expressions[text] = found_by(text), ""
            except NotRegular as beyond:
                self._expressions[text] = None, f"{str(beyond)[:100]} cannot be enforced"
            except BadPattern as bad:
                raise BadSchema(
                    f"'{keyword}' holds {_shown(text)}, which is not a regular expression: {bad}.",
                    path=path,
                    keyword=keyword,
                ) from None
        return self._expressions[text]


class _One:
    """One schema object being read."""

    def __init__(self, reader: _Reader, place: Place, into: Node) -> None:
        self._reader = reader
        self._place = place
        self._schema: dict[str, Any] = place.value
        self._into = into
        self._done: set[str] = set()

    def site(self, keyword: str) -> Site:
        return Site(pointer(self._place.path, keyword), keyword)

    def read(self, keyword: str) -> None:
        """The atom of a keyword, together with those it belongs with, once."""
        if keyword in self._done:
            return
        getattr(self, _READERS[keyword])(keyword)

    def close(self) -> None:
        """unevaluated* see everything that stands beside them, so they come last."""
        for keyword in ("unevaluatedItems", "unevaluatedProperties"):
            if keyword in self._schema:
                below = self._reader.below(self._place, keyword)
                kind = node.UnevaluatedItems if keyword == "unevaluatedItems" else node.UnevaluatedFields
                self._add(kind((self.site(keyword),), below, self._into))

    def _add(self, atom: node.Atom) -> None:
        self._into.atoms.append(atom)

    def _sites(self, *keywords: str) -> tuple[Site, ...]:
        present = [keyword for keyword in keywords if keyword in self._schema]
        self._done.update(present)
        return tuple(self.site(keyword) for keyword in present)

    def _bad(self, keyword: str, message: str) -> BadSchema:
        return BadSchema(f"'{keyword}' {message}.", path=self._place.path, keyword=keyword)

    def _expected(self, keyword: str, what: str) -> BadSchema:
        return self._bad(keyword, f"is {what}, not {_shown(self._schema[keyword])}")

    def _below(self, *steps: str | int) -> Node:
        return self._reader.below(self._place, *steps)

    # any type

    def refer(self) -> None:
        reference = self._schema["$ref"]
        if not isinstance(reference, str):
            raise self._expected("$ref", "a string")
        found = self._reader.referred(reference, self._place)
        if found is None:
            raise self._bad("$ref", f"leads to {_shown(reference)}, which is not in the schema")
        self._add(node.All(self._sites("$ref"), (found,)))

    def _dynamic(self, keyword: str) -> None:
        reference = self._schema[keyword]
        if not isinstance(reference, str):
            raise self._expected(keyword, "a string")
        found = self._reader.referred(reference, self._place)
        if found is None:
            raise self._bad(keyword, f"leads to {_shown(reference)}, which is not in the schema")
        anchor = reference.partition("#")[2]
        if self._reader.dynamic(anchor) <= 1 and not (keyword == "$recursiveRef" and self._many_recursive()):
            self._add(node.All(self._sites(keyword), (found,)))
        else:
            reason = "where it leads depends on how the validator got here"
            self._add(node.Beyond(self._sites(keyword), reason))

    def _many_recursive(self) -> bool:
        return True  # 2019-09's $recursiveAnchor: not worth following

    def _type(self, keyword: str) -> None:
        sites = self._sites("type", "nullable")
        names = self._schema["type"]
        listed = [names] if isinstance(names, str) else names
        if not (isinstance(listed, list) and listed and all(isinstance(name, str) for name in listed)):
            raise self._expected("type", "the name of a type or a list of names")
        for name in listed:
            if name not in TYPES and name != "integer":
                known = ", ".join([*TYPES, "integer"])
                raise self._bad("type", f"names {_shown(name)}, which is no type; the types are {known}")
        nullable = self._nullable()
        types = {"number" if name == "integer" else name for name in listed} | (
            {"null"} if nullable else set()
        )
        self._add(node.TypeIs(sites, frozenset(types), "integer" in listed and "number" not in listed))

    def _nullable(self) -> bool:
        nullable = self._schema.get("nullable", False)
        if not isinstance(nullable, bool):
            raise self._expected("nullable", "true or false")
        return nullable

    def _nullable_alone(self, keyword: str) -> None:
        if "type" in self._schema:
            self._type("type")
        else:
            self._nullable()
            self._reader.annotate(*self._lonely(keyword, "without 'type' it says nothing"))

    def _lonely(self, keyword: str, reason: str) -> tuple[Site, str]:
        self._done.add(keyword)
        return self.site(keyword), reason

    def _enum(self, keyword: str) -> None:
        values = self._schema["enum"]
        if not isinstance(values, list):
            raise self._expected("enum", "a list of values")
        if not values:
            raise self._bad("enum", "is empty: no value satisfies it")
        self._add(node.ValueIs(self._sites("enum"), tuple(values)))

    def _const(self, keyword: str) -> None:
        self._add(node.ValueIs(self._sites("const"), (self._schema["const"],)))

    def _list_of_schemas(self, keyword: str) -> tuple[Node, ...]:
        value = self._schema[keyword]
        if not isinstance(value, list) or not value:
            raise self._expected(keyword, "a list of at least one schema")
        return tuple(self._below(keyword, index) for index in range(len(value)))

    def _all_of(self, keyword: str) -> None:
        self._add(node.All(self._sites("allOf"), self._list_of_schemas("allOf")))

    def _any_of(self, keyword: str) -> None:
        self._add(node.Either(self._sites("anyOf"), self._list_of_schemas("anyOf")))

    def _one_of(self, keyword: str) -> None:
        self._add(node.One(self._sites("oneOf"), self._list_of_schemas("oneOf")))

    def _not(self, keyword: str) -> None:
        self._add(node.No(self._sites("not"), self._below("not")))

    def _if(self, keyword: str) -> None:
        if "if" not in self._schema:
            self._below(keyword)
            self._reader.annotate(*self._lonely(keyword, "without 'if' it says nothing"))
            return
        then = self._below("then") if "then" in self._schema else None
        otherwise = self._below("else") if "else" in self._schema else None
        self._add(node.If(self._sites("if", "then", "else"), self._below("if"), then, otherwise))

    # numbers

    def _number(self, keyword: str) -> Fraction:
        value = self._schema[keyword]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._expected(keyword, "a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise self._expected(keyword, "a finite number")
        return exact(value)

    def _bounds(self, keyword: str) -> None:
        low, high = self._closest("minimum"), self._closest("maximum")
        if low and high:
            (least, opened, first), (most, closed, second) = low, high
            if least > most or (least == most and (opened or closed)):
                raise self._bad(first, f"and '{second}' leave no number: {least} to {most}")
        for name, mirrored in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            self._bound(name, mirrored)

    def _bound(self, name: str, exclusive: str) -> None:
        flag = self._schema.get(exclusive)
        if isinstance(flag, bool):
            sites = self._sites(name, exclusive)
            if name in self._schema:
                self._add(_range(sites, name, self._number(name), opened=flag))
            else:
                for site in sites:
                    self._reader.annotate(site, f"without '{name}' it says nothing")
            return
        if name in self._schema:
            self._add(_range(self._sites(name), name, self._number(name), opened=False))
        if exclusive in self._schema:
            self._add(_range(self._sites(exclusive), name, self._number(exclusive), opened=True))

    def _closest(self, name: str) -> tuple[Fraction, bool, str] | None:
        """The stricter of a bound and its exclusive form: value, whether it is out itself, keyword."""
        exclusive = "exclusive" + name.capitalize()
        flag = self._schema.get(exclusive)
        if isinstance(flag, bool) and self._place.draft != 4:
            message = "is a number; as true or false it is draft 4, which '$schema' has to say"
            raise self._bad(exclusive, message)
        found = []
        if name in self._schema:
            found.append((self._number(name), flag is True, name))
        if exclusive in self._schema and not isinstance(flag, bool):
            found.append((self._number(exclusive), True, exclusive))
        if name == "minimum":
            return max(found, default=None)
        return min(found, key=lambda each: (each[0], not each[1]), default=None)

    def _multiple_of(self, keyword: str) -> None:
        step = self._number("multipleOf")
        if step <= 0:
            raise self._expected("multipleOf", "a number above zero")
        self._add(node.Multiple(self._sites("multipleOf"), step))

    # strings

    def _count(self, keyword: str) -> int:
        value = self._schema[keyword]
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole or value < 0:
            raise self._expected(keyword, "a whole number, zero or more")
        return int(value)

    def _counts(self, least: str, most: str, what: str) -> Iterator[tuple[tuple[Site, ...], int, int | None]]:
        low = self._count(least) if least in self._schema else 0
        high = self._count(most) if most in self._schema else None
        if high is not None and low > high:
            raise self._bad(least, f"{low} and '{most}' {high} leave no {what}")
        if least in self._schema:
            yield self._sites(least), low, None
        if most in self._schema:
            yield self._sites(most), 0, high

    def _length(self, keyword: str) -> None:
        for sites, low, high in self._counts("minLength", "maxLength", "string"):
            self._add(node.Length(sites, low, high))

    def _pattern(self, keyword: str) -> None:
        text = self._schema["pattern"]
        if not isinstance(text, str):
            raise self._expected("pattern", "a string")
        expression, reason = self._reader.pattern(text, self._place.path, "pattern")
        self._add(node.Matches(self._sites("pattern"), expression, reason))

    def _format(self, keyword: str) -> None:
        name = self._schema["format"]
        if not isinstance(name, str):
            raise self._expected("format", "a string")
        sites = self._sites("format")
        if name in formats.IRREGULAR:
            self._add(node.Matches(sites, None, formats.IRREGULAR[name]))
        elif name in formats.NAMES:
            self._add(node.Matches(sites, formats.expression(name)))
            if name in formats.LONGEST:
                self._add(node.Length(sites, 0, formats.LONGEST[name]))
        else:
            self._reader.annotate(sites[0], "a format that JSON Schema does not define")

    # arrays

    def _items(self, keyword: str) -> None:
        listed = isinstance(self._schema.get("items"), list)
        if listed:
            sites = self._sites("items", "additionalItems")
            prefix = tuple(self._below("items", index) for index in range(len(self._schema["items"])))
            rest = self._below("additionalItems") if "additionalItems" in self._schema else None
        else:
            sites = self._sites("prefixItems", "items")
            prefix = self._list_of_schemas("prefixItems") if "prefixItems" in self._schema else ()
            rest = self._below("items") if "items" in self._schema else None
            if "additionalItems" in self._schema:
                self._below("additionalItems")
                reason = "without a list under 'items' it says nothing"
                self._reader.annotate(*self._lonely("additionalItems", reason))
        if listed and "prefixItems" in self._schema:
            raise self._bad("items", "is a list, which does not go with 'prefixItems'")
        if sites:
            self._add(node.Items(sites, prefix, rest))

    def _item_count(self, keyword: str) -> None:
        for sites, low, high in self._counts("minItems", "maxItems", "array"):
            self._add(node.ItemCount(sites, low, high))

    def _contains(self, keyword: str) -> None:
        least = self._count("minContains") if "minContains" in self._schema else 1
        most = self._count("maxContains") if "maxContains" in self._schema else None
        if "contains" not in self._schema:
            for each in ("minContains", "maxContains"):
                if each in self._schema:
                    self._reader.annotate(*self._lonely(each, "without 'contains' it says nothing"))
            return
        if most is not None and least > most:
            raise self._bad("maxContains", f"{most} and 'minContains' {least} leave no array")
        sites = self._sites("contains", "minContains", "maxContains")
        self._add(node.Contains(sites, self._below("contains"), least, most))

    def _unique(self, keyword: str) -> None:
        value = self._schema["uniqueItems"]
        if not isinstance(value, bool):
            raise self._expected("uniqueItems", "true or false")
        sites = self._sites("uniqueItems")
        if value:
            self._add(node.Unique(sites))
        else:
            self._reader.annotate(sites[0], "false says nothing")

    # objects

    def _map(self, keyword: str) -> dict[str, Any]:
        value = self._schema.get(keyword, {})
        if not isinstance(value, dict):
            raise self._expected(keyword, "an object of schemas")
        return value

    def _fields(self, keyword: str) -> None:
        named = {name: self._below("properties", name) for name in self._map("properties")}
        patterns = []
        for text in self._map("patternProperties"):
            expression, _ = self._reader.pattern(text, self._place.path, "patternProperties")
            patterns.append((expression, self._below("patternProperties", text)))
        rest = self._below("additionalProperties") if "additionalProperties" in self._schema else None
        sites = self._sites("properties", "patternProperties", "additionalProperties")
        self._add(node.Fields(sites, named, tuple(patterns), rest))

    def _strings(self, keyword: str, value: object) -> tuple[str, ...]:
        if not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
            raise self._bad(keyword, f"lists the names of properties, not {_shown(value)}")
        return tuple(dict.fromkeys(value))

    def _required(self, keyword: str) -> None:
        value = self._schema["required"]
        if isinstance(value, bool) and self._place.draft == 4:
            self._reader.annotate(*self._lonely("required", "draft 3; says nothing here"))
            return
        self._add(node.Needs(self._sites("required"), self._strings("required", value)))

    def _field_count(self, keyword: str) -> None:
        for sites, low, high in self._counts("minProperties", "maxProperties", "object"):
            self._add(node.FieldCount(sites, low, high))

    def _names(self, keyword: str) -> None:
        self._add(node.Names(self._sites("propertyNames"), self._below("propertyNames")))

    def _dependent_required(self, keyword: str) -> None:
        needs = {
            name: self._strings(keyword, value) for name, value in self._map("dependentRequired").items()
        }
        self._add(node.DependentNeeds(self._sites("dependentRequired"), needs))

    def _dependent_schemas(self, keyword: str) -> None:
        nodes = {name: self._below("dependentSchemas", name) for name in self._map("dependentSchemas")}
        self._add(node.DependentNodes(self._sites("dependentSchemas"), nodes))

    def _dependencies(self, keyword: str) -> None:
        sites = self._sites("dependencies")
        needs: dict[str, tuple[str, ...]] = {}
        nodes: dict[str, Node] = {}
        for name, value in self._map("dependencies").items():
            if isinstance(value, str):
                needs[name] = (value,)
            elif isinstance(value, list):
                needs[name] = self._strings("dependencies", value)
            else:
                nodes[name] = self._below("dependencies", name)
        self._add(node.DependentNeeds(sites, needs))
        self._add(node.DependentNodes(sites, nodes))

    def _later(self, keyword: str) -> None:
        """Read by `close`."""


_READERS = {
    "$dynamicRef": "_dynamic",
    "$recursiveRef": "_dynamic",
    "additionalItems": "_items",
    "additionalProperties": "_fields",
    "allOf": "_all_of",
    "anyOf": "_any_of",
    "const": "_const",
    "contains": "_contains",
    "dependencies": "_dependencies",
    "dependentRequired": "_dependent_required",
    "dependentSchemas": "_dependent_schemas",
    "else": "_if",
    "enum": "_enum",
    "exclusiveMaximum": "_bounds",
    "exclusiveMinimum": "_bounds",
    "format": "_format",
    "if": "_if",
    "items": "_items",
    "maxContains": "_contains",
    "maxItems": "_item_count",
    "maxLength": "_length",
    "maxProperties": "_field_count",
    "maximum": "_bounds",
    "minContains": "_contains",
    "minItems": "_item_count",
    "minLength": "_length",
    "minProperties": "_field_count",
    "minimum": "_bounds",
    "multipleOf": "_multiple_of",
    "not": "_not",
    "nullable": "_nullable_alone",
    "oneOf": "_one_of",
    "pattern": "_pattern",
    "patternProperties": "_fields",
    "prefixItems": "_items",
    "properties": "_fields",
    "propertyNames": "_names",
    "required": "_required",
    "then": "_if",
    "type": "_type",
    "unevaluatedItems": "_later",
    "unevaluatedProperties": "_later",
    "uniqueItems": "_unique",
}


def exact(value: float) -> Fraction:
    """A JSON number without rounding: what its shortest decimal text says."""
    if isinstance(value, int):
        return Fraction(value)
    return Fraction(Decimal(repr(value)))


def _range(sites: tuple[Site, ...], name: str, bound: Fraction, *, opened: bool) -> node.Range:
    if name == "minimum":
        return node.Range(sites, low=bound, open=opened)
    return node.Range(sites, high=bound, open=opened)


def _shown(value: object) -> str:
    """A value in a message, short and on one line."""
    text = re.sub(r"\s+", " ", repr(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _check_in_place(reading: Reading) -> None:
    """No schema may apply itself to the very same value, nor pass it on through an endless chain."""
    heights: dict[Node, int] = {}
    for start in reading.nodes:
        path: list[tuple[Node, Iterator[Node]]] = []
        active: set[Node] = set()
        _enter(start, path, active, heights)
        while path:
            each, below = path[-1]
            following = next(below, None)
            if following is None:
                path.pop()
                active.discard(each)
                heights[each] = 1 + max((heights[sub] for sub in in_place(each)), default=0)
                if heights[each] > _LONGEST_CHAIN:
                    raise TooComplex("The schema refers from one definition to the next too many times.")
            elif following in active:
                raise BadSchema(
                    "The schema applies itself to the same value again, without an end.", path=each.path
                )
            else:
                _enter(following, path, active, heights)


def _enter(
    each: Node, path: list[tuple[Node, Iterator[Node]]], active: set[Node], heights: dict[Node, int]
) -> None:
    if each not in heights:
        path.append((each, in_place(each)))
        active.add(each)


def in_place(each: Node) -> Iterator[Node]:
    """Subschemas that apply to the same value."""
    for atom in each.atoms:
        match atom:
            case node.All(nodes=nodes) | node.Either(nodes=nodes) | node.One(nodes=nodes):
                yield from nodes
            case node.No(node=below):
                yield below
            case node.If(condition=condition, then=then, otherwise=otherwise):
                yield condition
                yield from (below for below in (then, otherwise) if below is not None)
            case node.DependentNodes(nodes=named):
                yield from named.values()
            case _:
                pass

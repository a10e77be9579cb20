"""The subset of JSON Schema that OpenAI takes with `strict: true`, and its words for what is outside it. Pure.

Source: the guide "Structured outputs", section "Supported schemas" (limits of 2026-02), and error bodies quoted in public
issues. The messages are OpenAI's where it is known to have one; its clients match on them.

What this module does not know is whether a schema is one at all, or what can be enforced: see `contract`. Keywords that
OpenAI's list merely lacks (`oneOf`, `minLength`, `patternProperties`, …) are left to it: a strict request gets them if
they are enforced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from .errors import BadGrammar

MAX_PROPERTIES = 5000
MAX_DEPTH = 10
MAX_NAME_CHARACTERS = 120_000
MAX_ENUM_VALUES = 1000
LONG_ENUM = 250
MAX_LONG_ENUM_CHARACTERS = 15_000

NOT_PERMITTED = ("allOf", "not", "dependentRequired", "dependentSchemas", "if", "then", "else")

Context = tuple[str, ...]


class StrictViolation(BadGrammar):
    """`context` is the path to the schema at fault, as OpenAI counts it; None where its message has none."""

    def __init__(self, context: Context | None, problem: str) -> None:
        super().__init__(problem if context is None else f"In context={context}, {problem}")
        self.context = context
        self.problem = problem


def check(schema: object) -> None:
    """Raises StrictViolation for the first thing in a well-formed schema that is outside the subset."""
    _check_root(schema)
    size = _Size()
    for place in _places(schema):
        _check_place(place)
        size.add(place)


def check_parameters(schema: object) -> None:
    """What OpenAI asks of a function's parameters even without `strict`. Raises StrictViolation.

    One of its rules is left out: it refuses objects without `properties` too, which real tools have (maps with free keys),
    and which can be enforced as they are.
    """
    for place in _places(schema):
        _check_items(place)


class _Place(NamedTuple):
    """A schema within a schema, `depth` levels of objects and arrays below the root or a definition."""

    context: Context
    schema: Mapping[str, object]
    depth: int


def _places(root: object) -> Iterator[_Place]:
    """Every subschema that is an object, a parent before its children, in the order they are written."""
    waiting: list[tuple[Context, object, int]] = [((), root, 0)]
    while waiting:
        context, schema, depth = waiting.pop()
        if not isinstance(schema, Mapping):
            continue
        yield _Place(context, schema, depth)
        waiting.extend(reversed(list(_children(context, schema, depth))))


def _children(
    context: Context, schema: Mapping[str, object], depth: int
) -> Iterator[tuple[Context, object, int]]:
    for keyword, below in (("properties", depth + 1), ("$defs", 0), ("definitions", 0)):
        named = schema.get(keyword)
        if isinstance(named, Mapping):
            yield from (((*context, keyword, name), part, below) for name, part in named.items())
    yield (*context, "items"), schema.get("items"), depth + 1
    for keyword, below in (("prefixItems", depth + 1), ("anyOf", depth), ("oneOf", depth)):
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from (((*context, keyword, str(i)), part, below) for i, part in enumerate(listed))


def _check_root(schema: object) -> None:
    if isinstance(schema, Mapping) and "$ref" in schema:
        return
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind != "object":
        raise StrictViolation(
            None, f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{kind}\"'."
        )
    if isinstance(schema, Mapping) and "anyOf" in schema:
        raise StrictViolation((), "'anyOf' is not permitted at the root.")


def _check_place(place: _Place) -> None:
    for keyword in NOT_PERMITTED:
        if keyword in place.schema:
            raise StrictViolation(place.context, f"'{keyword}' is not permitted.")
    if _is(place, "object") or "properties" in place.schema:
        _check_object(place)
    _check_items(place)


def _check_object(place: _Place) -> None:
    context, schema = place.context, place.schema
    if schema.get("additionalProperties") is not False:
        raise StrictViolation(context, "'additionalProperties' is required to be supplied and to be false.")
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        raise StrictViolation(context, "object schema missing properties.")
    listed = schema.get("required", [])
    required = listed if isinstance(listed, list) else []
    rule = "'required' is required to be supplied and to be an array including every key in properties."
    for name in properties:
        if name not in required:
            raise StrictViolation(context, f"{rule} Missing '{name}'.")
    for name in required:
        if name not in properties:
            raise StrictViolation(context, f"{rule} Extra required key '{name}' supplied.")


def _check_items(place: _Place) -> None:
    if _is(place, "array") and not place.schema.keys() & {"items", "prefixItems"}:
        raise StrictViolation(place.context, "array schema missing items.")


def _is(place: _Place, kind: str) -> bool:
    named = place.schema.get("type")
    return named == kind or (isinstance(named, list) and kind in named)


class _Size:
    """What OpenAI limits over a whole schema, added up place by place."""

    def __init__(self) -> None:
        self._properties = 0
        self._characters = 0
        self._values = 0

    def add(self, place: _Place) -> None:
        """Raises StrictViolation at the place where a limit is passed."""
        if place.depth > MAX_DEPTH:
            raise StrictViolation(place.context, f"the schema is nested deeper than {MAX_DEPTH} levels.")
        self._count_names(place.schema)
        self._count_values(place)
        for count, limit, what in (
            (self._properties, MAX_PROPERTIES, "object properties"),
            (self._values, MAX_ENUM_VALUES, "enum values"),
            (self._characters, MAX_NAME_CHARACTERS, "characters in names and enum values"),
        ):
            if count > limit:
                raise StrictViolation(place.context, f"the schema has more than {limit} {what} in total.")

    def _count_names(self, schema: Mapping[str, object]) -> None:
        for keyword in ("properties", "$defs", "definitions"):
            named = schema.get(keyword)
            if isinstance(named, Mapping):
                self._characters += sum(map(len, named))
                self._properties += len(named) if keyword == "properties" else 0

    def _count_values(self, place: _Place) -> None:
        values = place.schema.get("enum")
        listed = values if isinstance(values, list) else []
        strings = sum(len(value) for value in listed if isinstance(value, str))
        if len(listed) > LONG_ENUM and strings > MAX_LONG_ENUM_CHARACTERS:
            raise StrictViolation(
                place.context,
                f"an enum of more than {LONG_ENUM} values may have {MAX_LONG_ENUM_CHARACTERS} characters in all.",
            )
        constant = place.schema.get("const")
        self._characters += strings + (len(constant) if isinstance(constant, str) else 0)
        self._values += len(listed)

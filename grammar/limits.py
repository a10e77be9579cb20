"""What a schema or a grammar may ask for before anything expensive is done with it.

A grammar within these limits compiles in a fraction of a second, nearly always; the deadline of the compiler is for the
rest. Everything here takes linear time (at most 0.15 s, 10 ms for a real schema) and constant stack. The largest of
the 415 real-world schemas of JSONSchemaBench stays below each of them by a factor of two or more, except in the number
of optional properties (201 in one object), patterns (975 characters) and text (162 KB).
"""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from . import spec
from .errors import BadSchema, TooComplex
from .extent import Extent, Syntax, pattern_extent, text_extent

MAX_DEPTH = 64
"""Of brackets in a schema, pattern or grammar, and of a tree. Every engine descends recursively; some take cubic time."""
MAX_SCHEMA_BYTES = 256 * 1024
"""Of a schema's text. Larger ones are tables, and take seconds in some engines."""
MAX_SCHEMA_VALUES = 30_000
"""JSON values in a schema: 0.1 s of work in normalising it."""
MAX_ENUM_VALUES = 5_000
"""In one enum or choice. Engines hold each as a branch of an automaton: at 100,000 they run out of memory."""
MAX_LITERAL_BYTES = 16 * 1024
"""Of one fixed text, in a constant, a name or a choice. The first mask walks all of it, at a millisecond per kilobyte."""
MAX_LITERALS_BYTES = 128 * 1024
"""Of all of them together. OpenAI allows 120,000 characters."""
MAX_OPTIONAL = 256
"""Properties of one object that may be left out. Each may follow each other: at 500 no engine has room for the choice."""
MAX_REQUIRED = 5_000
"""Required properties of a whole schema, as with OpenAI. Compile time is quadratic in those of one object."""
MAX_BRANCHES = 500
"""Of one anyOf, oneOf or allOf. An engine follows all of them at once."""
MAX_PATTERN_PROPERTIES = 64
"""In one object. Each pair of them has to be shown to be disjoint: 256 take a second."""
MAX_PATTERN_BYTES = 4 * 1024
"""Of one regular expression."""
MAX_REPEAT = 10_000
"""The product of repetitions inside each other, and how often a tree's part may be asked for."""
MAX_POSITIONS = 20_000
"""Positions of one regular expression or grammar with all its repetitions written out."""
MAX_LEAST = 1_000_000
"""Characters, items or properties that an answer must have at least. No context holds more."""
MAX_MULTIPLE = 100_000
"""Of a multipleOf, decimal places and trailing zeros aside. It takes an automaton with as many states."""
MAX_TEXT_BYTES = 64 * 1024
"""Of a grammar in EBNF or Lark."""
MAX_RULES = 1_000
"""In a grammar. A chain of rules is followed recursively, and 3,000 of them overflow a stack."""
MAX_TREE_BYTES = 1024 * 1024
"""Of all schemas in a tree: all tools of a request together."""
MAX_TREE_NODES = 10_000
"""Parts of a tree. A tool takes ten to thirty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLimits:
    """The limits above, as far as normalising a schema changes what counts: it writes combinations out, again and again."""

    depth: int = MAX_DEPTH
    size: int = MAX_SCHEMA_BYTES
    values: int = MAX_SCHEMA_VALUES
    literals: int = MAX_LITERALS_BYTES
    optional: int = MAX_OPTIONAL
    required: int = MAX_REQUIRED
    branches: int = MAX_BRANCHES
    pattern: int = MAX_PATTERN_BYTES


CLIENT = SchemaLimits()
"""For a schema as somebody wrote it."""
NORMALISED = SchemaLimits(
    depth=96,  # llguidance reads 127
    size=2 * MAX_SCHEMA_BYTES,
    values=2 * MAX_SCHEMA_VALUES,
    literals=4 * MAX_LITERALS_BYTES,
    optional=2 * MAX_OPTIONAL,
    required=2 * MAX_REQUIRED,
    branches=2 * MAX_BRANCHES,
    pattern=16 * MAX_PATTERN_BYTES,  # the names of declared properties, excluded from another pattern
)
"""For what normalising made of it. A schema of reasonable size may grow by so much; compiling it shows what that costs."""

_INTEGERS = range(-(2**63), 2**64)
"""What JSON libraries and engines can hold."""
_SCHEMA = frozenset(
    {
        "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset(
    {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
)
_EXACT = decimal.Context(prec=40)
"""Digits of any integer of 64 bits and any float."""


# ---- schemas ---------------------------------------------------------------------------------------------------------


def check_schema(schema: object) -> None:
    """Of a parsed JSON schema. Raises TooComplex, naming the place and the limit, or BadSchema if it is none at all."""
    _check_schema(schema, CLIENT)


def _check_schema(schema: object, limits: SchemaLimits) -> None:
    if not isinstance(schema, dict | bool):
        raise BadSchema("a schema is an object or a boolean")
    _SchemaWalk(limits).run(schema)


def _check_normalised(text: str) -> None:
    """Of JSON text, of which not even the nesting is known."""
    if len(text) > NORMALISED.size or len(text.encode(errors="replace")) > NORMALISED.size:
        raise TooComplex(
            f"the schema has more than {NORMALISED.size:,} bytes with its combinations written out"
        )
    _check_nesting(text)
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise BadSchema(f"the schema is not JSON: {error}") from None
    _check_schema(schema, NORMALISED)


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)


def _check_nesting(text: str) -> None:
    depth = 0
    for token in _BRACKETS.finditer(text):
        if token[1]:
            depth += 1
            if depth > NORMALISED.depth:
                raise TooComplex(f"the schema nests more than {NORMALISED.depth} levels deep")
        elif token[2]:
            depth -= 1


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is: the last steps of its way from the root, and where those began."""

    parent: _Place | None
    steps: tuple[str, ...]

    def pointer(self) -> str:
        """RFC 6901."""
        steps: list[str] = []
        place: _Place | None = self
        while place is not None:
            steps[:0] = place.steps
            place = place.parent
        return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


_Child = tuple[tuple[str, ...], object, bool]
"""The steps to a value, the value, and whether it is a schema."""


class _SchemaWalk:
    """Every value of a schema, each looked at once, with what is summed up on the way."""

    def __init__(self, limits: SchemaLimits) -> None:
        self._limits = limits
        self._values = 0
        self._bytes = 0
        self._literals = 0
        self._required = 0

    def run(self, schema: object) -> None:
        waiting: list[tuple[_Place, object, int, bool]] = [(_Place(None, ()), schema, 0, True)]
        while waiting:
            place, value, depth, is_schema = waiting.pop()
            self._count(place, value)
            if isinstance(value, dict):
                for name in value:
                    self._count_text(place, name)
                if is_schema:
                    self._check_keywords(place, value)
                children = _members(value, is_schema)
            elif isinstance(value, list):
                children = (((str(index),), item, False) for index, item in enumerate(value))
            else:
                continue
            if value and depth >= self._limits.depth:
                raise _passed(place, None, f"it nests more than {self._limits.depth} levels deep")
            room = self._limits.values - self._values - len(waiting)
            waiting += [
                (_Place(place, steps), child, depth + len(steps), is_child_schema)
                for steps, child, is_child_schema in islice(children, room + 1)
            ]
            if self._values + len(waiting) > self._limits.values:
                raise _passed(None, None, f"it has more than {self._limits.values:,} values")

    def _count(self, place: _Place, value: object) -> None:
        self._values += 1
        match value:
            case str():
                self._count_text(place, value)
            case float() if not math.isfinite(value):
                raise BadSchema(
                    f"the number at {place.pointer() or 'the root'} is not finite", path=place.pointer()
                )
            case int() if value not in _INTEGERS:
                raise _passed(place, None, "it is a number beyond 64 bits")

    def _count_text(self, place: _Place, text: str) -> None:
        try:
            self._bytes += len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            pointer = place.pointer()
            raise BadSchema(f"a text at {pointer or 'the root'} is not valid Unicode", path=pointer) from None
        if self._bytes > self._limits.size:
            raise _passed(None, None, f"it has more than {self._limits.size:,} bytes")

    def _check_keywords(self, place: _Place, schema: dict[str, Any]) -> None:
        for keyword in schema.keys() & _CHECKS.keys():
            try:
                _CHECKS[keyword](schema[keyword], self._limits)
            except _Passed as passed:
                raise _passed(place, keyword, str(passed)) from None
        self._count_literals(place, schema)
        self._count_properties(place, schema)

    def _count_literals(self, place: _Place, schema: dict[str, Any]) -> None:
        for keyword in ("const", "enum"):
            if keyword in schema:
                longest, total = _texts_in(schema[keyword], self._limits.values)
                if longest > MAX_LITERAL_BYTES:
                    raise _passed(place, keyword, f"it has a text of more than {MAX_LITERAL_BYTES:,} bytes")
                self._literals += total
        if self._literals > self._limits.literals:
            raise _passed(
                None, None, f"its constants have more than {self._limits.literals:,} bytes together"
            )

    def _count_properties(self, place: _Place, schema: dict[str, Any]) -> None:
        properties, required = schema.get("properties"), schema.get("required")
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        self._required += len(names)
        if self._required > self._limits.required:
            raise _passed(None, None, f"it has more than {self._limits.required:,} required properties")
        if not isinstance(properties, dict):
            return
        if len(properties.keys() - names) > self._limits.optional:
            raise _passed(place, "properties", f"more than {self._limits.optional} of them are not required")
        if any(len(name) > MAX_LITERAL_BYTES for name in properties):
            raise _passed(place, "properties", f"a name has more than {MAX_LITERAL_BYTES:,} characters")


def _members(value: dict[str, Any], is_schema: bool) -> Iterator[_Child]:
    for name, member in value.items():
        if is_schema and name in _SCHEMA_MAPS and isinstance(member, dict):
            for key, child in member.items():
                yield (name, key), child, True
        elif is_schema and name in _SCHEMA_LISTS and isinstance(member, list):
            for index, child in enumerate(member):
                yield (name, str(index)), child, True
        else:
            yield (name,), member, is_schema and name in _SCHEMA


def _texts_in(value: object, most: int) -> tuple[int, int]:
    """Bytes of the longest text in a constant, and of all of them; of the first, if it has more values than `most`."""
    longest = total = seen = 0
    waiting = [value]
    while waiting and seen <= most:
        seen += 1
        match waiting.pop():
            case str(text):
                size = len(text.encode(errors="replace"))
                longest, total = max(longest, size), total + size
            case list(items):
                waiting += items
            case dict(members):
                waiting += members.keys()
                waiting += members.values()
    return longest, total


class _Passed(Exception):
    """A limit that a keyword's value passes; its place is known to the caller."""


def _check_enum(value: object, _: SchemaLimits) -> None:
    if isinstance(value, list) and len(value) > MAX_ENUM_VALUES:
        raise _Passed(f"it has {len(value):,} values, more than {MAX_ENUM_VALUES:,}")


def _check_branches(value: object, limits: SchemaLimits) -> None:
    if isinstance(value, list) and len(value) > limits.branches:
        raise _Passed(f"it has {len(value):,} branches, more than {limits.branches}")


def _check_least(value: object, _: SchemaLimits) -> None:
    if isinstance(value, int | float) and value > MAX_LEAST:
        raise _Passed(f"it asks for more than {MAX_LEAST:,}")


def _check_multiple(value: object, _: SchemaLimits) -> None:
    if isinstance(value, int | float) and math.isfinite(value) and _digits(value) > MAX_MULTIPLE:
        raise _Passed(f"its digits make a number above {MAX_MULTIPLE:,}")


def _digits(number: float) -> int:
    """The integer that the significant digits of a number spell: 12 for 0.0012 and 12000."""
    _, digits, _ = decimal.Decimal(repr(number)).normalize(_EXACT).as_tuple()
    return int("".join(map(str, digits)))


def _check_pattern(value: object, limits: SchemaLimits) -> None:
    if isinstance(value, str):
        _check_regex(value, limits.pattern)


def _check_pattern_properties(value: object, limits: SchemaLimits) -> None:
    if not isinstance(value, dict):
        return
    if len(value) > MAX_PATTERN_PROPERTIES:
        raise _Passed(f"it has {len(value):,} patterns, more than {MAX_PATTERN_PROPERTIES}")
    for pattern in value:
        _check_pattern(pattern, limits)


_CHECKS: dict[str, Callable[[object, SchemaLimits], None]] = {
    "allOf": _check_branches,
    "anyOf": _check_branches,
    "enum": _check_enum,
    "minContains": _check_least,
    "minItems": _check_least,
    "minLength": _check_least,
    "minProperties": _check_least,
    "multipleOf": _check_multiple,
    "oneOf": _check_branches,
    "pattern": _check_pattern,
    "patternProperties": _check_pattern_properties,
}


def _passed(place: _Place | None, keyword: str | None, what: str) -> TooComplex:
    pointer = "" if place is None else place.pointer()
    where = pointer if keyword is None else f"{pointer}/{keyword}"
    return TooComplex(
        f"the schema is too complex at {where or 'its root'}: {what}", path=pointer, keyword=keyword
    )


# ---- patterns and grammars -------------------------------------------------------------------------------------------


def _check_regex(pattern: str, most: int) -> None:
    if len(pattern) > most or len(pattern.encode(errors="replace")) > most:
        raise _Passed(f"the pattern has more than {most:,} bytes")
    _check_extent("the pattern", pattern_extent(pattern))


def _check_text(text: str, syntax: Syntax) -> None:
    if len(text) > MAX_TEXT_BYTES or len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise _Passed(f"the grammar has more than {MAX_TEXT_BYTES:,} bytes")
    extent = text_extent(text, syntax)
    _check_extent("the grammar", extent)
    if extent.rules > MAX_RULES:
        raise _Passed(f"the grammar has {extent.rules:,} rules, more than {MAX_RULES:,}")


def _check_extent(what: str, extent: Extent) -> None:
    if extent.depth > MAX_DEPTH:
        raise _Passed(f"{what} nests more than {MAX_DEPTH} levels deep")
    if extent.product > MAX_REPEAT:
        raise _Passed(f"repetitions in {what} multiply to more than {MAX_REPEAT:,}")
    if extent.positions > MAX_POSITIONS:
        raise _Passed(f"{what} has more than {MAX_POSITIONS:,} positions with its repetitions written out")


# ---- trees -----------------------------------------------------------------------------------------------------------


def check_grammar(grammar: spec.Grammar) -> None:
    """Of a whole tree with all its leaves. Raises TooComplex or BadSchema."""
    try:
        _check_tree(grammar)
    except _Passed as passed:
        raise TooComplex(str(passed)) from None


def _check_tree(grammar: spec.Grammar) -> None:
    nodes = literals = schemas = 0
    waiting: list[tuple[spec.Grammar, int, int]] = [
        (grammar, 1, 1)
    ]  # with its depth and how often it may occur
    while waiting:
        node, depth, times = waiting.pop()
        nodes += 1
        if nodes > MAX_TREE_NODES:
            raise _Passed(f"the grammar has more than {MAX_TREE_NODES:,} parts")
        if depth > MAX_DEPTH:
            raise _Passed(f"the grammar nests more than {MAX_DEPTH} levels deep")
        match node:
            case spec.Concat(parts) | spec.Either(parts):
                waiting += [(part, depth + 1, times) for part in parts]
            case spec.Repeat():
                times *= max(node.least, node.most or 1, 1)
                if times > MAX_REPEAT:
                    raise _Passed(f"repetitions in the grammar multiply to more than {MAX_REPEAT:,}")
                waiting.append((node.part, depth + 1, times))
            case spec.JsonSchema(schema):
                schemas += len(schema)
        literals += _check_node(node)
        if schemas > MAX_TREE_BYTES:
            raise _Passed(f"the schemas have more than {MAX_TREE_BYTES:,} bytes together")
        if literals > MAX_LITERALS_BYTES:
            raise _Passed(f"the texts in the grammar have more than {MAX_LITERALS_BYTES:,} bytes together")


def _check_node(node: spec.Grammar) -> int:
    """What a node says itself. Returns the bytes of fixed text in it."""
    match node:
        case spec.JsonSchema(schema):
            _check_normalised(schema)
        case spec.Regex(pattern):
            _check_regex(pattern, MAX_PATTERN_BYTES)
        case spec.Ebnf(text):
            _check_text(text, "ebnf")
        case spec.Lark(text):
            _check_text(text, "lark")
        case spec.Choice(texts) | spec.FreeText(texts):
            return _check_literals(texts)
        case spec.Literal(text) | spec.Marker(text):
            return _check_literals((text,))
        case spec.Repeat():
            return _check_literals((node.between,))
    return 0


def _check_literals(texts: tuple[str, ...]) -> int:
    """Their bytes together."""
    if len(texts) > MAX_ENUM_VALUES:
        raise _Passed(f"there are {len(texts):,} choices, more than {MAX_ENUM_VALUES:,}")
    sizes = [len(text.encode(errors="replace")) for text in texts]
    if max(sizes, default=0) > MAX_LITERAL_BYTES:
        raise _Passed(f"a text has more than {MAX_LITERAL_BYTES:,} bytes")
    return sum(sizes)

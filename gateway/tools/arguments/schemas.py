"""Schemas as formats need them that write strings bare: apart into what is a string and what is not.

Works on schemas as contracts normalise them, and on clients' own where those are as simple.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from grammar.spec import JsonSchema

from .style import Gap, ToolShape

Schema = Mapping[str, Any] | bool

KINDS: Final = ("string", "number", "boolean", "null", "object", "array")
"""Types of JSON values; an integer is a number."""

_SAYS_NOTHING: Final = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "example",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
_LOGIC: Final = frozenset(
    {"$dynamicRef", "$ref", "allOf", "anyOf", "else", "if", "not", "oneOf", "then", "unevaluatedProperties"}
)
_DEEPEST: Final = 64
_MOST_BRANCHES: Final = 128
_MOST_NESTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Branch:
    """One way for a value to fit. `plain` if `schema` asks for nothing but a type; `known` if its keywords could be told
    apart by type, so that those about strings are all there is about strings. `origin` names the schema it is a part of."""

    kinds: frozenset[str]
    schema: Mapping[str, Any]
    path: str
    origin: int
    known: bool = True

    @property
    def plain(self) -> bool:
        return self.known and not says(self.schema, "type")


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    schema: Schema
    path: str
    required: bool


class Root:
    """A schema and what the references in it lead to."""

    __slots__ = ("_like", "schema")

    def __init__(self, schema: Schema, like: JsonSchema) -> None:
        self.schema = schema
        self._like = like

    @classmethod
    def of(cls, tool: ToolShape) -> Root:
        """The normalised schema of the arguments where it is one object with properties, else the client's own."""
        normalised = cls(json.loads(tool.arguments.schema), tool.arguments)
        branches = normalised.branches(normalised.schema, "")
        if len(branches) == 1 and branches[0].known:
            return normalised
        return cls(tool.schema, tool.arguments)

    def leaf(self, schema: Mapping[str, Any]) -> JsonSchema:
        """JSON text of what fits a part of the schema."""
        own = {key: value for key, value in schema.items() if key not in ("$defs", "definitions")}
        text = json.dumps(own, ensure_ascii=False)
        if '"$ref"' in text and isinstance(self.schema, Mapping):
            own = _with_definitions(own, self.schema)
            text = json.dumps(own, ensure_ascii=False)
        return JsonSchema(text, self._like.whitespace, self._like.backends)

    def resolved(self, schema: Schema) -> tuple[Schema, bool]:
        """What a reference leads to, and whether it leads anywhere."""
        for _ in range(_DEEPEST):
            if isinstance(schema, bool) or "$ref" not in schema or says(schema, "$ref"):
                return schema, True
            found = _at(self.schema, schema["$ref"])
            if found is None:
                return schema, False
            schema = found
        return schema, False

    def branches(self, schema: Schema, path: str) -> list[Branch]:
        """All ways to fit, each either strings or other values."""
        found = list(islice(self._branches(schema, path, ()), _MOST_BRANCHES + 1))
        if len(found) <= _MOST_BRANCHES:
            return found
        return _by_kind(schema if isinstance(schema, Mapping) else {}, path, known=False)

    def _branches(self, schema: Schema, path: str, within: tuple[int, ...]) -> Iterator[Branch]:
        schema, leads = self.resolved(schema)
        if schema is False or id(schema) in within:
            return  # what leads to itself only adds nothing
        if isinstance(schema, bool) or not leads or len(within) > _DEEPEST:
            yield from _by_kind({} if schema is True else schema, path, known=schema is True)
            return
        logic = _only_logic(schema)
        if logic is None:
            yield from _by_kind(schema, path, known=not (_LOGIC & schema.keys()))
            return
        for i, one in enumerate(schema[logic]):
            yield from self._branches(one, f"{path}/{logic}/{i}", (*within, id(schema)))

    def fields(self) -> list[Field]:
        """The properties of the arguments, in order."""
        objects = [b for b in self.branches(self.schema, "") if "object" in b.kinds]
        return fields(objects[0]) if len(objects) == 1 else _merged(objects)

    def gaps(self) -> tuple[Gap, ...]:
        """What is asked of the arguments as a whole, beyond their properties."""
        objects = [b for b in self.branches(self.schema, "") if "object" in b.kinds]
        if len(objects) != 1 or not objects[0].known:
            return (Gap("", "", "the arguments are not one object with properties"),)
        return tuple(
            Gap(f"{objects[0].path}/{keyword}", keyword, "it is about all arguments together")
            for keyword in objects[0].schema
            if keyword in _OF_OBJECTS
            or (keyword == "patternProperties" and _concerns_properties(objects[0].schema))
        )

    def others(self) -> Schema:
        """What arguments that are no properties have to be; False if there may be none."""
        objects = [b for b in self.branches(self.schema, "") if "object" in b.kinds]
        return others(objects[0].schema) if len(objects) == 1 else True


_OF_OBJECTS: Final = frozenset(
    {
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "maxProperties",
        "minProperties",
        "propertyNames",
    }
)


class Nesting:
    """Objects and arrays that are being written out, one within the other."""

    __slots__ = ("_left", "_within")

    def __init__(self) -> None:
        self._within: list[int] = []
        self._left = _MOST_NESTED

    def enter(self, branch: Branch) -> bool:
        """Whether to write it out too: not if it is within itself, and not if there has been too much already."""
        if branch.origin in self._within or len(self._within) >= _DEEPEST or not self._left:
            return False
        self._within.append(branch.origin)
        self._left -= 1
        return True

    def leave(self) -> None:
        self._within.pop()


def _only_logic(schema: Mapping[str, Any]) -> str | None:
    """The keyword that says that one of several schemas is to hold, if that is all the schema says."""
    for keyword in ("anyOf", "oneOf", "allOf"):
        inner = schema.get(keyword)
        if isinstance(inner, list) and inner and not says(schema, keyword):
            return keyword if keyword != "allOf" or len(inner) == 1 else None
    return None


def says(schema: Mapping[str, Any], *but: str) -> list[str]:
    """The keywords that mean something, but these."""
    return [key for key in schema if key not in _SAYS_NOTHING and key not in but and not key.startswith("x-")]


def others(schema: Mapping[str, Any]) -> Schema:
    """What an object's values without a name in `properties` have to be. Keys of all patterns but the empty one are left
    out: nobody has to use them."""
    found: Schema = schema.get("patternProperties", {}).get("", schema.get("additionalProperties", True))
    return found


def is_simple_object(schema: Mapping[str, Any]) -> bool:
    """Whether nothing is asked of an object but which values its properties have."""
    words = ("type", "properties", "required", "additionalProperties", "patternProperties")
    return (
        not (_OF_OBJECTS & schema.keys())
        and not says(schema, *words, *_OF_OTHERS)
        and not _concerns_properties(schema)
    )


def is_simple_array(schema: Mapping[str, Any]) -> bool:
    """The same of an array, its length and its items."""
    return "items" in schema and not says(schema, "type", "items", "minItems", "maxItems", *_OF_OTHERS)


_OF_OTHERS: Final = ("minLength", "maxLength", "pattern", "format", "minimum", "maximum", "multipleOf")
"""About other kinds of values than objects and arrays."""


def _concerns_properties(schema: Mapping[str, Any]) -> bool:
    """Whether a pattern asks something of a key that has a name."""
    names = schema.get("properties", {})
    for pattern, value in schema.get("patternProperties", {}).items():
        if value is True or value == {}:
            continue
        try:
            if any(re.search(pattern, name) for name in names):
                return True
        except re.error:
            return True
    return False


def fields(branch: Branch) -> list[Field]:
    """The properties of an object in the order of the schema; required ones that it does not describe come last."""
    properties = branch.schema.get("properties", {})
    required = branch.schema.get("required", [])
    return [
        Field(name, schema, f"{branch.path}/properties/{pointer(name)}", name in required)
        for name, schema in properties.items()
    ] + [
        Field(name, others(branch.schema), f"{branch.path}/required", required=True)
        for name in required
        if name not in properties
    ]


def _merged(branches: list[Branch]) -> list[Field]:
    """Every property of any of them. Required is what all require."""
    every = [{field.name: field for field in fields(branch)} for branch in branches]
    names = dict.fromkeys(name for some in every for name in some)
    merged = []
    for name in names:
        found = [some[name] for some in every if name in some]
        schema = found[0].schema if len(found) == 1 else {"anyOf": [field.schema for field in found]}
        required = len(found) == len(every) and all(field.required for field in found)
        merged.append(Field(name, schema, found[0].path, required))
    return merged


def pointer(name: str) -> str:
    """A name as a part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def kind_of(value: object) -> str:
    match value:
        case str():
            return "string"
        case bool():
            return "boolean"
        case None:
            return "null"
        case dict():
            return "object"
        case list():
            return "array"
    return "number"


def _by_kind(schema: Mapping[str, Any], path: str, *, known: bool) -> list[Branch]:
    """The schema for strings and for the rest."""
    kinds = _declared(schema)
    parts = [some for some in (kinds & {"string"}, kinds - {"string"}) if some]
    return [Branch(some, narrowed(schema, some), path, id(schema), known) for some in parts]


def narrowed(schema: Mapping[str, Any], kinds: frozenset[str]) -> Mapping[str, Any]:
    """The schema for values of these kinds only."""
    own = dict(schema)
    if "const" in own:
        return own
    if "enum" in own:
        return {**own, "enum": [value for value in own["enum"] if kind_of(value) in kinds]}
    declared = own.get("type")
    names = [declared] if isinstance(declared, str) else list(KINDS if declared is None else declared)
    kept = [name for name in names if _kind(name) in kinds]
    return {**own, "type": kept[0] if len(kept) == 1 else kept}


def _declared(schema: Mapping[str, Any]) -> frozenset[str]:
    if "const" in schema:
        return frozenset({kind_of(schema["const"])})
    if "enum" in schema:
        return frozenset(map(kind_of, schema["enum"]))
    declared = schema.get("type", list(KINDS))
    return frozenset(map(_kind, [declared] if isinstance(declared, str) else declared))


def _kind(name: str) -> str:
    return "number" if name == "integer" else name


# -- references --------------------------------------------------------------------------------------------------------


def _at(root: Schema, reference: object) -> Schema | None:
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            return None
    return found if isinstance(found, Mapping | bool) else None


def _with_definitions(part: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """The part as a schema of its own: with the definitions it needs, and the whole root as one of them if it needs that."""
    needed: dict[str, dict[str, Any]] = {}
    waiting = list(_references(part))
    whole = False
    while waiting:
        reference = waiting.pop()
        section, _, name = reference.removeprefix("#/").partition("/")
        if section in ("$defs", "definitions") and name and "/" not in name:
            name = name.replace("~1", "/").replace("~0", "~")
            found = root.get(section, {}).get(name)
            if found is not None and name not in needed.setdefault(section, {}):
                needed[section][name] = found
                waiting.extend(_references(found))
        else:
            whole = True
    if not whole:
        return {**part, **needed}
    moved: dict[str, Any] = _moved({**part, "$defs": {"root": root}})
    return moved


def _references(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _moved(schema: Any) -> Any:
    """References into the root as references to where the root has gone."""
    if isinstance(schema, Mapping):
        moved = {key: _moved(value) for key, value in schema.items()}
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            moved["$ref"] = "#/$defs/root" + reference[1:]
        return moved
    return [_moved(value) for value in schema] if isinstance(schema, list) else schema

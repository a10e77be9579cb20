"""Values as the text a grammar of a rendered schema would write: keys in its order, numbers in plain decimals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import jsonschema_rs

from grammar.normalise.reader import exact

TYPES = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}


def text(value: Any) -> str:
    """Compact as `whitespace="compact"` has it: ", " and ": "."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        number = exact(value)
        return str(int(number)) if number.denominator == 1 else format(Decimal(repr(value)), "f")
    if isinstance(value, list):
        return "[" + ", ".join(text(item) for item in value) + "]"
    return "{" + ", ".join(f"{text(key)}: {text(item)}" for key, item in value.items()) + "}"


class Rendered:
    """A rendered schema: does a value fit, and in which order do its keys come?"""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}

    def arranged(self, value: Any) -> Any:
        """The value with its keys in order; raises ValueError if it does not fit."""
        return self._fit(value, self._schema)

    def guesses(self, value: Any) -> Iterator[Any]:
        """For a value that does not fit: the orders that come closest."""
        yield value
        for choice in range(3):
            yield self._guess(value, self._schema, choice)

    def _options(self, schema: Any) -> list[Any]:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._definitions[schema["$ref"].removeprefix("#/$defs/")]
        return schema["anyOf"] if isinstance(schema, dict) and "anyOf" in schema else [schema]

    def _guess(self, value: Any, schema: Any, choice: int) -> Any:
        options = [option for option in self._options(schema) if isinstance(option, dict)]
        if isinstance(value, list):
            options = [option for option in options if option.get("type") == "array"]
            if not options:
                return value
            option = options[choice % len(options)]
            prefix = option.get("prefixItems", [])
            rest = option.get("items", True)
            return [
                self._guess(item, prefix[index] if index < len(prefix) else rest, choice)
                for index, item in enumerate(value)
            ]
        if isinstance(value, dict):
            options = [option for option in options if option.get("type") == "object"]
            if not options:
                return value
            named = options[choice % len(options)].get("properties", {})
            order = [name for name in named if name in value] + [name for name in value if name not in named]
            return {name: self._guess(value[name], named.get(name, True), choice) for name in order}
        return value

    def _fit(self, value: Any, schema: Any) -> Any:
        for option in self._options(schema):
            try:
                return self._fit_one(value, option)
            except ValueError:
                continue
        raise ValueError

    def _fit_one(self, value: Any, schema: Any) -> Any:
        if schema is True:
            return value
        if schema is False:
            raise ValueError
        _require("type" not in schema or _typed(value, schema["type"]))
        _require("enum" not in schema or any(text(value) == text(each) for each in schema["enum"]))
        if isinstance(value, str):
            _fit_string(value, schema)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _fit_number(exact(value), schema)
        elif isinstance(value, list):
            return self._fit_array(value, schema)
        elif isinstance(value, dict) and "type" in schema:
            return self._fit_object(value, schema)
        return value

    def _fit_array(self, value: list[Any], schema: Any) -> Any:
        _require(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)))
        prefix = schema.get("prefixItems", [])
        rest = schema.get("items", True)
        return [
            self._fit(item, prefix[index] if index < len(prefix) else rest)
            for index, item in enumerate(value)
        ]

    def _fit_object(self, value: dict[str, Any], schema: Any) -> Any:
        _require(schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)))
        _require(all(name in value for name in schema.get("required", [])))
        named = schema.get("properties", {})
        order = [name for name in named if name in value] + [name for name in value if name not in named]
        return {name: self._fit(value[name], self._for_key(name, schema)) for name in order}

    def _for_key(self, name: str, schema: Any) -> Any:
        if name in schema.get("properties", {}):
            return schema["properties"][name]
        for pattern, below in schema.get("patternProperties", {}).items():
            if finds(pattern, name):
                return below
        return schema.get("additionalProperties", True)


@cache
def _compiled(pattern: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for({"pattern": pattern})


def finds(pattern: str, value: str) -> bool:
    """A rendered pattern by another engine: an opinion that is not ours."""
    return _compiled(pattern).is_valid(value)


def _require(held: bool) -> None:
    if not held:
        raise ValueError


def _typed(value: Any, types: Any) -> bool:
    return any(_is(value, name) for name in ([types] if isinstance(types, str) else types))


def _is(value: Any, name: str) -> bool:
    if name in ("number", "integer"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (name == "number" or exact(value).denominator == 1)
    return isinstance(value, TYPES[name])


def _fit_string(value: str, schema: Any) -> None:
    _require(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    patterns = [each["pattern"] for each in [schema, *schema.get("allOf", [])] if "pattern" in each]
    _require(all(finds(pattern, value) for pattern in patterns))


def _fit_number(value: Fraction, schema: Any) -> None:
    _require("minimum" not in schema or value >= exact(schema["minimum"]))
    _require("maximum" not in schema or value <= exact(schema["maximum"]))
    _require("exclusiveMinimum" not in schema or value > exact(schema["exclusiveMinimum"]))
    _require("exclusiveMaximum" not in schema or value < exact(schema["exclusiveMaximum"]))
    _require("multipleOf" not in schema or (value / exact(schema["multipleOf"])).denominator == 1)

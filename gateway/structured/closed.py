"""vLLM's `disable_additional_properties`: objects hold the keys they declare and no others."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_DECIDED = ("additionalProperties", "patternProperties", "unevaluatedProperties")


def closed(schema: dict[str, object]) -> dict[str, object]:
    """A copy in which every schema that declares `properties`, and nothing about others, has `additionalProperties: false`.

    For a schema within `grammar.limits`.
    """
    copy: dict[str, object] = orjson.loads(orjson.dumps(schema))
    waiting: list[object] = [copy]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        waiting.extend(_parts(part))
        if "properties" in part and not any(key in part for key in _DECIDED):
            part["additionalProperties"] = False
    return copy


def _parts(schema: dict[str, object]) -> Iterator[object]:
    for keyword in _NAMED:
        named = schema.get(keyword)
        if isinstance(named, dict):
            yield from named.values()
    for keyword in _LISTED:
        listed = schema.get(keyword)
        if isinstance(listed, list):
            yield from listed
    for keyword in _SINGLE:
        yield schema.get(keyword)

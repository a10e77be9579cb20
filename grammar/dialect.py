"""A client's schema in the words of the one draft it is checked by, meaning what `contract` takes it to mean.

Clients mix dialects: OpenAPI's `nullable`, draft 7's lists under `items`, `$schema` of somebody's own. And draft 7 lets a
validator assert `contentEncoding`, which nowhere else is more than a remark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LATEST = "https://json-schema.org/draft/2020-12/schema"
KNOWN = frozenset(
    {
        "http://json-schema.org/draft-04/schema",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        LATEST,
    }
)

Schema = dict[str, Any] | bool

_MAPS = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_VALUES = frozenset({"const", "default", "enum", "example", "examples"})
_REMARKS = ("contentEncoding", "contentMediaType")


def adapted(schema: Schema) -> Schema:
    """A copy. Raises RecursionError for what is nested hundreds deep."""
    if isinstance(schema, bool):
        return schema
    declared = schema.get("$schema")
    named = declared.rstrip("#") if isinstance(declared, str) else LATEST
    return _schema(schema, latest=named not in KNOWN or named == LATEST)


def _any(value: object, *, latest: bool) -> object:
    if isinstance(value, list):
        return [_any(part, latest=latest) for part in value]
    return _schema(value, latest=latest) if isinstance(value, dict) else value


def _schema(schema: Mapping[str, object], *, latest: bool) -> dict[str, object]:
    copy = {key: _under(key, part, latest=latest) for key, part in schema.items()}
    _drop_remarks(copy)
    _spell_out_nullable(copy)
    if latest:
        _rename_item_lists(copy)
    return copy


def _under(keyword: str, value: object, *, latest: bool) -> object:
    if keyword in _VALUES:
        return value
    if keyword in _MAPS and isinstance(value, dict):
        return {name: _any(part, latest=latest) for name, part in value.items()}
    return _any(value, latest=latest)


def _drop_remarks(schema: dict[str, object]) -> None:
    for keyword in _REMARKS:
        if isinstance(schema.get(keyword), str):
            del schema[keyword]
    declared = schema.get("$schema")
    if isinstance(declared, str) and declared.rstrip("#") not in KNOWN:
        del schema["$schema"]


def _spell_out_nullable(schema: dict[str, object]) -> None:
    """OpenAPI 3.0: null besides the type; an enum has to list it all the same."""
    named = schema.get("type")
    if schema.get("nullable") is True and isinstance(named, str | list):
        names = [named] if isinstance(named, str) else named
        schema["type"] = names if "null" in names else [*names, "null"]


def _rename_item_lists(schema: dict[str, object]) -> None:
    """Draft 2020-12 calls them `prefixItems`, and `items` what follows them."""
    if isinstance(schema.get("items"), list) and "prefixItems" not in schema:
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")

"""Which engines keep a rendered schema exactly.

llguidance keeps all that `render` writes. xgrammar was seen to fail on much of it (patterns match the spelling, lengths
forbid escapes, several alternatives of one type are confused), so it is offered for a small part only.
"""

from __future__ import annotations

from typing import Any

from ..spec import BackendName

_XGRAMMAR_KEYWORDS = frozenset(
    {
        "type",
        "enum",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "anyOf",
    }
    | {"minimum", "maximum", "$ref", "$defs"}
)


def engines(schema: dict[str, Any]) -> tuple[BackendName, ...]:
    """Best first."""
    return ("llguidance", "xgrammar") if _xgrammar(schema) else ("llguidance",)


def _xgrammar(schema: dict[str, Any]) -> bool:
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, bool):
            return False
        if not each.keys() <= _XGRAMMAR_KEYWORDS or not _plain_object(each) or not _plain_values(each):
            return False
        if each.get("type") == "array" and "items" not in each:
            return False
        waiting.extend(each.get("properties", {}).values())
        waiting.extend(each.get("$defs", {}).values())
        waiting.extend(each.get("anyOf", []))
        waiting.extend(each[key] for key in ("items",) if key in each)
    return True


def _plain_object(schema: dict[str, Any]) -> bool:
    return schema.get("type") != "object" or schema.get("additionalProperties") is False


def _plain_values(schema: dict[str, Any]) -> bool:
    if not all(isinstance(value, str) for value in schema.get("enum", [])):
        return False
    bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
    return all(schema["type"] == "integer" and isinstance(bound, int) for bound in bounds)

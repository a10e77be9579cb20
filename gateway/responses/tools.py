"""What Responses say of tools in a way of their own: `tool_choice`, and `text.format` beside it."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidRequest
from ..openai.fields import missing, unknown, wrong_type
from ..structured.source import Source
from ..structured.wishes import SchemaWish, Wish
from ..tools.choice import NO_CALLS, ToolChoice, read_choice
from ..tools.offer import Offer

_FORMATS = {
    "text": {"type"},
    "json_object": {"type"},
    "json_schema": {"type", "name", "description", "schema", "strict"},
}
_FORMAT = "text.format"
MAX_NAME = 64


def read_tool_choice(value: object, parallel: bool | None, offer: Offer) -> ToolChoice:
    """Clients say `auto` and whether calls may be parallel where there are no tools, too. Raises InvalidRequest."""
    if not offer.tools and value in (None, "auto", "none"):
        return NO_CALLS
    return read_choice(_nested(value), parallel if offer.tools else None, offer.tools)


def _nested(value: object) -> object:
    """A choice as chat has it: what it is about is in an object of its own."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if kind == "allowed_tools":
        listed = value.get("tools")
        tools = [_nested(tool) for tool in listed] if isinstance(listed, list) else listed
        return {"type": kind, kind: {**_rest(value), "tools": tools}}
    return {"type": kind, kind: _rest(value)} if kind in ("function", "custom") else value


def _rest(value: dict[str, Any]) -> dict[str, Any]:
    return {name: field for name, field in value.items() if name != "type"}


def read_format(value: object) -> Wish | None:
    """`text.format`: None for free text. Raises InvalidRequest."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type(_FORMAT, "an object", value)
    given = {name: field for name, field in value.items() if field is not None}
    kind = given.get("type")
    if kind is None:
        raise missing(f"{_FORMAT}.type")
    if kind not in _FORMATS:
        raise InvalidRequest(
            f"Invalid value: '{str(kind)[:50]}'. Supported values are: 'json_object', 'json_schema', and 'text'.",
            param=f"{_FORMAT}.type",
        )
    for name in given.keys() - _FORMATS[kind]:
        raise unknown(f"{_FORMAT}.{name}")
    if kind == "text":
        return None
    if kind == "json_object":
        return SchemaWish(Source(_FORMAT, _FORMAT), {"type": "object"}, "enforced")
    return _json_schema(given)


def _json_schema(given: dict[str, Any]) -> SchemaWish:
    for name, expected, kind in (("name", str, "a string"), ("schema", dict, "an object")):
        at = f"{_FORMAT}.{name}"
        if name not in given:
            raise missing(at)
        if not isinstance(given[name], expected):
            raise wrong_type(at, kind, given[name])
    strict = given.get("strict", False)
    if not isinstance(strict, bool):
        raise wrong_type(f"{_FORMAT}.strict", "a boolean", strict)
    if len(given["name"]) > MAX_NAME:
        raise InvalidRequest(
            f"Invalid '{_FORMAT}.name': longer than {MAX_NAME} characters.",
            param=f"{_FORMAT}.name",
            code="string_above_max_length",
        )
    source = Source(
        f"{_FORMAT}.schema", f"schema for response_format '{given['name']}'", code="invalid_json_schema"
    )
    return SchemaWish(source, given["schema"], "openai" if strict else "checked")

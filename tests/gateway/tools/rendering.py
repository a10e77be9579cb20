"""Calls written the way each family does, from the arguments' values: what grammar and parser are held against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.tools.arguments.elements import Elements
from gateway.tools.arguments.gemma import Gemma
from gateway.tools.arguments.json_object import JsonObject
from gateway.tools.arguments.pythonic import Pythonic
from gateway.tools.arguments.style import ToolShape
from gateway.tools.family import Family
from gateway.tools.shapes import Frame, Shape, Slot

Values = Mapping[str, Any]


def calls(family: Family, some: Sequence[tuple[ToolShape, Values]], *, spelling: int = 0) -> str:
    """A run of calls with what is around it."""
    shape = (family.call, *family.spellings)[spelling]
    each = [
        fill(
            shape,
            {Slot.NAME: tool.name, Slot.NUMBER: str(i), Slot.ARGUMENTS: arguments(family, tool, values)},
        )
        for i, (tool, values) in enumerate(some)
    ]
    return fill(family.section.open) + family.between.join(each) + fill(family.section.close)


def fill(shape: Shape, values: Mapping[Slot, str] | None = None) -> str:
    return "".join(
        piece if isinstance(piece, str) else (values or {})[piece] if isinstance(piece, Slot) else piece.text
        for piece in shape
    )


def arguments(family: Family, tool: ToolShape, values: Values) -> str:
    match family.style:
        case JsonObject():
            return json.dumps(values, ensure_ascii=False)
        case Pythonic():
            return ", ".join(f"{key}={_python(value)}" for key, value in values.items())
        case Gemma():
            return _gemma(values)
        case Elements() as style:
            return _elements(style, tool.schema, values)
    raise AssertionError(family.style)


def _python(value: Any) -> str:
    words = {True: "True", False: "False", None: "None"}
    return words[value] if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _gemma(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case dict():
            return "{" + ",".join(f"{key}:{_gemma(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)


def _elements(style: Elements, schema: Mapping[str, Any], values: Values) -> str:
    properties = schema.get("properties", {})
    return "".join(
        _element(style, style.field, properties.get(key, {}), value, key) for key, value in values.items()
    )


def _element(style: Elements, frame: Frame, schema: Mapping[str, Any], value: Any, key: str = "") -> str:
    types = style.types or dict.fromkeys(("string", "number", "boolean", "null", "object", "array"), "")
    match value:
        case str():
            type_, text = types["string"], value
        case dict() if style.item is not None and schema.get("properties"):
            type_, text = types["object"], _elements(style, schema, value)
        case list() if style.item is not None and "items" in schema:
            items = [_element(style, style.item, schema["items"], item) for item in value]
            type_, text = types["array"], "".join(items)
        case _:
            type_, text = _json_type(style, types, value), json.dumps(value, ensure_ascii=False)
    for character, entity in style.escapes:
        key = key.replace(character, entity)
    slots = {Slot.KEY: key, Slot.TYPE: type_}
    return fill(frame.open, slots) + text + fill(frame.close, slots)


def _json_type(style: Elements, types: Mapping[str, str], value: Any) -> str:
    if style.item is not None:
        return types["number"]
    match value:
        case bool():
            return types["boolean"]
        case None:
            return types["null"]
        case dict():
            return types["object"]
        case list():
            return types["array"]
    return types["number"]

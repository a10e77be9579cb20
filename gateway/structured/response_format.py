"""`response_format`: OpenAI's three types, and what llama.cpp, SGLang and vLLM add to them.

OpenAI names the inner field in the message and, since clients look there, the outer one in `param`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import InvalidRequest
from ..openai.fields import kind
from . import peers
from .source import Source
from .wishes import SchemaWish, TagWish, Wish

FIELD = "response_format"
MAX_NAME = 64
_NAME = re.compile("[a-zA-Z0-9_-]+")
_KEYS = {
    "text": {"type"},
    "json_object": {"type", "schema"},
    "json_schema": {"type", "json_schema", "schema"},
    "structural_tag": {"type", "structures", "triggers", "format"},
}


def read(value: object, param: str) -> Wish | None:
    """Raises InvalidRequest."""
    if isinstance(value, str):
        raise InvalidRequest(f"'{value[:100]}' is not of type 'object' - '{FIELD}'", param=FIELD, code=None)
    asked = _object(value, FIELD)
    type_ = _type(asked)
    for key in asked.keys() - _KEYS[type_]:
        raise InvalidRequest(
            f"Unknown parameter: '{FIELD}.{key[:100]}'.", param=FIELD, code="unknown_parameter"
        )
    if type_ == "text":
        return None
    if type_ == "structural_tag":
        return TagWish(Source(FIELD, f"structural tag in '{FIELD}'"), asked)
    if asked.get("schema") is not None:  # llama.cpp's
        if asked.get("json_schema") is not None:
            raise InvalidRequest(
                f"'{FIELD}.schema' and '{FIELD}.json_schema' exclude each other.",
                param=FIELD,
                code="conflicting_parameters",
            )
        return peers.json_schema(asked["schema"], f"{FIELD}.schema", reported=FIELD)
    if type_ == "json_object":
        return SchemaWish(Source(FIELD, FIELD), {"type": "object"}, "enforced")
    return _json_schema(asked.get("json_schema"))


def _type(asked: Mapping[str, object]) -> str:
    type_ = _present(asked, "type", f"{FIELD}.type")
    if not isinstance(type_, str):
        raise _wrong_type(f"{FIELD}.type", "a string", type_)
    if type_ not in _KEYS:
        supported = ", ".join(f"'{name}'" for name in sorted(_KEYS.keys() - {"text"}))
        raise InvalidRequest(
            f"Invalid value: '{type_[:100]}'. Supported values are: {supported}, and 'text'.", param=FIELD
        )
    return type_


def _json_schema(value: object) -> SchemaWish:
    path = f"{FIELD}.json_schema"
    if value is None:
        raise _missing(path)
    asked = _object(value, path)
    for key in asked.keys() - {"name", "description", "schema", "strict"}:
        raise InvalidRequest(
            f"Unknown parameter: '{path}.{key[:100]}'.", param=FIELD, code="unknown_parameter"
        )
    name = _name(_present(asked, "name", f"{path}.name"), f"{path}.name")
    description, strict = asked.get("description"), asked.get("strict")
    if description is not None and not isinstance(description, str):
        raise _wrong_type(f"{path}.description", "a string", description)
    if strict is not None and not isinstance(strict, bool):
        raise _wrong_type(f"{path}.strict", "a boolean", strict)
    schema = _object(_present(asked, "schema", f"{path}.schema"), f"{path}.schema")
    source = Source(FIELD, f"schema for {FIELD} '{name}'", code=None)
    return SchemaWish(source, schema, "openai" if strict else "checked")


def _name(name: object, path: str) -> str:
    if not isinstance(name, str):
        raise _wrong_type(path, "a string", name)
    if len(name) > MAX_NAME:
        raise InvalidRequest(
            f"Invalid '{path}': string too long. Expected a string with maximum length {MAX_NAME}, "
            f"but got a string with length {len(name)} instead.",
            param=FIELD,
            code="string_above_max_length",
        )
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"Invalid '{path}': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            param=FIELD,
        )
    return name


def _object(value: object, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong_type(path, "an object", value)
    return value


def _present(asked: Mapping[str, object], key: str, path: str) -> object:
    if asked.get(key) is None:
        raise _missing(path)
    return asked[key]


def _missing(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{path}'.", param=FIELD, code="missing_required_parameter"
    )


def _wrong_type(path: str, expected: str, value: object) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid type for '{path}': expected {expected}, but got {kind(value)} instead.",
        param=FIELD,
        code="invalid_type",
    )

"""How a dialect writes down one tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidRequest
from ..openai.fields import missing, unknown, wrong_type

Given = tuple[str, dict[str, Any], str]
"""`function` or `custom`, the fields of the tool, and the path at which errors name them."""


@dataclass(frozen=True, slots=True)
class ToolDialect:
    """`given` takes an item at a path apart; it may raise InvalidRequest. `schema` is the field of a function's parameters.
    `nested_grammar`: the grammar of a custom tool is an object of its own in `format`."""

    name: str
    given: Callable[[object, str], Given]
    schema: str = "parameters"
    nested_grammar: bool = True


def _nested(item: object, at: str) -> Given:
    """`{"type": kind, kind: {…}}`."""
    given, kind = _typed(item, at)
    for field in given.keys() - {"type", kind}:
        if given[field] is not None:
            raise unknown(f"{at}.{field}")
    inner = given.get(kind)
    if not isinstance(inner, dict):
        at = f"{at}.{kind}"
        raise missing(at) if inner is None else wrong_type(at, "an object", inner)
    return kind, inner, f"{at}.{kind}"


def _flat(item: object, at: str) -> Given:
    """`{"type": kind, …}`."""
    given, kind = _typed(item, at)
    return kind, {field: value for field, value in given.items() if field != "type"}, at


def _typed(item: object, at: str) -> tuple[dict[str, Any], str]:
    if not isinstance(item, dict):
        raise wrong_type(at, "an object", item)
    kind = item.get("type")
    if kind is None:
        raise missing(f"{at}.type")
    if kind not in ("function", "custom"):
        raise InvalidRequest(
            f"Invalid value: '{str(kind)[:50]}'. Supported values are: 'function' and 'custom'.",
            param=f"{at}.type",
        )
    return item, kind


CHAT = ToolDialect("chat", _nested)
RESPONSES = ToolDialect("responses", _flat, nested_grammar=False)

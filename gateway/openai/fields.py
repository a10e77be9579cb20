"""From a JSON object to a typed request, or one clear sentence about the first thing that is wrong with it.

`null` counts as absent everywhere. A field we know but do not serve is refused by name (`unsupported_parameter`), one
nobody knows too (`unknown_parameter`): a request that is not honoured in full is not honoured at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from ..errors import InvalidRequest, unsupported

WireT = TypeVar("WireT", bound="Wire")


class Wire(BaseModel):
    """A request body. Strict: `true` is not 1, "0.5" is not a number, NaN is nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: object) -> object:
        return {k: v for k, v in body.items() if v is not None} if isinstance(body, Mapping) else body


def parse(model: type[WireT], body: Mapping[str, object], not_served: Mapping[str, str]) -> WireT:
    """Validate a body. `not_served` holds the fields we refuse and why (may be empty). Raises InvalidRequest."""
    for name in body.keys() & not_served.keys():
        if body[name] is not None:
            raise unsupported(name, not_served[name] or None)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)[0]) from None


def path(location: tuple[int | str, ...]) -> str:
    """`("messages", 0, "content")` as OpenAI writes it: `messages[0].content`."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def wrong_type(param: str, expected: str, value: object) -> InvalidRequest:
    return InvalidRequest(
        f"Invalid type for '{param}': expected {expected}, but got {kind(value)} instead.",
        param=param,
        code="invalid_type",
    )


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def unknown(param: str) -> InvalidRequest:
    param = param[:100]
    return InvalidRequest(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")


def kind(value: object) -> str:
    """What JSON calls a value, with its article."""
    if value is None:
        return "null"
    for types, name in _KINDS:
        if isinstance(value, types):
            return name
    return "something else"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "a boolean"),
    (int, "an integer"),
    (float, "a decimal"),
    (str, "a string"),
    ((list, tuple), "an array"),
    (dict, "an object"),
)

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_SENTENCES = {
    "extra_forbidden": ("Unknown parameter: '{}'.", "unknown_parameter"),
    "missing": ("Missing required parameter: '{}'.", "missing_required_parameter"),
}

_BOUNDS = {
    "greater_than_equal": ("below_min_value", ">=", "ge"),
    "greater_than": ("below_min_value", ">", "gt"),
    "less_than_equal": ("above_max_value", "<=", "le"),
    "less_than": ("above_max_value", "<", "lt"),
}


def _explain(error: ErrorDetails) -> InvalidRequest:
    param = path(error["loc"])[:100]
    fault = error["type"]
    if fault in _EXPECTED:
        return wrong_type(param, _EXPECTED[fault], error["input"])
    if fault in _BOUNDS:
        return _out_of_bounds(param, error)
    message, code = _SENTENCES.get(fault, ("Invalid value for '{}'.", "invalid_value"))
    return InvalidRequest(message.format(param), param=param, code=code)


def _out_of_bounds(param: str, error: ErrorDetails) -> InvalidRequest:
    side, sign, name = _BOUNDS[error["type"]]
    value = error["input"]
    number = "integer" if isinstance(value, int) else "decimal"
    return InvalidRequest(
        f"Invalid '{param}': expected a value {sign} {error['ctx'][name]}, but got {value} instead.",
        param=param,
        code=f"{number}_{side}",
    )

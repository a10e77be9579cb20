"""`chat_template_kwargs`: variables a client hands to the chat template, such as `enable_thinking`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from ..errors import InvalidRequest
from ..template_sandbox import OWN_VARIABLES
from .fields import wrong_type

MAX_VARIABLES = 32
MAX_BYTES = 16 * 1024
"""Of their JSON text together: switches, names and short lists, not another prompt."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_AT = "chat_template_kwargs"


def read_template_kwargs(value: object, reserved: Mapping[str, str]) -> dict[str, object]:
    """The variables by name. `reserved` holds more names that are not the client's. Raises InvalidRequest."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type(_AT, "an object", value)
    if len(value) > MAX_VARIABLES:
        raise InvalidRequest(
            f"Invalid '{_AT}': at most {MAX_VARIABLES} entries, but got {len(value)}.",
            param=_AT,
            code="object_above_max_properties",
        )
    for name in value:
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"Invalid '{_AT}': '{name[:64]}' is not the name of a variable.", param=_AT)
        if name in OWN_VARIABLES or name in reserved:
            raise InvalidRequest(f"Invalid '{_AT}': '{name}' is set by the server.", param=f"{_AT}.{name}")
    _check_size(value)
    return value


def _check_size(value: dict[str, object]) -> None:
    try:
        size = len(orjson.dumps(value))
    except orjson.JSONEncodeError:  # the one way for what was JSON a moment ago: deeper than it will write
        raise InvalidRequest(f"Invalid '{_AT}': nested too deeply.", param=_AT) from None
    if size > MAX_BYTES:
        raise InvalidRequest(
            f"Invalid '{_AT}': longer than {MAX_BYTES} bytes.", param=_AT, code="string_above_max_length"
        )

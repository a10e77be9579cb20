"""The call formats of the model families that are known, and which of them a chat template speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from grammar.spec import Marker

from .arguments.json_object import JsonObject
from .family import Family
from .shapes import Slot

NAME, NUMBER, ARGUMENTS = Slot.NAME, Slot.NUMBER, Slot.ARGUMENTS
JSON = JsonObject()

QWEN_3 = Family(
    name="qwen_3",
    call=(
        Marker("<tool_call>"),
        '\n{"name": "',
        NAME,
        '", "arguments": ',
        ARGUMENTS,
        "}\n",
        Marker("</tool_call>"),
    ),
    between="\n",
    style=JSON,
)
HERMES = replace(QWEN_3, name="hermes")

DEFAULT: Final = HERMES
"""For models whose template knows no tools."""

FAMILIES: Final[Mapping[str, Family]] = {family.name: family for family in (HERMES, QWEN_3)}


def detect(template: str) -> Family | None:
    """The family that a chat template's source writes calls for; None if it knows no tools."""
    return QWEN_3 if "<tool_call>" in template else None

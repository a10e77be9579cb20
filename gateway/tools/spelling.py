"""Calls in a family's format, for prompts: those of the history, and one to show how it is done.

Only for families that write arguments as JSON. A template that cannot show calls belongs to a model that was taught none,
and of such a model JSON can be expected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..template_sandbox import to_json
from .arguments.json_object import JsonObject
from .families import DEFAULT
from .family import Family
from .shapes import Slot, filled


def can_spell(family: Family) -> bool:
    return isinstance(family.style, JsonObject)


def call_writer(family: Family) -> Callable[[Sequence[tuple[str, Any]]], str]:
    """Writes a run of calls, each a name and arguments; as the default family does if this one cannot be spelled."""
    spelled = family if can_spell(family) else DEFAULT

    def write(calls: Sequence[tuple[str, Any]]) -> str:
        each = [
            filled(spelled.call, {Slot.NAME: name, Slot.NUMBER: str(i), Slot.ARGUMENTS: to_json(arguments)})
            for i, (name, arguments) in enumerate(calls)
        ]
        return (
            filled(spelled.section.open, {}) + spelled.between.join(each) + filled(spelled.section.close, {})
        )

    return write


def example_call(family: Family) -> str:
    """A call with words in place of what differs."""
    spelled = family if can_spell(family) else DEFAULT
    words = {Slot.NAME: "NAME", Slot.NUMBER: "0", Slot.ARGUMENTS: '{"PARAMETER": VALUE}'}
    return filled(spelled.section.open, {}) + filled(spelled.call, words) + filled(spelled.section.close, {})

"""Which format the replies of a model have: told from its chat template, or by the operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .reasoning import REASONING_FORMATS, detect_reasoning
from .tools.families import DEFAULT, FAMILIES, detect
from .tools.family import Family


class UnknownFormat(ValueError):
    """`str(error)` is one line for the operator."""


def reply_format(template: str | None, *, tools: str = "auto", reasoning: str = "auto") -> Family:
    """The family of a model with this template, None for one that has none; names of formats overrule it.

    Raises UnknownFormat.
    """
    return _with_thoughts(_family(template or "", tools), template or "", reasoning)


def _family(template: str, name: str) -> Family:
    if name == "auto":
        return detect(template) or DEFAULT
    if name not in FAMILIES:
        raise UnknownFormat(f"there is no tool format '{name}': {_listed(FAMILIES)}")
    return FAMILIES[name]


def _with_thoughts(family: Family, template: str, name: str) -> Family:
    if name == "none":
        return replace(family, thoughts=None)
    if name == "auto":
        marks = detect_reasoning(template)
        if marks is None:
            # where text is framed, thoughts are one of the frames, which no template need mention
            return family if family.framed else replace(family, thoughts=None)
    elif name in REASONING_FORMATS:
        marks = REASONING_FORMATS[name]
    else:
        raise UnknownFormat(f"there is no reasoning format '{name}': {_listed(REASONING_FORMATS)}, none")
    return family.thinking(marks.open, marks.close)


def _listed(names: Iterable[str]) -> str:
    return f"choose auto, {', '.join(sorted(names))}"

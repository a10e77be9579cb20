"""Which format the replies of a model have: told from its chat template, or by the operator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .chat_template import ChatTemplate
from .reasoning import REASONING_FORMATS, detect_reasoning
from .tools.families import DEFAULT, FAMILIES, detect, named
from .tools.family import Family
from .tools.shapes import marker_texts
from .tools.spelling import can_spell


class UnknownFormat(ValueError):
    """`str(error)` is one line for the operator."""


def reply_format(template: ChatTemplate | None, *, tools: str = "auto", reasoning: str = "auto") -> Family:
    """The family of a model with this template, None for one that has none; names of formats overrule it.

    Raises UnknownFormat.
    """
    source = "" if template is None else template.source
    described = template is None or not template.can.tools
    return _with_thoughts(_family(source, tools, described=described), source, reasoning)


def _family(source: str, name: str, *, described: bool) -> Family:
    """`described`: the template has no place for tools, so we tell of them and of the format of calls."""
    if name == "auto":
        found = detect(source) or DEFAULT
        return DEFAULT if described and not can_spell(found) else found
    family = named(name)
    if family is None:
        raise UnknownFormat(f"there is no tool format '{name}': {_listed(FAMILIES)}")
    if described and not can_spell(family):
        told = [known.name for known in FAMILIES.values() if can_spell(known)]
        raise UnknownFormat(
            f"a model whose template takes no tools cannot be told of '{name}': {_listed(told)}"
        )
    return family


def _with_thoughts(family: Family, source: str, name: str) -> Family:
    if name == "none":
        return replace(family, thoughts=None)
    if name == "auto":
        if _writes_thoughts(family, source):
            return family
        marks = detect_reasoning(source)
        if marks is None:
            return replace(family, thoughts=None)
    elif name in REASONING_FORMATS:
        marks = REASONING_FORMATS[name]
    else:
        raise UnknownFormat(f"there is no reasoning format '{name}': {_listed([*REASONING_FORMATS, 'none'])}")
    return family.thinking(marks.open, marks.close)


def _writes_thoughts(family: Family, source: str) -> bool:
    """Whether a template ends thoughts as the family does. Where all text is framed they are one of the frames, which no
    template need mention."""
    if family.thoughts is None or family.framed:
        return True
    return all(mark in source for mark in marker_texts(family.thoughts.close))


def _listed(names: Iterable[str]) -> str:
    return f"choose auto, {', '.join(sorted(names))}"

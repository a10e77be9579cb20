"""What a field asks for, read and not yet judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from grammar.spec import Grammar, Whitespace

from .source import Source

Demand = Literal["openai", "enforced", "checked"]
"""`openai`: OpenAI's strict subset, all of it enforced. `enforced`: any schema, all of it enforced. `checked`: any schema,
what is not enforced is checked at the end."""


@dataclass(frozen=True, slots=True)
class SchemaWish:
    """JSON that a schema accepts."""

    source: Source
    schema: dict[str, object]
    demand: Demand
    whitespace: Whitespace = "compact"


@dataclass(frozen=True, slots=True)
class GrammarWish:
    """What a pattern, a grammar or a list of choices accepts."""

    source: Source
    grammar: Grammar


@dataclass(frozen=True, slots=True)
class TagWish:
    """A structural tag, as parsed from JSON."""

    source: Source
    tag: Mapping[str, object]


Wish = SchemaWish | GrammarWish | TagWish

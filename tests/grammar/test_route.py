"""Which engine a grammar goes to."""

from __future__ import annotations

import pytest

from grammar.backends.route import candidates, make
from grammar.spec import (
    BackendName,
    Choice,
    Concat,
    Ebnf,
    Either,
    FreeText,
    Grammar,
    JsonSchema,
    Lark,
    Literal,
    Regex,
    Repeat,
)

from .cursors import BYTES

EBNF = Ebnf('root ::= "a"')


@pytest.mark.parametrize(
    ("grammar", "names"),
    [
        (JsonSchema("{}"), ("llguidance",)),
        (JsonSchema("{}", backends=("xgrammar", "llguidance")), ("xgrammar", "llguidance")),
        (EBNF, ("xgrammar",)),
        (Concat((FreeText(("x",)), Repeat(Either((Literal("x"), EBNF))))), ("xgrammar",)),
        (Concat((Literal("x"), JsonSchema("{}"))), ("llguidance",)),
        (Regex("a"), ("llguidance",)),
        (Lark('start: "a"'), ("llguidance",)),
        (Choice(("yes", "no")), ("outlines", "llguidance")),
        (Choice(("yes", "yes and no")), ("llguidance",)),
        (Choice(tuple(map(str, range(1000, 2000)))), ("llguidance",)),
    ],
)
def test_candidates(grammar: Grammar, names: tuple[BackendName, ...]) -> None:
    assert candidates(grammar) == names
    if not isinstance(grammar, JsonSchema):
        assert all(make(name, BYTES).takes(grammar) for name in names)


@pytest.mark.parametrize("name", ["llguidance", "xgrammar", "outlines"])
def test_make(name: BackendName) -> None:
    assert make(name, BYTES).name == name

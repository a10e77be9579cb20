"""Strings without quotes: which the grammar allows, and where they end."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.tools.families import GEMMA_4, GLM_4_7, QWEN_3_CODER
from gateway.tools.family import Family
from gateway.tools.structure import gaps, structure

from .rendering import calls
from .replies import read_all_ways, tool
from .test_formats import refused, specials_of

TABLE: list[tuple[dict[str, Any], str, bool]] = [
    ({"maxLength": 3}, "abc", True),
    ({"maxLength": 3}, "", True),
    ({"maxLength": 3}, "a\nb", True),
    ({"maxLength": 3}, "éé😀", True),
    ({"maxLength": 3}, "abcd", False),
    ({"minLength": 2}, "ab", True),
    ({"minLength": 2}, "a", False),
    ({"minLength": 2, "maxLength": 40}, "a <b> </c> " * 3, True),
    ({"pattern": "^[a-z]+$"}, "abc", True),
    ({"pattern": "^[a-z]+$"}, "", False),
    ({"pattern": "^[a-z]+$"}, "abc1", False),
    ({"pattern": "^(?:a|b/c)$"}, "b/c", True),
    ({"pattern": "^(?:a|b/c)$"}, "b", False),
    ({"pattern": "^[^@]+@[^@]+$"}, "me <x>@y\n", True),
    ({"pattern": "^[^@]+@[^@]+$"}, "me", False),
    ({"pattern": "^.+$", "maxLength": 5}, "< x >", True),
    ({"pattern": "^.+$", "maxLength": 5}, "< x >.", False),
    ({"pattern": '^"\\\\?/$'}, '"\\/', True),
    ({"enum": ["a", "b\n"]}, "b\n", True),
    ({"enum": ["a", "b\n"]}, "b", False),
    ({"const": "x"}, "x", True),
    ({"const": "x"}, "y", False),
    ({}, "\n\n x \n", True),
]
FAMILIES = [QWEN_3_CODER, GLM_4_7, GEMMA_4]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(("keywords", "text", "right"), TABLE)
def test_constraints_on_strings_hold(
    family: Family, keywords: dict[str, Any], text: str, right: bool
) -> None:
    schema = keywords if {"enum", "const"} & keywords.keys() else {"type": "string", **keywords}
    shape = tool("f", {"a": schema, "b": {"type": "integer"}}, ["a"])
    assert gaps(family, shape) == ()
    grammar = structure(family, [shape], mode="named", allowed=["f"])
    specials = specials_of(family, special=family is not QWEN_3_CODER)
    written = calls(family, [(shape, {"a": text, "b": 1})])
    assert (refused(grammar, written, specials) is None) == right
    reply = read_all_ways(family, [shape], written, specials=specials)
    assert reply.calls[0].value["a"] == text


@pytest.mark.parametrize("pattern", ["a+", "^a|b$", "^(?=a)b$", "^a\\b$"])
def test_patterns_that_cannot_be_held_to_are_named(pattern: str) -> None:
    shape = tool("f", {"x/y": {"type": "string", "pattern": pattern}})
    (gap,) = gaps(QWEN_3_CODER, shape)
    assert (gap.path, gap.keyword) == ("/properties/x~1y/pattern", "pattern")


def test_a_string_that_reads_as_another_type_is_named_where_that_has_to_fit() -> None:
    shape = tool("f", {"a": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3}]}})
    assert [gap.path for gap in gaps(QWEN_3_CODER, shape)] == ["/properties/a/anyOf/1"]
    optional = tool("f", {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}})
    assert gaps(QWEN_3_CODER, optional) == ()

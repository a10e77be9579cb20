"""The check of finished texts: the client's own schema, in its own draft, within bounded time and without the network."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar.errors import BadSchema, TooComplex
from grammar.validate import MAX_PROBLEMS, Validator

DRAFT7 = "http://json-schema.org/draft-07/schema#"
PAIR = {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False}


@pytest.mark.parametrize(
    ("schema", "text", "places"),
    [
        # (schema, text, where it is wrong and by which keyword)
        ({"type": "object"}, '{"a": 1}', []),
        (True, "1", []),
        (False, "1", [("", "")]),
        ({"type": "object"}, "[]", [("", "type")]),
        ({"properties": {"a/b": {"items": {"minimum": 3}}}}, '{"a/b": [5, 2]}', [("/a~1b/1", "minimum")]),
        ({"required": ["a", "b"]}, "{}", [("", "required"), ("", "required")]),
        ({"uniqueItems": True}, "[1, 1.0]", [("", "uniqueItems")]),
        ({"format": "date"}, '"2024-02-30"', [("", "format")]),
        ({"format": "no such format"}, '"x"', []),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "1", [("", "type")]),
        ({"not": {"const": 1}}, "1", [("", "not")]),
        (PAIR, '["a", 1]', []),
        (PAIR, '["a", 1, 2]', [("/2", "items")]),
        ({"$schema": DRAFT7, **PAIR}, '["a", "b"]', [("/1", "type")]),
        ({"$schema": DRAFT7, "prefixItems": [{"type": "string"}]}, "[1]", []),
        ({"prefixItems": [{"type": "string"}]}, "[1]", [("/0", "type")]),
        ({"$schema": "http://localhost:1/draft", "type": "null"}, "1", [("", "type")]),
        ({"type": "string", "nullable": True}, "null", []),
        ({"type": ["string"], "nullable": True, "enum": ["a"]}, "null", [("", "enum")]),
        ({"nullable": True, "minLength": 2}, '"a"', [("", "minLength")]),
        ({"$schema": DRAFT7, "contentEncoding": "base64"}, '"%"', []),
        ({"$schema": DRAFT7, "contentMediaType": "application/json"}, '"{"', []),
        (
            {"properties": {"contentEncoding": {"type": "null"}}},
            '{"contentEncoding": 1}',
            [("/contentEncoding", "type")],
        ),
        (
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **PAIR},
            '["a", 1, 2]',
            [("/2", "items")],
        ),
        ({"properties": {"enum": PAIR}}, '{"enum": [1]}', [("/enum/0", "type")]),
        ({"const": {"type": "null", "nullable": True}}, '{"type": "null", "nullable": true}', []),
        ({"$ref": "#/components/x", "components": {"x": {"type": "string", "nullable": True}}}, "null", []),
        ({"type": "integer"}, "1e400", []),
        ({"maximum": 5}, "1e99999999999999999999", [("", "maximum")]),
        ({"maximum": 5}, "-1e99999999999999999999", []),
        ({"type": "integer"}, "1" * 6000, []),
        ({"multipleOf": 0.01}, "19.99", []),
        ({"maxLength": 1}, r'"\ud83d"', []),
        ({"maxLength": 1}, r'"\ud83d\ude00"', []),
        ({"const": r"\ud83d"}, r'"\\ud83d"', []),
    ],
)
def test_problems(schema: Any, text: str, places: list[tuple[str, str]]) -> None:
    assert [(problem.path, problem.keyword) for problem in Validator(schema).problems(text)] == places


@pytest.mark.parametrize(
    "text", ["", "{", "nul", "{'a': 1}", "NaN", "[Infinity]", "1 2", '"\n"', "[" * 100_000]
)
def test_what_is_no_json_has_one_problem_and_no_keyword(text: str) -> None:
    (problem,) = Validator(True).problems(text)
    assert (problem.path, problem.keyword) == ("", "")


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    Validator({"type": "object", "minProperties": 1}).problems(text)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "strng"}, "/type"),
        ({"properties": {"a": {"minLength": -1}}}, "/properties/a/minLength"),
        ({"properties": ["a"]}, "/properties"),
        ({"pattern": "("}, "/pattern"),
        ({"$ref": "#/$defs/none"}, ""),
        ({"$ref": "http://localhost:1/schema.json"}, ""),
    ],
)
def test_what_is_no_schema_is_named(schema: Any, path: str) -> None:
    with pytest.raises(BadSchema) as caught:
        Validator(schema)
    assert caught.value.path == path


@pytest.mark.parametrize("depth", [300, 20_000])
def test_a_deep_schema_is_refused(depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    with pytest.raises(TooComplex):
        Validator(schema)


def test_a_pattern_that_backtracks_without_end_gives_up() -> None:
    begun = time.perf_counter()
    problems = Validator({"pattern": r"^(?=(a+)+$)(a|aa)+\1$"}).problems('"' + "a" * 5000 + 'b"')
    assert problems
    assert time.perf_counter() - begun < 1.0


def test_only_the_first_problems_are_told() -> None:
    problems = Validator({"items": {"type": "string"}}).problems(str(list(range(1000))))
    assert len(problems) == MAX_PROBLEMS

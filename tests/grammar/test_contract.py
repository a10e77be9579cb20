"""What the audit says of schemas: refusals by place, verdicts by keyword, the schema that is left for the engines."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from grammar.contract import audit
from grammar.errors import BadSchema, TooComplex

from .arrange import Rendered

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TREE = {"type": "object", "properties": {"child": {"$ref": "#/$defs/tree"}}, "required": ["child"]}

LONG_MAIL = r"^a{40}\.b@x$"

BAD: list[tuple[Any, str, str | None, str]] = [
    # schema, path, keyword, what the message says
    ("text", "", None, "an object, true or false"),
    (False, "", None, "No value satisfies"),
    ({"type": "strng"}, "", "type", "'strng', which is no type"),
    ({"type": 5}, "", "type", "not 5"),
    ({"type": []}, "", "type", "a list of names"),
    ({"properties": ["a"]}, "", "properties", "an object of schemas"),
    ({"properties": {"a": {"items": {"type": 1}}}}, "/properties/a/items", "type", "not 1"),
    ({"properties": {"a/b~": 3}}, "/properties/a~1b~0", None, "not 3"),
    ({"required": "a"}, "", "required", "names of properties"),
    ({"enum": []}, "", "enum", "empty"),
    ({"enum": 3}, "", "enum", "a list of values"),
    ({"minLength": -1}, "", "minLength", "zero or more"),
    ({"minLength": 1.5}, "", "minLength", "zero or more"),
    ({"minItems": True}, "", "minItems", "zero or more"),
    ({"minimum": "1"}, "", "minimum", "a number"),
    ({"multipleOf": 0}, "", "multipleOf", "above zero"),
    ({"minimum": 3, "maximum": 2}, "", "minimum", "leave no number"),
    ({"minimum": 2, "exclusiveMaximum": 2}, "", "minimum", "leave no number"),
    ({"minLength": 3, "maxLength": 2}, "", "minLength", "leave no string"),
    ({"minItems": 3, "maxItems": 2}, "", "minItems", "leave no array"),
    ({"minProperties": 3, "maxProperties": 2}, "", "minProperties", "leave no object"),
    ({"contains": {}, "minContains": 2, "maxContains": 1}, "", "maxContains", "leave no array"),
    ({"pattern": "["}, "", "pattern", "not a regular expression"),
    ({"pattern": "a{2,1}"}, "", "pattern", "counts down"),
    ({"patternProperties": {"(": {}}}, "", "patternProperties", "not a regular expression"),
    ({"$ref": "#/$defs/none"}, "", "$ref", "'#/$defs/none', which is not in the schema"),
    ({"$ref": "https://example.com/s.json"}, "", "$ref", "example.com"),
    ({"items": {"$ref": 3}}, "/items", "$ref", "a string"),
    ({"anyOf": []}, "", "anyOf", "at least one schema"),
    ({"allOf": {}}, "", "allOf", "at least one schema"),
    ({"items": [{}], "prefixItems": [{}]}, "", "items", "does not go with"),
    ({"minimum": 1, "exclusiveMinimum": True}, "", "exclusiveMinimum", "draft 4"),
    ({"$ref": "#"}, "", None, "applies itself"),
    ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "/anyOf/1", None, "applies itself"),
    ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, "/$defs/tree", None, "without an end"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "", None, "without an end"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "", None, "No value satisfies"),
    ({"type": "string", "enum": [1]}, "", None, "No value satisfies"),
    ({"not": {}}, "", None, "No value satisfies"),
    ({"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]}, "", None, "No value satisfies"),
    ({"type": "object", "required": ["a"], "properties": {"a": False}}, "", None, "No value satisfies"),
    ({"type": "string", "format": "email", "pattern": LONG_MAIL}, "", None, "No value satisfies"),
    (  # a mail address, though not in the form that decoding keeps
        {"type": "string", "oneOf": [{"format": "email", "pattern": LONG_MAIL}, {"pattern": LONG_MAIL}]},
        "",
        None,
        "No value satisfies",
    ),
]


@pytest.mark.parametrize(("schema", "path", "keyword", "says"), BAD)
def test_what_is_no_schema_is_refused_by_place(
    schema: Any, path: str, keyword: str | None, says: str
) -> None:
    with pytest.raises(BadSchema) as refused:
        audit(schema)
    assert (refused.value.path, refused.value.keyword) == (path, keyword)
    assert says in str(refused.value)


CHECKED: list[tuple[Any, list[str]]] = [
    ({"type": "array", "uniqueItems": True}, ["/uniqueItems"]),
    ({"type": "array", "contains": {"const": 1}}, ["/contains"]),
    ({"type": "object", "minProperties": 2}, ["/minProperties"]),
    ({"not": {"multipleOf": 2}}, ["/not"]),
    ({"not": {"type": "integer"}}, ["/not"]),
    ({"type": "string", "pattern": "(a)\\1"}, ["/pattern"]),
    ({"type": "string", "pattern": "\\bword\\b"}, ["/pattern"]),
    ({"type": "string", "format": "regex"}, ["/format"]),
    ({"format": "hostname", "enum": ["xn--bcher-kva", 1]}, ["/format"]),
    ({"const": 9007199254740993}, ["/const"]),
    ({"type": "integer", "minimum": -(2**63)}, ["/minimum"]),
    ({"properties": {"a": {"items": {"uniqueItems": True}}}}, ["/properties/a/items/uniqueItems"]),
    ({"properties": {"a~/": {"uniqueItems": True}}}, ["/properties/a~0~1/uniqueItems"]),
]


@pytest.mark.parametrize(("schema", "paths"), CHECKED)
def test_what_is_only_checked_is_named(schema: Any, paths: list[str]) -> None:
    contract = audit(schema)
    assert [verdict.path for verdict in contract.checked] == paths
    assert all(verdict.reason and verdict.path.endswith(verdict.keyword) for verdict in contract.checked)


ANNOTATIONS: list[tuple[Any, list[str]]] = [
    ({"title": "t", "type": "null", "x-guidance": {"lenient": True}}, ["/title", "/x-guidance"]),
    ({"type": "string", "format": "color"}, ["/format"]),
    ({"then": {"type": "null"}}, ["/then"]),
    ({"minContains": 2}, ["/minContains"]),
    ({"uniqueItems": False}, ["/uniqueItems"]),
    ({"additionalItems": False}, ["/additionalItems"]),
    ({"nullable": True}, ["/nullable"]),
    (
        {
            "$schema": DRAFT_7,
            "$ref": "#/definitions/a",
            "maxLength": 1,
            "definitions": {"a": {"type": "string"}},
        },
        ["/$schema", "/definitions", "/maxLength"],
    ),
]


@pytest.mark.parametrize(("schema", "paths"), ANNOTATIONS)
def test_what_says_nothing_is_an_annotation(schema: Any, paths: list[str]) -> None:
    contract = audit(schema)
    assert [verdict.path for verdict in contract.verdicts if verdict.outcome == "annotation"] == paths
    assert not contract.checked


MOST = 10**18
WHOLE = {"type": "integer", "minimum": -MOST, "maximum": MOST}

WRITTEN: list[tuple[Any, Any]] = [
    (True, {}),
    ({}, {}),
    ({"type": "string", "title": "x", "x-guidance": {}}, {"type": "string"}),
    ({"type": ["integer", "null"]}, {"anyOf": [{"type": "null"}, WHOLE]}),
    ({"type": "integer", "nullable": True}, {"anyOf": [{"type": "null"}, WHOLE]}),
    ({"type": "number", "multipleOf": 1}, WHOLE),
    (
        {"type": "integer", "minimum": 0.5, "exclusiveMaximum": 4},
        {"type": "integer", "minimum": 1, "maximum": 3},
    ),
    (
        {"enum": ["a", 1, "a", 1.0, None], "type": ["string", "null"]},
        {"anyOf": [{"type": "null"}, {"enum": ["a"]}]},
    ),
    ({"type": "string", "pattern": "foo"}, {"type": "string", "pattern": "foo"}),
    ({"type": "string", "pattern": "^\\d$"}, {"type": "string", "pattern": "^[0-9]$"}),
    (
        {"type": "array", "items": [{"type": "null"}], "additionalItems": False},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "maxItems": 1},
    ),
    (
        {"allOf": [{"properties": {"a": {"type": "string"}}}, {"required": ["a"]}], "type": "object"},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "patternProperties": {r"^[\s\S]*$": True},
            "additionalProperties": False,
            "required": ["a"],
        },
    ),
    (
        {"type": "object", "additionalProperties": {"type": "null"}},
        {"type": "object", "additionalProperties": {"type": "null"}},
    ),
    (
        {"type": "object", "propertyNames": {"pattern": "^x"}},
        {"type": "object", "patternProperties": {"^x": True}, "additionalProperties": False},
    ),
    (
        {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        {"anyOf": [{"type": ["null", "string"]}, WHOLE]},
    ),
    ({"not": {"type": ["object", "array"]}}, {"type": ["null", "boolean", "number", "string"]}),
    ({"oneOf": [{"format": "time"}, True], "enum": ["18:59:60-05:00", "a"]}, {"enum": ["a"]}),
    ({"not": {"format": "time"}, "enum": ["18:59:60-05:00", "a"]}, {"enum": ["a"]}),
    ({"format": "hostname", "enum": ["xn--bcher-kva", "a"]}, {"enum": ["a"]}),
    ({"not": {"not": {"type": "null"}}}, {"type": "null"}),
    (
        {"type": "integer", "not": {"const": 3}},
        {"anyOf": [{**WHOLE, "maximum": 2}, {**WHOLE, "minimum": 4}]},
    ),
    (
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 1, "uniqueItems": True},
        {"type": "array", "items": {"type": "boolean"}, "maxItems": 1},
    ),
    (
        {"type": "string", "minimum": 3, "items": {"type": "null"}},
        {"type": "string"},
    ),
    (
        {
            "$id": "http://a.b/c",
            "$ref": "d#e",
            "$defs": {"x": {"$id": "d", "$defs": {"y": {"$anchor": "e", "type": "null"}}}},
        },
        {"type": "null"},
    ),
    (
        {"$schema": DRAFT_4, "type": "number", "minimum": 0, "exclusiveMinimum": True},
        {"type": "number", "exclusiveMinimum": 0},
    ),
]


@pytest.mark.parametrize(("schema", "written"), WRITTEN)
def test_what_is_written_for_the_engines(schema: Any, written: Any) -> None:
    contract = audit(schema)
    assert not contract.checked
    assert json.loads(contract.grammar.schema) == written


def test_a_range_beyond_what_engines_can_tell_is_not_closed_by_the_usual_one() -> None:
    contract = audit({"type": "integer", "minimum": 2 * MOST})
    assert [verdict.path for verdict in contract.checked] == ["/minimum"]
    assert json.loads(contract.grammar.schema) == {"type": "integer"}


DECLARED: list[tuple[Any, Any]] = [
    ({"properties": {"a": {}}, "type": "object"}, ["a"]),
    ({"properties": {"a": {}}, "required": ["b"], "type": "object"}, ["a", "b"]),
    ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}], "type": "object"}, ["a", "b"]),
    ({"properties": {"a": {}, "b": False}, "type": "object"}, ["a"]),
]


@pytest.mark.parametrize(("schema", "keys"), DECLARED)
def test_keys_that_nobody_declared_are_not_made_up(schema: Any, keys: list[str]) -> None:
    written = json.loads(audit(schema, undeclared_keys=False).grammar.schema)
    assert list(written["properties"]) == keys
    assert written["additionalProperties"] is False
    assert "patternProperties" not in written


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"type": "object", "properties": {"a": {}}, "unevaluatedProperties": {}},
        {"type": "object", "properties": {"a": {}}, "minProperties": 2},
        {"type": "array", "items": {"not": {"required": ["a"]}}},
    ],
)
def test_objects_stay_open_where_the_schema_needs_or_welcomes_more(schema: Any) -> None:
    assert audit(schema, undeclared_keys=False) == audit(schema)


@pytest.mark.parametrize("name", ["\n", "a\x7f"])
def test_a_key_with_a_control_character_is_enforced_where_no_other_may_stand_in_for_it(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}}
    assert [verdict.path for verdict in audit(schema).checked] == ["/properties"]
    assert not audit({**schema, "additionalProperties": False}).checked


def test_alternatives_that_overlap_in_hundreds_of_ways_are_not_told_apart() -> None:
    """It took half a minute."""
    branches = [
        {"type": "object", "properties": {f"a{i}": {}, "b": {"minimum": i}}, "required": [f"a{i}"]}
        for i in range(200)
    ]
    assert [verdict.path for verdict in audit({"oneOf": branches}).checked] == ["/oneOf"]


def test_alternatives_within_alternatives_are_refused_before_they_are_written_out() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(10):
        schema = {"oneOf": [schema, {"type": "object", "properties": {"x": schema}, "required": ["x"]}]}
    with pytest.raises(TooComplex):
        audit(schema)


ORDERS: list[tuple[Any, list[str]]] = [
    ({"properties": {"b": {}, "a": {}}, "required": ["c", "a"]}, ["b", "a", "c"]),
    ({"allOf": [{"properties": {"x": {}}}], "properties": {"a": {}}}, ["x", "a"]),
    ({"properties": {"a": {}}, "allOf": [{"properties": {"x": {}, "a": {"type": "null"}}}]}, ["a", "x"]),
    (
        {"$ref": "#/$defs/base", "properties": {"z": {}}, "$defs": {"base": {"properties": {"b": {}}}}},
        ["b", "z"],
    ),
]


@pytest.mark.parametrize(("schema", "order"), ORDERS)
def test_keys_come_in_the_order_of_the_schema(schema: Any, order: list[str]) -> None:
    written = Rendered(json.loads(audit({**schema, "type": "object"}).grammar.schema))
    assert list(written.arranged(dict.fromkeys(sorted(order)))) == order


@pytest.mark.parametrize(
    ("schema", "backends"),
    [
        (
            {"type": "object", "properties": {"a": {"enum": ["x"]}}, "additionalProperties": False},
            ("llguidance", "xgrammar"),
        ),
        ({"type": "object"}, ("llguidance",)),
        ({"type": "string", "maxLength": 3}, ("llguidance",)),
        ({"type": "string", "pattern": "^a$"}, ("llguidance",)),
        ({"const": {"a": 1}}, ("llguidance",)),
    ],
)
def test_only_engines_that_keep_all_of_it_are_offered(schema: Any, backends: tuple[str, ...]) -> None:
    assert audit(schema).grammar.backends == backends


def test_a_key_beside_named_ones_has_one_spelling() -> None:
    """Engines tell additional keys from named ones by spelling; a pattern has them take the plain one only."""
    written = json.loads(audit({"type": "object", "properties": {"a": {"type": "string"}}}).grammar.schema)
    assert written["additionalProperties"] is False
    assert written["patternProperties"] == {r"^[\s\S]*$": True}


def one_inside_one(depth: int) -> Any:
    """A oneOf of itself, one level down, and of an object with that."""
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"oneOf": [schema, {"type": "object", "properties": {"a": schema}}]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"properties": {f"p{i}": {"minimum": i}, "q": {"maxLength": i}}} for i in range(40)]},
        {"allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(30)]},
        {"not": {"enum": [[i, {"k": i}] for i in range(100)]}},
        {"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(40)}},
        {"minProperties": 10, "properties": {f"a{i}": {} for i in range(40)}, "additionalProperties": False},
        {"patternProperties": {f"[{chr(97 + i)}{chr(98 + i)}]": {"minimum": i} for i in range(20)}},
        {"type": "string", "pattern": "^(?!.*" + "(a|b)" * 12 + ").*" + "[ab].{12}" + "$"},
        {"enum": [{"k": i, "v": [i]} for i in range(900)]},
        one_inside_one(10),
        one_inside_one(12),
    ],
)
def test_what_would_blow_up_is_cut_short(schema: Any) -> None:
    start = time.process_time()
    try:
        contract = audit(schema)
    except TooComplex:
        pass
    else:
        assert len(contract.grammar.schema) < 2_000_000
    assert time.process_time() - start < 3


def test_a_large_plain_schema_takes_no_second() -> None:
    """About a tenth of one; the bound leaves room for what shares the cores."""
    leaf = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "n": {"type": "integer"}},
    }
    schema = {
        "type": "object",
        "properties": {f"field{i}": {"type": "array", "items": leaf} for i in range(400)},
        "additionalProperties": False,
    }
    assert len(json.dumps(schema)) > 50_000
    start = time.process_time()
    assert not audit(schema).checked
    assert time.process_time() - start < 2


def test_a_long_chain_of_references_is_refused() -> None:
    chain = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(300)}
    with pytest.raises(TooComplex):
        audit({"$ref": "#/$defs/d0", "$defs": {**chain, "d300": {"type": "null"}}})

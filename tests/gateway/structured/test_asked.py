"""Every field that asks for a shape: what it comes down to, and what is said about one that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.structured.asked import ShapeFields
from gateway.structured.wishes import GrammarWish, SchemaWish, TagWish
from grammar.spec import Choice, Ebnf, Grammar, Lark, Regex

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "string"}, "a": {"type": "integer"}},
    "required": ["b"],
}
CLOSED = {**SCHEMA, "additionalProperties": False}
ANY = {"type": "object"}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
LEGACY = {"structures": [], "triggers": []}


def ask(**fields: Any) -> Any:
    return ShapeFields.model_validate(fields).wish()


def openai(**inner: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **inner}}
    }


def outputs(**inner: Any) -> dict[str, Any]:
    return {"structured_outputs": inner}


@pytest.mark.parametrize(
    ("fields", "param", "schema", "demand", "whitespace"),
    [
        (openai(), "response_format", SCHEMA, "checked", "compact"),
        (openai(strict=None, description="d"), "response_format", SCHEMA, "checked", "compact"),
        (openai(strict=False), "response_format", SCHEMA, "checked", "compact"),
        (openai(strict=True), "response_format", SCHEMA, "openai", "compact"),
        ({"response_format": {"type": "json_object"}}, "response_format", ANY, "enforced", "compact"),
        (
            {"response_format": {"type": "json_object", "schema": SCHEMA}},
            "response_format",
            SCHEMA,
            "enforced",
            "compact",
        ),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            "response_format",
            SCHEMA,
            "enforced",
            "compact",
        ),
        (outputs(json=SCHEMA), "structured_outputs.json", SCHEMA, "enforced", "compact"),
        (outputs(json=json.dumps(SCHEMA)), "structured_outputs.json", SCHEMA, "enforced", "compact"),
        (outputs(json_object=True), "structured_outputs.json_object", ANY, "enforced", "compact"),
        (
            outputs(
                json=SCHEMA,
                json_object=False,
                regex=None,
                whitespace_pattern=r"[\n ]*",
                disable_fallback=True,
            ),
            "structured_outputs.json",
            SCHEMA,
            "enforced",
            "compact",
        ),
        (
            outputs(json=SCHEMA, disable_any_whitespace=True),
            "structured_outputs.json",
            SCHEMA,
            "enforced",
            "compact",
        ),
        (
            outputs(json=SCHEMA, disable_any_whitespace=False),
            "structured_outputs.json",
            SCHEMA,
            "enforced",
            "flexible",
        ),
        (
            outputs(json=SCHEMA, disable_additional_properties=True),
            "structured_outputs.json",
            CLOSED,
            "enforced",
            "compact",
        ),
        ({"guided_json": SCHEMA}, "guided_json", SCHEMA, "enforced", "compact"),
        (
            {
                "guided_json": SCHEMA,
                "guided_whitespace_pattern": "[ ]?",
                "guided_decoding_backend": "xgrammar:no-fallback",
            },
            "guided_json",
            SCHEMA,
            "enforced",
            "compact",
        ),
        ({"json_schema": json.dumps(SCHEMA)}, "json_schema", SCHEMA, "enforced", "compact"),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA, "enforced", "compact"),
        ({"format": "json"}, "format", ANY, "enforced", "compact"),
        ({"format": SCHEMA}, "format", SCHEMA, "enforced", "compact"),
    ],
)
def test_schemas(fields: dict[str, Any], param: str, schema: object, demand: str, whitespace: str) -> None:
    wish = ask(**fields)
    assert isinstance(wish, SchemaWish)
    assert (wish.source.param, wish.schema, wish.demand, wish.whitespace) == (
        param,
        schema,
        demand,
        whitespace,
    )
    assert list(wish.schema) == list(schema)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("fields", "param", "grammar"),
    [
        ({"regex": "a+"}, "regex", Regex("a+")),
        ({"guided_regex": "a+"}, "guided_regex", Regex("a+")),
        (outputs(regex="a+"), "structured_outputs.regex", Regex("a+")),
        ({"guided_choice": ["a", "b", "a"]}, "guided_choice", Choice(("a", "b"))),
        (outputs(choice=["a", "b"]), "structured_outputs.choice", Choice(("a", "b"))),
        ({"ebnf": "start: x"}, "ebnf", Ebnf("start: x")),
        ({"grammar": 'root ::= "a"'}, "grammar", Ebnf('root ::= "a"')),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar", Ebnf('root ::= "a"')),
        (
            outputs(grammar='# x ::= y\nroot ::= "a"'),
            "structured_outputs.grammar",
            Ebnf('# x ::= y\nroot ::= "a"'),
        ),
        (outputs(grammar='start: "::="'), "structured_outputs.grammar", Lark('start: "::="')),
        (outputs(grammar='start: "a" // ::='), "structured_outputs.grammar", Lark('start: "a" // ::=')),
        ({"guided_grammar": 'start: "a" # ::='}, "guided_grammar", Lark('start: "a" # ::=')),
    ],
)
def test_grammars(fields: dict[str, Any], param: str, grammar: Grammar) -> None:
    wish = ask(**fields)
    assert isinstance(wish, GrammarWish)
    assert (wish.source.param, wish.grammar) == (param, grammar)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structural_tag": TAG}, "structural_tag"),
        ({"structural_tag": json.dumps(TAG)}, "structural_tag"),
        (outputs(structural_tag=json.dumps(TAG)), "structured_outputs.structural_tag"),
        ({"response_format": TAG}, "response_format"),
        ({"response_format": {"type": "structural_tag", **LEGACY}}, "response_format"),
    ],
)
def test_structural_tags(fields: dict[str, Any], param: str) -> None:
    wish = ask(**fields)
    assert isinstance(wish, TagWish)
    assert wish.source.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "guided_json": None, "structured_outputs": None},
        {"response_format": {"type": "text"}},
        {"guided_decoding_backend": "auto"},
    ],
)
def test_nothing_asked(fields: dict[str, Any]) -> None:
    assert ask(**fields) is None


FORMAT = "response_format"
OUTPUTS = "structured_outputs"
WRONG: list[tuple[dict[str, Any], str, str | None, str]] = [
    # (fields, param, code, message)
    ({FORMAT: "json_object"}, FORMAT, None, "'json_object' is not of type 'object' - 'response_format'"),
    (
        {FORMAT: []},
        FORMAT,
        "invalid_type",
        "Invalid type for 'response_format': expected an object, but got an array instead.",
    ),
    (
        {FORMAT: {}},
        FORMAT,
        "missing_required_parameter",
        "Missing required parameter: 'response_format.type'.",
    ),
    ({FORMAT: {"type": 1}}, FORMAT, "invalid_type", "Invalid type for 'response_format.type'"),
    (
        {FORMAT: {"type": "yaml"}},
        FORMAT,
        "invalid_value",
        "Invalid value: 'yaml'. Supported values are: 'json_object', 'json_schema', 'structural_tag', and 'text'.",
    ),
    (
        {FORMAT: {"type": "text", "x": 1}},
        FORMAT,
        "unknown_parameter",
        "Unknown parameter: 'response_format.x'.",
    ),
    (
        {FORMAT: {"type": "json_schema"}},
        FORMAT,
        "missing_required_parameter",
        "Missing required parameter: 'response_format.json_schema'.",
    ),
    (
        {FORMAT: {"type": "json_schema", "json_schema": "x"}},
        FORMAT,
        "invalid_type",
        "'response_format.json_schema'",
    ),
    (
        openai(name=None),
        FORMAT,
        "missing_required_parameter",
        "Missing required parameter: 'response_format.json_schema.name'.",
    ),
    (openai(name=5), FORMAT, "invalid_type", "'response_format.json_schema.name'"),
    (
        openai(name="bad name!"),
        FORMAT,
        "invalid_value",
        (
            "Invalid 'response_format.json_schema.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        ),
    ),
    (openai(name=""), FORMAT, "invalid_value", "string does not match pattern"),
    (openai(name="x\n"), FORMAT, "invalid_value", "string does not match pattern"),
    (
        openai(name="x" * 65),
        FORMAT,
        "string_above_max_length",
        "maximum length 64, but got a string with length 65",
    ),
    (openai(schema=None), FORMAT, "missing_required_parameter", "'response_format.json_schema.schema'"),
    (openai(schema=[]), FORMAT, "invalid_type", "'response_format.json_schema.schema'"),
    (openai(strict="yes"), FORMAT, "invalid_type", "'response_format.json_schema.strict'"),
    (openai(description=1), FORMAT, "invalid_type", "'response_format.json_schema.description'"),
    (openai(other=1), FORMAT, "unknown_parameter", "'response_format.json_schema.other'"),
    (
        {FORMAT: {"type": "json_schema", "schema": ANY, "json_schema": {"name": "x", "schema": ANY}}},
        FORMAT,
        "conflicting_parameters",
        "exclude each other",
    ),
    ({FORMAT: {"type": "json_object", "schema": 5}}, FORMAT, "invalid_type", "'response_format.schema'"),
    ({OUTPUTS: "x"}, OUTPUTS, "invalid_type", "expected an object"),
    (outputs(), OUTPUTS, "invalid_value", "asks for nothing"),
    (outputs(json_object=False), OUTPUTS, "invalid_value", "asks for nothing"),
    (outputs(disable_any_whitespace=True), OUTPUTS, "invalid_value", "asks for nothing"),
    (outputs(xml="a"), f"{OUTPUTS}.xml", "unknown_parameter", "structured_outputs.xml"),
    (
        outputs(regex="a", choice=["b"]),
        f"{OUTPUTS}.choice",
        "conflicting_parameters",
        "'structured_outputs.regex' and 'structured_outputs.choice'",
    ),
    (outputs(json_object=1), f"{OUTPUTS}.json_object", "invalid_type", "expected a boolean"),
    (outputs(json="{"), f"{OUTPUTS}.json", "invalid_value", "not JSON"),
    (outputs(json="[]"), f"{OUTPUTS}.json", "invalid_type", "expected a JSON schema"),
    (
        outputs(json=SCHEMA, disable_any_whitespace=1),
        f"{OUTPUTS}.disable_any_whitespace",
        "invalid_type",
        "a boolean",
    ),
    (
        outputs(json=SCHEMA, whitespace_pattern="x"),
        f"{OUTPUTS}.whitespace_pattern",
        "unsupported_parameter",
        "one blank",
    ),
    (outputs(regex=5), f"{OUTPUTS}.regex", "invalid_type", "expected a string"),
    (outputs(regex=""), f"{OUTPUTS}.regex", "invalid_value", "it is empty"),
    (outputs(choice=[]), f"{OUTPUTS}.choice", "empty_array", "empty array"),
    (outputs(choice=["a", 1]), f"{OUTPUTS}.choice[1]", "invalid_type", "expected a string"),
    (outputs(choice="ab"), f"{OUTPUTS}.choice", "invalid_type", "expected an array of strings"),
    (outputs(structural_tag="[]"), f"{OUTPUTS}.structural_tag", "invalid_type", "expected an object"),
    ({"structural_tag": "{"}, "structural_tag", "invalid_value", "not JSON"),
    (
        {"guided_whitespace_pattern": "[ ]?"},
        "guided_whitespace_pattern",
        "invalid_value",
        "only allowed with 'guided_json'",
    ),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": "x*"},
        "guided_whitespace_pattern",
        "unsupported_parameter",
        "one blank",
    ),
    (
        {"guided_decoding_backend": "other"},
        "guided_decoding_backend",
        "invalid_value",
        "expected one of auto",
    ),
    ({"format": "yaml"}, "format", "invalid_value", 'expected "json" or a JSON schema'),
    ({"format": True}, "format", "invalid_value", 'expected "json" or a JSON schema'),
    ({"json_schema": True}, "json_schema", "invalid_type", "expected a JSON schema"),
    (
        {"regex": "a", "response_format": {"type": "json_object"}},
        "regex",
        "conflicting_parameters",
        "'response_format' and 'regex' both say",
    ),
    (
        {"grammar": "a", "guided_json": SCHEMA, "format": "json"},
        "grammar",
        "conflicting_parameters",
        "'guided_json' and 'grammar' both say",
    ),
]


@pytest.mark.parametrize(("fields", "param", "code", "message"), WRONG)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, code: str | None, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask(**fields)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)
    assert message in caught.value.message


@pytest.mark.parametrize("depth", [300, 1000])
def test_a_schema_nested_deeply_is_closed_or_refused_without_a_crash(depth: int) -> None:
    schema: dict[str, Any] = dict(ANY)
    for _ in range(depth):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest) as caught:
        ask(**outputs(json=schema, disable_additional_properties=True))
    assert caught.value.code == "grammar_too_complex"


def test_closing_reaches_every_schema_and_only_schemas() -> None:
    inner = {"properties": {"properties": {"type": "string"}}}
    schema = {
        "$defs": {"d": inner},
        "anyOf": [inner, {"properties": {}, "additionalProperties": True}],
        "items": [inner],
        "properties": {"p": {"items": inner}, "enum": {"patternProperties": {"x": inner}, "properties": {}}},
        "const": inner,
    }
    shut = {**inner, "additionalProperties": False}
    assert ask(**outputs(json=schema, disable_additional_properties=True)).schema == {
        "$defs": {"d": shut},
        "anyOf": [shut, {"properties": {}, "additionalProperties": True}],
        "items": [shut],
        "properties": {"p": {"items": shut}, "enum": {"patternProperties": {"x": shut}, "properties": {}}},
        "const": inner,
        "additionalProperties": False,
    }
    assert inner == {"properties": {"properties": {"type": "string"}}}

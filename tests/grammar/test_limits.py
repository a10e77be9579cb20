"""What is refused before anything expensive is done with it, and that refusing is cheap."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar import limits, spec
from grammar.errors import BadSchema, TooComplex
from grammar.extent import DEEPEST, Extent, pattern_extent, text_extent
from grammar.limits import check_grammar, check_schema

BENCH = Path("../shared/data/jsonschemabench")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def strings(count: int) -> dict[str, Any]:
    return {f"p{index}": {"type": "string"} for index in range(count)}


SCHEMAS: dict[str, tuple[Callable[[], object], str, str | None, str]] = {
    # name: schema, path, keyword, part of the message
    "depth": (lambda: nested(33), "/properties/a" * 32, None, "64 levels"),
    "depth without end": (lambda: nested(100_000), "/properties/a" * 32, None, "64 levels"),
    "bytes": (lambda: {"description": "x" * 300_000}, "", None, "262,144 bytes"),
    "bytes of names": (lambda: {"x" * 300_000: True}, "", None, "262,144 bytes"),
    "values": (lambda: {"examples": [0] * 1_000_000}, "", None, "30,000 values"),
    "values of a list of schemas": (lambda: {"prefixItems": [{}] * 1_000_000}, "", None, "30,000 values"),
    "values of a constant": (lambda: {"const": [[0]] * 1_000_000}, "", None, "30,000 values"),
    "enum": (lambda: {"items": {"enum": list(range(100_000))}}, "/items", "enum", "100,000 values"),
    "enum text": (lambda: {"enum": ["x" * 20_000]}, "", "enum", "16,384 bytes"),
    "const text": (lambda: {"const": {"a": ["é" * 9_000]}}, "", "const", "16,384 bytes"),
    "enum texts": (lambda: {"enum": ["x" * 1_000 + str(i) for i in range(200)]}, "", None, "131,072 bytes"),
    "optional": (lambda: {"properties": strings(257)}, "", "properties", "256 of them"),
    "required": (
        lambda: {"anyOf": [{"properties": strings(2_600), "required": list(strings(2_600))}] * 2},
        "",
        None,
        "5,000 required",
    ),
    "long name": (lambda: {"properties": {"x" * 20_000: {}}}, "", "properties", "16,384 characters"),
    "branches": (lambda: {"oneOf": [{}] * 501}, "", "oneOf", "501 branches"),
    "pattern properties": (
        lambda: {"patternProperties": {f"^a{i}$": {} for i in range(65)}},
        "",
        "patternProperties",
        "65 patterns",
    ),
    "pattern bytes": (lambda: {"pattern": "a" * 5_000}, "", "pattern", "4,096 bytes"),
    "pattern depth": (lambda: {"pattern": "(" * 65 + ")" * 65}, "", "pattern", "64 levels"),
    "pattern never closed": (lambda: {"pattern": "(" * 65}, "", "pattern", "64 levels"),
    "repeat product": (lambda: {"pattern": "((a{100}){100}){100}"}, "", "pattern", "multiply"),
    "repeat of many digits": (lambda: {"pattern": "a{" + "9" * 4_000 + "}"}, "", "pattern", "multiply"),
    "positions": (lambda: {"pattern": "a{9999}" * 400}, "", "pattern", "20,000 positions"),
    "property pattern": (
        lambda: {"$defs": {"a~/b": {"patternProperties": {"(x{200}){200}": {}}}}},
        "/$defs/a~0~1b",
        "patternProperties",
        "multiply",
    ),
    "least": (
        lambda: {"prefixItems": [{}, {"minLength": 10**9}]},
        "/prefixItems/1",
        "minLength",
        "1,000,000",
    ),
    "multiple": (lambda: {"multipleOf": 999_983}, "", "multipleOf", "100,000"),
    "integer beyond 64 bits": (lambda: {"maximum": 10**30}, "/maximum", None, "64 bits"),
    "negative beyond 64 bits": (lambda: {"minimum": -(2**63) - 1}, "/minimum", None, "64 bits"),
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_schemas_beyond_a_limit_are_refused_at_once(case: str) -> None:
    make, path, keyword, message = SCHEMAS[case]
    schema = make()
    began = time.perf_counter()
    with pytest.raises(TooComplex, match=message) as refused:
        check_schema(schema)
    assert time.perf_counter() - began < 1.0
    assert (refused.value.path, refused.value.keyword) == (path, keyword)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        nested(31),
        {"properties": strings(256)},
        {"properties": strings(5_000), "required": list(strings(5_000))},
        {"enum": list(range(5_000))},
        {"enum": ["x" * 16_384]},
        {"pattern": "(.{0,100}){0,100}"},
        {"pattern": r"[{(]{3}\({9}\{"},
        {"multipleOf": 0.000_000_001},
        {"multipleOf": 10**9},
        {"maximum": 1.7e308},
        {"maximum": 2**64 - 1},
        {"maxLength": 9 * 10**18},
        # words of schemas where no schema is
        {"enum": [{"pattern": "((a{100}){100}){100}", "enum": list(range(4_000))}]},
        {"properties": {"pattern": {"type": "string"}, "enum": {"enum": ["a"]}}},
        {"default": {"multipleOf": 999_983}},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_schemas_within_the_limits_pass(schema: object) -> None:
    check_schema(schema)


@pytest.mark.parametrize("schema", [None, 5, "string", [{}], {"maximum": float("inf")}, {"const": "\ud800"}])
def test_what_is_no_schema_is_a_bad_schema(schema: object) -> None:
    with pytest.raises(BadSchema):
        check_schema(schema)


def tree(levels: int) -> spec.Grammar:
    grammar: spec.Grammar = spec.Literal("x")
    for _ in range(levels):
        grammar = spec.Concat((grammar,))
    return grammar


GRAMMARS: dict[str, tuple[Callable[[], spec.Grammar], str]] = {
    "schema text": (lambda: spec.JsonSchema('"' + "x" * 600_000 + '"'), "524,288 bytes"),
    "schema of brackets": (lambda: spec.JsonSchema("[" * 100_000), "96 levels"),
    "schema in a tree": (
        lambda: spec.Concat((spec.Literal("x"), spec.JsonSchema('{"pattern":"(a{200}){200}"}'))),
        "at /pattern",
    ),
    "regex": (lambda: spec.Regex("(a{200}){200}"), "multiply"),
    "EBNF brackets": (lambda: spec.Ebnf("root ::= " + "(" * 60_000 + '"a"'), "64 levels"),
    "EBNF bytes": (lambda: spec.Ebnf("root ::= " + '"a" ' * 60_000), "65,536 bytes"),
    "EBNF repetitions": (lambda: spec.Ebnf('root ::= (("a"{1,1000}){1,1000}){1,1000}'), "multiply"),
    "EBNF rules": (lambda: spec.Ebnf("\n".join(f"r{i} ::= r{i + 1}" for i in range(2_000))), "2,000 rules"),
    "Lark brackets": (lambda: spec.Lark("start: " + "[" * 60_000), "64 levels"),
    "Lark repetitions": (lambda: spec.Lark('start: ("a"~1..1000)~1000'), "multiply"),
    "Lark pattern": (lambda: spec.Lark("start: /(a{100}){100}/{2}"), "multiply"),
    "Lark rules": (lambda: spec.Lark("\n".join(f"r{i}: r{i + 1}" for i in range(2_000))), "2,000 rules"),
    "choices": (lambda: spec.Choice(tuple(map(str, range(5_001)))), "5,001 choices"),
    "choice": (lambda: spec.Choice(("x" * 20_000,)), "16,384 bytes"),
    "literals": (lambda: spec.Concat((spec.Literal("x" * 16_000),) * 9), "131,072 bytes"),
    "tree depth": (lambda: tree(64), "64 levels"),
    "tree depth without end": (lambda: tree(100_000), "64 levels"),
    "tree parts": (lambda: spec.Either((spec.Literal("x"),) * 10_000), "10,000 parts"),
    "tree repetitions": (
        lambda: spec.Repeat(spec.Concat((spec.Repeat(spec.Literal("x"), most=200),)), least=200),
        "multiply",
    ),
    "tree schemas": (
        lambda: spec.Concat((spec.JsonSchema(json.dumps({"description": "x" * 200_000})),) * 6),
        "1,048,576 bytes together",
    ),
}


@pytest.mark.parametrize("case", GRAMMARS)
def test_grammars_beyond_a_limit_are_refused_at_once(case: str) -> None:
    make, message = GRAMMARS[case]
    grammar = make()
    began = time.perf_counter()
    with pytest.raises(TooComplex, match=message):
        check_grammar(grammar)
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize("text", ["", "{", '{"type":"object"} x', "nul"])
def test_schema_text_that_is_not_json_is_a_bad_schema(text: str) -> None:
    with pytest.raises(BadSchema, match="not JSON"):
        check_grammar(spec.JsonSchema(text))


@pytest.mark.parametrize(
    "grammar",
    [
        tree(63),
        spec.Repeat(spec.Repeat(spec.Literal("x"), most=100), least=100, between=", "),
        spec.FreeText(("<tool_call>",)),
        # what normalising may make of a schema
        spec.JsonSchema(json.dumps({"patternProperties": {"^(?:" + "a|" * 5_000 + "b)$": {}}})),
        spec.JsonSchema(json.dumps({"anyOf": [{"properties": strings(400)}] * 2})),
        spec.JsonSchema(json.dumps({"description": "x" * 400_000})),
        spec.Marker("<tool_call>"),
        spec.Ebnf('root ::= "a"{3} [({"] # (((\n'),
        spec.Lark('start: a{1,100} | "(((" // (((\na: /[(]{3}/\n%import common.INT\n'),
    ],
)
def test_grammars_within_the_limits_pass(grammar: spec.Grammar) -> None:
    check_grammar(grammar)


def test_real_schemas_pass() -> None:
    if not BENCH.is_dir():
        pytest.skip("JSONSchemaBench is not here")
    count = 0
    for file in sorted(BENCH.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            check_schema(json.loads(line)["schema"])
            count += 1
    assert count > 400


@pytest.mark.parametrize(
    ("pattern", "extent"),
    [
        ("", Extent()),
        ("abc", Extent(positions=3)),
        ("a{3}b{2,5}c{4,}", Extent(product=5, positions=12)),
        ("(ab){3}", Extent(depth=1, product=3, positions=6)),
        ("((ab){3}c){2,4}", Extent(depth=2, product=12, positions=28)),
        ("a{3}{4}", Extent(product=12, positions=12)),
        ("(a|b)*c+d?", Extent(depth=1, positions=4)),
        (r"\(\{\}", Extent(positions=3)),
        ("[(a{9}]{2}", Extent(product=2, positions=2)),
        ("a{0}", Extent(positions=1)),
        ("a{,7}", Extent(product=7, positions=7)),
        ("a{x}", Extent(positions=4)),
    ],
)
def test_the_extent_of_a_pattern(pattern: str, extent: Extent) -> None:
    assert pattern_extent(pattern) == extent


def test_the_extent_of_grammars() -> None:
    ebnf = 'root ::= ("a" b{2}){3} # ("c"){9}\nb ::= [x({9}] | "\\"("'
    assert text_extent(ebnf, "ebnf") == Extent(depth=1, product=6, positions=13, rules=2)
    lark = 'start: (a~2 | "(")~1..3 // ("c"){9}\na: /x{4}\\//{5}'
    assert text_extent(lark, "lark") == Extent(depth=1, product=20, positions=36, rules=2)


@given(st.text(alphabet='()[]{}0,9\\/"#~.: \na*+?', max_size=200))
def test_any_text_has_an_extent(text: str) -> None:
    for extent in (pattern_extent(text), text_extent(text, "ebnf"), text_extent(text, "lark")):
        assert extent.product >= 1
        assert extent.depth <= len(text)


def test_no_more_is_read_than_tells() -> None:
    assert text_extent("(" * 60_000, "ebnf") == Extent(depth=DEEPEST)


def test_a_limit_is_a_number_with_a_reason() -> None:
    source = Path(limits.__file__).read_text()
    names = [name for name in vars(limits) if name.startswith("MAX_")]
    assert len(names) > 15
    for name in names:
        _, _, after = source.partition(f"\n{name} = ")
        assert after.splitlines()[1].startswith('"""'), name

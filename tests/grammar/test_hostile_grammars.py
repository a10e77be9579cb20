"""Grammars made to hang, crash or fill a server, against the real constraint engines in real worker processes.

Each is answered in time with an error that says whose fault it is, and the next one is served.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from grammar.compiler import Compilation, Compiler
from grammar.errors import BadGrammar, BadSchema, GrammarError, TooComplex
from grammar.spec import ANY_OBJECT, Choice, Ebnf, Grammar, JsonSchema, Lark, Literal, Regex
from grammar.vocabulary import Vocabulary, byte_vocabulary

ANSWER_SECONDS = 3.0


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary(300, {"<|im_start|>": 256, "<|im_end|>": 257})


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> Iterator[Compiler]:
    compiler = Compiler(vocabulary, wake=lambda: None)
    compiler.prewarm()
    # Loads what a server in use has loaded; what becomes of these two is for other tests.
    for grammar in (ANY_OBJECT, Ebnf('root ::= "a"')):
        compiler.submit(grammar).exception(60)
    yield compiler
    compiler.close()


def schema(value: Any) -> Grammar:
    return JsonSchema(value if isinstance(value, str) else json.dumps(value))


def strings(count: int) -> dict[str, Any]:
    return {f"p{index}": {"type": "string"} for index in range(count)}


def nested_text(opening: str, closing: str, levels: int) -> str:
    return opening * levels + "true" + closing * levels


def branches(levels: int, keyword: str) -> dict[str, Any]:
    """A tree of alternatives, twice as large with each level."""
    value: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        value = {keyword: [{"type": "object", "properties": {name: value}} for name in "ab"]}
    return value


def pattern(text: str) -> Grammar:
    return schema({"type": "string", "pattern": text})


def doubling(levels: int, name: str) -> Grammar:
    rules = [f"{name}{i}: {name}{i + 1} {name}{i + 1}" for i in range(levels)]
    return Lark("\n".join([f"start: {name}0", *rules, f'{name}{levels}: "a"']))


def chain(length: int) -> Grammar:
    rules = [f"r{i}: r{i + 1}" for i in range(length)]
    return Lark("\n".join(["start: r0", *rules, f'r{length}: "a"']))


REFUSED: dict[str, tuple[Grammar, type[BadGrammar]]] = {
    # sizes
    "enum of 40,000": (schema({"enum": [str(i) for i in range(40_000)]}), TooComplex),
    "enum of one long text": (schema({"enum": ["x" * 200_000]}), TooComplex),
    "2,000 optional properties": (schema({"type": "object", "properties": strings(2_000)}), TooComplex),
    "choice of one long text": (Choice(("x" * 200_000,)), TooComplex),
    "literal": (Literal("x" * 200_000), TooComplex),
    # nesting
    "objects 5,000 deep": (schema(nested_text('{"properties":{"a":', "}}", 5_000)), TooComplex),
    "arrays 1,000 deep": (schema(nested_text('{"items":', "}", 1_000)), TooComplex),
    "100,000 brackets": (schema("[" * 100_000), TooComplex),
    "anyOf 200 deep": (schema(nested_text('{"anyOf":[', "]}", 200)), TooComplex),
    "regex groups": (pattern("(" * 2_000 + "a" + ")" * 2_000), TooComplex),
    "EBNF groups": (Ebnf("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000), TooComplex),
    "Lark groups": (Lark("start: " + "(" * 30_000 + '"a"' + ")" * 30_000), TooComplex),
    # repetition
    "((a{100}){100}){100}": (pattern("((a{100}){100}){100}"), TooComplex),
    "regex of the same": (Regex("((a{100}){100}){100}"), TooComplex),
    "EBNF repetition": (Ebnf('root ::= (("a"{1,1000}){1,1000}){1,1000}'), TooComplex),
    "multipleOf a large prime": (schema({"type": "integer", "multipleOf": 999_983}), TooComplex),
    "minLength of a billion": (schema({"type": "string", "minLength": 10**9}), TooComplex),
    # growth that only compiling shows
    "chain of rules": (chain(900), TooComplex),
    # nothing can come of it
    "itself": (schema({"$ref": "#"}), BadGrammar),
    "a loop of references": (
        schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        BadGrammar,
    ),
    "a rule that is itself": (Lark("start: start"), BadGrammar),
    "empty enum": (schema({"enum": []}), BadGrammar),
    # no grammar at all
    "no schema": (schema('"string"'), BadSchema),
    "a list": (schema("[]"), BadSchema),
    "trailing text": (schema('{"type":"object"} x'), BadSchema),
    "no text": (schema(""), BadSchema),
    "unknown type": (schema({"type": "stsring"}), BadGrammar),
    "half a surrogate pair": (schema('{"const":"\\ud800"}'), BadSchema),
    "number beyond 64 bits": (schema({"type": "integer", "minimum": 10**30}), TooComplex),
    "regex (a": (Regex("(a"), BadGrammar),
    "regex [": (Regex("["), BadGrammar),
    "regex (?=a)b": (Regex("(?=a)b"), BadGrammar),
    "regex (?P<x>a)(?P=x)": (Regex("(?P<x>a)(?P=x)"), BadGrammar),
    "EBNF nonsense": (Ebnf("root := ((("), BadGrammar),
    "Lark nonsense": (Lark("start: ((("), BadGrammar),
}


def answered(compiler: Compiler, grammar: Grammar) -> Compilation | BaseException:
    began = time.monotonic()
    future = compiler.submit(grammar)
    error = future.exception(60)
    assert time.monotonic() - began < ANSWER_SECONDS
    return error or future.result()


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_grammar_is_refused_in_time(name: str, compiler: Compiler) -> None:
    grammar, kind = REFUSED[name]
    error = answered(compiler, grammar)
    assert isinstance(error, kind)
    assert "\n" not in str(error)
    assert len(str(error)) < 1_000
    assert isinstance(answered(compiler, schema({"title": f"after {name}", "type": "integer"})), Compilation)


EITHER_WAY: dict[str, Grammar] = {
    "enum of 5,000": schema({"enum": [f"{i:020d}" for i in range(5_000)]}),
    "5,000 required properties": schema(
        {
            "type": "object",
            "properties": strings(2_500),
            "required": list(strings(2_500)),
            "additionalProperties": False,
        }
    ),
    "maxLength of a billion": schema({"type": "string", "maxLength": 10**9}),
    "maxItems of 100,000": schema({"type": "array", "maxItems": 100_000}),
    "(a|b)*a(a|b){24}": pattern("^(a|b)*a(a|b){24}$"),
    "[a-z]*x[a-z]{20}": pattern("^[a-z]*x[a-z]{20}$"),
    "(.{0,100}){0,100}": pattern("^(.{0,100}){0,100}$"),
    "(a?){500}a{500}": pattern("^(a?){500}a{500}$"),
    "doubling terminals": doubling(20, "T"),
    "(a+)+$": pattern("^(a+)+$"),
    ".{0,9999}": pattern("^.{0,9999}$"),
    "left recursion": Lark('start: start "a" | "a"'),
    "ambiguity": Lark('start: "x" | "xx" | start start'),
    "doubling rules": doubling(20, "r"),
    "doubling references": schema(
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"}}
                for i in range(30)
            }
            | {"d30": {"type": "string"}},
        }
    ),
    "anyOf doubling": schema(branches(12, "anyOf")),
    "oneOf doubling": schema(branches(8, "oneOf")),
    "pattern properties": schema(
        {"type": "object", "patternProperties": {f"^a{i}.*x{i}$": {} for i in range(64)}}
    ),
    "unsatisfiable recursion": schema(
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    ),
}


@pytest.mark.parametrize("name", EITHER_WAY)
def test_a_heavy_grammar_is_taken_or_refused_in_time(name: str, compiler: Compiler) -> None:
    result = answered(compiler, EITHER_WAY[name])
    assert isinstance(result, Compilation | GrammarError)
    assert not isinstance(result, GrammarError) or isinstance(result, BadGrammar)


def test_many_distinct_grammars_do_not_pile_up(compiler: Compiler) -> None:
    futures = [
        compiler.submit(schema({"type": "object", "properties": {f"name{n}": {"type": "string"}}}))
        for n in range(60)
    ]
    assert all(isinstance(future.result(60), Compilation) for future in futures)

"""Schemas, patterns and grammars made to cost a server its time, its memory or its life.

Each is known to hang, bloat or crash one constraint engine or another. What is asked of a server: an answer within three
seconds, be it a refusal, no harm to others, and nothing that allows what the schema does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ANSWERED_WITHIN = 3.0

Json = Any


@dataclass(frozen=True, slots=True)
class Hostile:
    """`fields` are those of a request. `refused`: there is no answer but a 400."""

    name: str
    fields: Mapping[str, Json]
    refused: bool = False

    def body(self, model: str, **options: Json) -> dict[str, Json]:
        messages = [{"role": "user", "content": "x"}]
        return {"model": model, "messages": messages, "max_tokens": 8, **self.fields, **options}


HARMLESS = Hostile("harmless", {"ebnf": 'root ::= "a"'})
"""Has a server load what it would load in its first idle second."""


def hostile() -> list[Hostile]:
    made = [Hostile(f"schema {name}", _schema(schema)) for name, schema in _schemas().items()]
    made += [Hostile(f"schema {name}", _schema(schema), True) for name, schema in _wrong_schemas().items()]
    made += [Hostile(f"pattern {name}", _schema(_pattern(pattern))) for name, pattern in _patterns().items()]
    made += [Hostile(f"regex {name}", {"regex": pattern}) for name, pattern in _patterns().items()]
    made += [Hostile(f"regex {pattern}", {"regex": pattern}, True) for pattern in _WRONG_PATTERNS]
    made += [Hostile(f"ebnf {name}", {"ebnf": text}) for name, text in _grammars().items()]
    made += [Hostile(f"ebnf {name}", {"ebnf": text}, True) for name, text in _wrong_grammars().items()]
    made += [
        Hostile("choice 100k", {"structured_outputs": {"choice": [f"option {i}" for i in range(100_000)]}}),
        Hostile("choice 1x200KB", {"structured_outputs": {"choice": ["a" * 200_000]}}),
        Hostile(
            "lark nested", {"structured_outputs": {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000}}
        ),
        Hostile("lark repeat", {"structured_outputs": {"grammar": 'start: (("a"{1,1000}){1,1000}){1,1000}'}}),
    ]
    return made


def _schema(schema: Json) -> dict[str, Json]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def _object(properties: dict[str, Json], **more: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _nested(depth: int, wrap: Callable[[Json], Json], inner: Json) -> Json:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def _schemas() -> dict[str, Json]:
    string: Json = {"type": "string"}
    return {
        "enum 10k": {"enum": [f"value {i}" for i in range(10_000)]},
        "enum of one 200KB string": {"enum": ["a" * 200_000]},
        "maxLength 100k": {"type": "string", "maxLength": 100_000},
        "maxLength 1e9": {"type": "string", "maxLength": 10**9},
        "minLength 100k": {"type": "string", "minLength": 100_000},
        "maxItems 100k": {"type": "array", "items": string, "maxItems": 100_000},
        "minItems 100k": {"type": "array", "items": string, "minItems": 100_000},
        "maxItems 1k of objects": {"type": "array", "maxItems": 1000, "items": _object({"a": string, "b": string})},
        "nested objects 60": _nested(60, lambda inner: _object({"a": inner}), string),
        "nested objects 100": _nested(100, lambda inner: _object({"a": inner}), string),
        "nested objects 400": _nested(400, lambda inner: _object({"a": inner}), string),
        "nested arrays 400": _nested(400, lambda inner: {"type": "array", "items": inner}, string),
        "optional properties 500": _object({f"p{i}": string for i in range(500)}),
        "optional properties 2k": _object({f"p{i}": string for i in range(2000)}),
        "required properties 2k": _object(
            {f"p{i}": string for i in range(2000)}, required=[f"p{i}" for i in range(2000)]
        ),
        "anyOf chain 200": _nested(200, lambda inner: {"anyOf": [inner, {"type": "null"}]}, string),
        "oneOf nest 10": _nested(10, lambda inner: {"oneOf": [inner, _object({"a": inner})]}, string),
        "oneOf nest 12": _nested(12, lambda inner: {"oneOf": [inner, _object({"a": inner})]}, string),
        "allOf nest 16": _nested(
            16, lambda inner: {"allOf": [{"anyOf": [inner, {"minLength": 1}]}, {"anyOf": [inner, string]}]}, string
        ),
        "anyOf product": {"allOf": [{"anyOf": [{"minLength": i}, {"pattern": f"a{i}"}]} for i in range(24)]},
        "exponential references": {
            "$defs": {
                **{f"d{i}": _object({"l": {"$ref": f"#/$defs/d{i + 1}"}, "r": {"$ref": f"#/$defs/d{i + 1}"}}) for i in range(20)},
                "d20": string,
            },
            "$ref": "#/$defs/d0",
        },
        "integer range": {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
        "integer beyond int64": {"type": "integer", "minimum": 1e30},
        "number range": {"type": "number", "minimum": 1e-300, "maximum": 1e300},
        "multipleOf 99991": {"type": "integer", "multipleOf": 99991},
        "multipleOf product": {"allOf": [{"type": "integer", "multipleOf": n} for n in (997, 991, 983, 977)]},
        "patternProperties 50": {
            "type": "object", "patternProperties": {f"^p{i}[a-z]*{i}$": string for i in range(50)}
        },
        "patternProperties overlapping": {
            "type": "object", "patternProperties": {f"[a-z]*{c}[a-z]{{12}}": string for c in "abcdefgh"}
        },
        "not of everything": {"not": {}},
        "not pattern": {"type": "string", "not": {"pattern": "(a|b)*a(a|b){20}"}},
        "allOf of patterns": {
            "type": "string", "allOf": [{"pattern": f"[a-z]*{c}[a-z]{{{n}}}"} for n, c in enumerate("abcdefgh", 6)]
        },
        "null character in a key": _object({"a\0b": string}),
        "unique items": {"type": "array", "items": {"enum": list(range(200))}, "uniqueItems": True},
        "contains": {"type": "array", "contains": {"const": 1}, "minContains": 500, "maxContains": 1000},
        "dynamicRef": {"$dynamicAnchor": "n", "type": "array", "items": {"$dynamicRef": "#n"}},
    }  # fmt: skip


def _wrong_schemas() -> dict[str, Json]:
    return {
        "enum 100k": {"enum": [f"value {i}" for i in range(100_000)]},
        "reference to itself": {"$ref": "#"},
        "references in a ring": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "unsatisfiable recursion": _object({"a": {"$ref": "#"}}, required=["a"]),
        "empty enum": {"enum": []},
        "contradiction": {"type": "string", "minLength": 5, "maxLength": 3},
        "type stsring": {"type": "stsring"},
        "type 5": {"type": 5},
        "properties as a list": {"type": "object", "properties": ["a"]},
        "negative minLength": {"type": "string", "minLength": -1},
        "pattern no regex": _pattern("(a"),
        "remote reference": {"$ref": "http://127.0.0.1:1/schema.json"},
        "file reference": {"$ref": "file:///etc/passwd"},
        "missing reference": {"$ref": "#/$defs/nothing"},
        "a string": "string",
        "a list": [],
    }  # fmt: skip


def _pattern(pattern: str) -> dict[str, Json]:
    return {"type": "string", "pattern": pattern}


def _patterns() -> dict[str, str]:
    return {
        "exponential 16": "^(a|b)*a(a|b){16}$",
        "exponential 24": "^(a|b)*a(a|b){24}$",
        "outlines": "^[a-z]*x[a-z]{20}$",
        "dots in dots": "^(.{0,100}){0,100}$",
        "optional 500": "^(a?){500}a{500}$",
        "repeat product 1e6": "^((a{100}){100}){100}$",
        "dot 129": "^.{1,129}$",
        "dot 20000": "^.{0,20000}$",
        "nested groups 5k": "^" + "(" * 5000 + "a" + ")" * 5000 + "$",
        "nested stars": "^(a+)+$",
        "long alternation": "^(" + "|".join(f"word{i}x*" for i in range(3000)) + ")$",
        "long literal": "a" * 100_000,
        "unicode classes": r"^(\p{L}\p{N}){0,200}$",
    }


_WRONG_PATTERNS = ("(a", "[", "a{2,1}", "(?=a)b", "(?P<x>a)(?P=x)", "*")


def _grammars() -> dict[str, str]:
    return {
        "nested groups 60k": 'root ::= ' + "(" * 60_000 + '"a"' + ")" * 60_000,
        "left recursion": 'root ::= root "a" | "a"',
        "ambiguous": 'root ::= "x" | "xx" | root root',
        "repeat of repeat": 'root ::= (("a"{1,1000}){1,1000}){1,1000}',
        "repeat 100k": 'root ::= "a"{1,100000}',
        "rule chain 5000": "\n".join(
            ["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(5000)), 'r5000 ::= "a"']
        ),
        "never ends": 'root ::= "a" root',
        "nullable": 'root ::= (("a"?)*)*',
        "doubling": "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)), 'r40 ::= "a"']),
    }  # fmt: skip


def _wrong_grammars() -> dict[str, str]:
    return {
        "only itself": "root ::= root",
        "no root": 'start ::= "a"',
        "unknown rule": "root ::= nothing",
        "no grammar": "}}}}",
    }

"""What the styles make of arguments that no grammar has shaped, of schemas that are not simple, and of real tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.tools.arguments.style import Inexpressible, ToolShape
from gateway.tools.families import COHERE, FAMILIES, GEMMA_4, KIMI_K3, LLAMA_4, MINIMAX_M3, QWEN_3_CODER
from gateway.tools.family import Family
from gateway.tools.structure import gaps, structure
from grammar.contract import audit
from grammar.spec import JsonSchema

from .rendering import calls, fill
from .replies import Call, read_all_ways, tool
from .test_formats import EVERYTHING, backend, before, refused

BFCL = Path("../shared/data/bfcl")


def audited(schema: dict[str, Any], name: str = "f") -> ToolShape:
    return ToolShape(name, audit(schema).grammar, schema)


def arguments(family: Family, shape: ToolShape, text: str) -> Call:
    (call,) = read_all_ways(family, [shape], text).calls
    return call


def python_call(text: str) -> Call:
    return arguments(LLAMA_4, tool("f", {"a": {}}), f"[f({text})]")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a='it\\'s \"x\"\\n\\x41\\u00e9\\U0001F600\\q'", {"a": 'it\'s "x"\nAé😀\\q'}),
        ("a = [1, 'b' , {'c': True, \"d\": None}, ]", {"a": [1, "b", {"c": True, "d": None}]}),
        ("a=-1.5e3, b=False", {"a": -1500.0, "b": False}),
        ("a={}, b=[]", {"a": {}, "b": []}),
        ("", {}),
    ],
)
def test_python_is_read(text: str, value: Any) -> None:
    call = python_call(text)
    assert (call.value, call.whole) == (value, True)


@pytest.mark.parametrize(
    "text", ["a", "a=", "a=1 b=2", "a=x", "a=[1 2]", "a={1}", "1=2", "a='x", "a=" + "[" * 200]
)
def test_what_is_no_python_has_no_end(text: str) -> None:
    assert not python_call(text).whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{a:<|"|>x<|"|>,b:[1,true,null]}', {"a": "x", "b": [1, True, None]}),
        ('{ a : { "k:" : "v}" , c : <|"|><|"|> } }', {"a": {"k:": "v}", "c": ""}}),
        ("{a:word}", {"a": "word"}),
        ("{}", {}),
    ],
)
def test_gemma_is_read(text: str, value: Any) -> None:
    call = arguments(GEMMA_4, tool("f", {"a": {}}), f"<|tool_call>call:f{text}<tool_call|>")
    assert (call.value, call.whole) == (value, True)


@pytest.mark.parametrize("text", ["{a}", "{a:}", "{:1}", '{a:<|"|>x', "{a:1 b:2}", "{a:" + "[" * 200])
def test_what_is_not_gemmas_has_no_end(text: str) -> None:
    assert not arguments(GEMMA_4, tool("f", {"a": {}}), f"<|tool_call>call:f{text}<tool_call|>").whole


def coder(shape: ToolShape, **values: str) -> Call:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return arguments(QWEN_3_CODER, shape, f"<tool_call>\n<function=f>\n{inside}</function>\n</tool_call>")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "integer"}, "12", 12),
        ({"type": "integer"}, "a dozen", "a dozen"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"type": ["string", "integer"]}, "12", 12),
        ({"enum": ["a", 1]}, "a", "a"),
        ({"enum": ["a", 1]}, "1", 1),
        ({"enum": ["a", "b"]}, " a ", "a"),
        ({"type": "object"}, '{"a": {"b": "</x>"}}', {"a": {"b": "</x>"}}),
        ({"type": "array"}, "[1, [2]]", [1, [2]]),
        ({}, '{"a": 1}', {"a": 1}),
        ({}, "{a: 1", "{a: 1"),
        ({"type": "string"}, "a\n\nb\n", "a\n\nb\n"),
    ],
)
def test_types_are_the_schemas(schema: dict[str, Any], text: str, value: Any) -> None:
    call = coder(tool("f", {"x": schema}), x=text)
    assert (call.value, call.whole) == ({"x": value}, True)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("true", "12", "12"),
        ("false", "12", 12),
        ("false", '"12"', "12"),
        ("false", '{"a": "<"}', {"a": "<"}),
        ("false", "x", "x"),
    ],
)
def test_types_are_what_the_format_says(type_: str, text: str, value: Any) -> None:
    family = FAMILIES["deepseek_v3_2"]
    shape = tool("f", {"x": {}})
    written = calls(family, [(shape, {"x": "TEXT"})]).replace(
        'string="true">TEXT', f'string="{type_}">{text}'
    )
    assert arguments(family, shape, written).value == {"x": value}


def test_arguments_that_the_schema_does_not_name() -> None:
    assert coder(tool("f", {}), x="1", y="word").value == {"x": 1, "y": "word"}


def test_elements_cut_off_in_the_middle_have_no_end() -> None:
    shape = tool("f", {"x": {"type": "string"}, "n": {"type": "integer"}})
    begin = "<tool_call>\n<function=f>\n<parameter="
    for text, found in [
        ("x>\nab", '{"x": "ab'),
        ("x>\nab\n</para", '{"x": "ab\\n</para'),
        ("x>\nab\n</parameter>\n<parameter=n>\n1", '{"x": "ab", "n": 1'),
        ("x>\nab\n</parameter>\n<parameter=n>\n-", '{"x": "ab", "n": "-"'),
    ]:
        reply = read_all_ways(QWEN_3_CODER, [shape], begin + text, stopped=False)
        assert [(call.arguments, call.whole) for call in reply.calls] == [(found, False)]
        assert reply.content == ""


class TestSchemas:
    def test_references_and_recursion(self) -> None:
        schema = {
            "type": "object",
            "properties": {"tree": {"$ref": "#/$defs/node"}, "name": {"$ref": "#/$defs/name"}},
            "required": ["tree", "name"],
            "additionalProperties": False,
            "$defs": {
                "name": {"type": "string", "maxLength": 3},
                "node": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "integer"},
                        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    },
                    "required": ["v", "next"],
                    "additionalProperties": False,
                },
            },
        }
        values = {"tree": {"v": 1, "next": {"v": 2, "next": None}}, "name": "abc"}
        for shape in (audited(schema), ToolShape("f", JsonSchema(json.dumps(schema)), schema)):
            for family in (QWEN_3_CODER, LLAMA_4):
                assert gaps(family, shape) == ()
                grammar = structure(family, [shape], mode="named", allowed=["f"])
                text = calls(family, [(shape, values)])
                assert refused(grammar, text) is None
                assert refused(grammar, text.replace("abc", "abcd"))
                assert arguments(family, shape, text).value == values
            for family in (
                GEMMA_4,
                COHERE,
                MINIMAX_M3,
            ):  # they write the inside as JSON, so this only has to compile
                backend(()).compile(structure(family, [shape], mode="named", allowed=["f"]))

    @pytest.mark.parametrize(
        "family", [QWEN_3_CODER, COHERE, MINIMAX_M3, GEMMA_4, LLAMA_4], ids=lambda f: f.name
    )
    def test_schemas_that_would_be_endless_written_out(self, family: Family) -> None:
        def pair(inner: dict[str, Any]) -> dict[str, Any]:
            return {
                "type": "object",
                "properties": {"l": inner, "r": inner},
                "required": ["l", "r"],
                "additionalProperties": False,
            }

        definitions: dict[str, Any] = {f"d{i}": pair({"$ref": f"#/$defs/d{i + 1}"}) for i in range(40)}
        definitions |= {"d40": {"type": "integer"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}] * 2}}
        definitions |= {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}
        definitions |= {
            "a40": {"type": "string"},
            "tree": pair({"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}),
        }
        for name in ("d0", "a0", "tree"):
            schema = {
                "type": "object",
                "properties": {"x": {"$ref": f"#/$defs/{name}"}},
                "$defs": definitions,
            }
            shape = ToolShape("f", JsonSchema(json.dumps(schema)), schema)
            assert structure(family, [shape], mode="named", allowed=["f"])
        schema = {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/loop"}},
            "required": ["x"],
            "$defs": definitions,
        }
        with pytest.raises(Inexpressible):
            structure(
                family, [ToolShape("f", JsonSchema(json.dumps(schema)), schema)], mode="named", allowed=["f"]
            )

    def test_open_objects_offer_what_they_name_and_else_anything(self) -> None:
        named = audited({"type": "object", "properties": {"a": {"type": "string"}}})
        free = audited({"type": "object", "additionalProperties": {"type": "integer"}})
        for family in (QWEN_3_CODER, LLAMA_4, GEMMA_4, KIMI_K3):
            assert gaps(family, named) == gaps(family, free) == ()
        grammar = structure(QWEN_3_CODER, [free], mode="named", allowed=["f"])
        text = "<tool_call>\n<function=f>\n<parameter=any>\n1\n</parameter>\n</function>\n</tool_call>"
        assert refused(grammar, text) is None
        assert refused(grammar, text.replace("1", "x"))

    def test_what_is_about_all_arguments_is_a_gap(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1}
        shape = ToolShape("f", JsonSchema(json.dumps(schema)), schema)
        assert [gap.keyword for gap in gaps(QWEN_3_CODER, shape)] == ["minProperties"]
        assert gaps(FAMILIES["hermes"], shape) == ()

    def test_names_that_cannot_be_written(self) -> None:
        shape = tool("f", {"a>b": {"type": "string"}})
        with pytest.raises(Inexpressible) as caught:
            structure(QWEN_3_CODER, [shape], mode="named", allowed=["f"])
        assert caught.value.path == "/properties/a>b"
        optional = tool("f", {"a>b": {"type": "string"}, "c": {"type": "integer"}}, [])
        assert (
            refused(
                structure(QWEN_3_CODER, [optional], mode="named", allowed=["f"]),
                calls(QWEN_3_CODER, [(optional, {"c": 1})]),
            )
            is None
        )

    def test_keys_are_escaped_where_the_format_does(self) -> None:
        shape = tool("f", {'a&"b"': {"type": "string"}})
        for family in (COHERE, KIMI_K3):
            text = calls(family, [(shape, {'a&"b"': "x"})])
            assert "a&amp;&quot;b&quot;" in text
            assert arguments(family, shape, text).value == {'a&"b"': "x"}


def real_tools() -> list[ToolShape]:
    lines = [line for path in sorted(BFCL.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    functions = {
        json.dumps(t["function"]): t["function"] for line in lines for t in json.loads(line)["tools"]
    }
    return [audited(f["parameters"], f["name"]) for f in functions.values()]


def test_real_tools_can_be_held_to_in_every_family() -> None:
    shapes = real_tools()
    if not shapes:
        pytest.skip("the collected tools are not here")
    for family in FAMILIES.values():
        for shape in shapes:
            assert gaps(family, shape) == ()
    for family in FAMILIES.values():
        some = {shape.name: shape for shape in shapes[:300:10]}
        backend(()).compile(structure(family, list(some.values()), mode="auto", allowed=list(some)))


def test_normalised_schemas_are_read_as_the_clients() -> None:
    shape = audited(dict(EVERYTHING.schema), EVERYTHING.name)
    values = {"path": "x", "line": 3, "note": None, "tags": ["1", "null"], "at": {"x": 1, "name": "2"}}
    for family in FAMILIES.values():
        text = before(family) + calls(family, [(shape, values)]) + fill(family.tail)
        assert refused(structure(family, [shape], mode="required", allowed=[shape.name]), text) is None
        assert arguments(family, shape, text).value == values

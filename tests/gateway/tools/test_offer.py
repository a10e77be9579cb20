"""`tools`, read: what is taken for one, what is refused and in which words, and what is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.metrics import Metrics
from gateway.structured.shapes import Shapes
from gateway.text_threads import TextThreads
from gateway.tools.definitions import CustomTool, FunctionTool
from gateway.tools.offer import MAX_KEPT, Offers
from grammar import contract
from grammar.contract import Contract, Verdict
from grammar.spec import ANY_OBJECT, FreeText, Lark, Regex
from tests.fakes import FakeEngine

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture
def offers() -> Iterator[Offers]:
    threads = TextThreads()
    yield Offers(Shapes(threads, Metrics("m", FakeEngine())), "call it")
    threads.close()


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY, **more}}


def custom(name: str = "c", **more: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **more}}


def grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


async def test_no_tools(offers: Offers) -> None:
    assert (await offers.read(None)).tools == ()


async def test_functions(offers: Offers) -> None:
    offer = await offers.read(
        [
            function("get_weather", description="Weather", strict=True),
            function("loose", strict=None, description=None),
            {"type": "function", "function": {"name": "stop"}},
            function("untyped", parameters={"properties": {"a": {"type": "integer"}}}),
        ]
    )
    weather, loose, stop, untyped = offer.tools
    assert isinstance(weather, FunctionTool)
    assert (weather.description, weather.parameters, weather.strict) == ("Weather", CITY, True)
    assert not weather.contract.checked
    assert isinstance(loose, FunctionTool)
    assert (loose.description, loose.strict) == (None, False)
    assert isinstance(stop, FunctionTool)
    assert not offer.audited["stop"].validator.problems("{}")
    assert offer.audited["stop"].validator.problems('{"a": 1}')
    assert isinstance(untyped, FunctionTool)
    assert untyped.parameters == {"properties": {"a": {"type": "integer"}}}, "a prompt shows what was sent"
    assert offer.audited["untyped"].validator.problems("5"), "arguments are an object all the same"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, FreeText()),
        ({"type": "text"}, FreeText()),
        (grammar("lark", 'start: "a"'), Lark('start: "a"')),
        (grammar("regex", "a+"), Regex("a+")),
    ],
)
async def test_custom_tools(offers: Offers, form: object, expected: object) -> None:
    (tool,) = (await offers.read([custom("shell", description="Runs", format=form)])).tools
    assert tool == CustomTool("shell", "Runs", expected)  # type: ignore[arg-type]


async def test_the_same_tools_are_read_once(offers: Offers) -> None:
    tools = [function("a"), custom("b")]
    first = await offers.read(tools)
    assert await offers.read([function("a"), custom("b")]) is first
    assert await offers.read([custom("b"), function("a")]) is not first
    for i in range(MAX_KEPT):
        await offers.read([function(f"f{i}")])
    again = await offers.read(tools)
    assert again is not first
    assert again.digest == first.digest


NAME = "tools[0].function.name"


@pytest.mark.parametrize(
    ("tools", "message", "param", "code"),
    [
        (7, "Invalid type for 'tools': expected an array of objects, but got an integer instead.", "tools", "invalid_type"),
        (
            [],
            "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            "tools",
            "empty_array",
        ),
        (
            [function(f"f{i}") for i in range(129)],
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 129 instead.",
            "tools",
            "array_above_max_length",
        ),
        ([5], "Invalid type for 'tools[0]': expected an object, but got an integer instead.", "tools[0]", "invalid_type"),
        ([{}], "Missing required parameter: 'tools[0].type'.", "tools[0].type", "missing_required_parameter"),
        (
            [{"type": "web_search"}],
            "Invalid value: 'web_search'. Supported values are: 'function' and 'custom'.",
            "tools[0].type",
            "invalid_value",
        ),
        (
            [function(), {"type": "function"}],
            "Missing required parameter: 'tools[1].function'.",
            "tools[1].function",
            "missing_required_parameter",
        ),
        ([{"type": "function", "function": {}}], f"Missing required parameter: '{NAME}'.", NAME, "missing_required_parameter"),
        (
            [{"type": "function", "name": "f", "function": {"name": "f"}}],
            "Unknown parameter: 'tools[0].name'.",
            "tools[0].name",
            "unknown_parameter",
        ),
        (
            [function("a b")],
            f"Invalid '{NAME}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
            NAME,
            "invalid_value",
        ),
        (
            [function("f" * 65)],
            f"Invalid '{NAME}': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.",
            NAME,
            "string_above_max_length",
        ),
        (
            [function(), custom("f")],
            "Invalid 'tools': more than one of them is named 'f'.",
            "tools[1].custom.name",
            "invalid_value",
        ),
        ([function(description=3)], None, "tools[0].function.description", "invalid_type"),
        ([function(strict="yes")], None, "tools[0].function.strict", "invalid_type"),
        ([function(parameters=[])], None, "tools[0].function.parameters", "invalid_type"),
        ([function(x=1)], None, "tools[0].function.x", "unknown_parameter"),
        (
            [function(parameters={"type": "array", "items": {}})],
            "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'.",
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
        (
            [function(parameters={"properties": {}}, strict=True)],
            "Invalid schema for function 'f': schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'.",
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
        (
            [function(), function("g", strict=True, parameters={**CITY, "properties": {**CITY["properties"], "b": {}}})],  # type: ignore[dict-item]
            (
                "Invalid schema for function 'g': In context=(), 'required' is required to be supplied and to be an "
                "array including every key in properties. Missing 'b'."
            ),
            "tools[1].function.parameters",
            "invalid_function_parameters",
        ),
        (
            [function(parameters={"type": "object", "properties": {"p": {"type": "array"}}})],
            "Invalid schema for function 'f': In context=('properties', 'p'), array schema missing items.",
            "tools[0].function.parameters",
            "invalid_function_parameters",
        ),
        ([function(parameters={"type": "object", "properties": []})], None, "tools[0].function.parameters", "invalid_function_parameters"),
        ([custom(format={"type": "json"})], None, "tools[0].custom.format.type", "invalid_value"),
        ([custom(format={})], None, "tools[0].custom.format.type", "missing_required_parameter"),
        ([custom(format={"type": "grammar"})], None, "tools[0].custom.format.grammar", "missing_required_parameter"),
        ([custom(format=grammar("ebnf", "x"))], None, "tools[0].custom.format.grammar.syntax", "invalid_value"),
        (
            [custom(format={"type": "grammar", "grammar": {"syntax": "lark"}})],
            None,
            "tools[0].custom.format.grammar.definition",
            "missing_required_parameter",
        ),
        ([custom(parameters={})], None, "tools[0].custom.parameters", "unknown_parameter"),
        (
            [custom(format=grammar("regex", "(a{1,1000}){1,1000}"))],
            "Invalid grammar for custom tool 'c': repetitions in the pattern multiply to more than 10,000",
            "tools[0].custom.format",
            "grammar_too_complex",
        ),
    ],
)  # fmt: skip
async def test_refused(offers: Offers, tools: object, message: str | None, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await offers.read(tools)
    assert (refusal.value.param, refusal.value.code) == (param, code)
    if message is not None:
        assert refusal.value.message == message


async def test_strict_is_refused_what_cannot_be_enforced(
    offers: Offers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And taken without `strict`, to be checked in the end."""
    unique = Verdict("/properties/city/uniqueItems", "uniqueItems", "checked", reason="no engine counts")
    monkeypatch.setattr(contract, "audit", lambda schema, **_: Contract(ANY_OBJECT, (unique,)))
    parameters = {**CITY, "properties": {"city": {"type": "array", "items": {}, "uniqueItems": True}}}
    with pytest.raises(InvalidRequest) as refusal:
        await offers.read([function(strict=True, parameters=parameters)])
    assert refusal.value.message.startswith(
        "Invalid schema for function 'f': In context=('properties', 'city'), 'uniqueItems' is not permitted"
    )
    assert refusal.value.code == "invalid_function_parameters"
    offer = await offers.read([function(parameters=parameters)])
    assert offer.audited["f"].contract.checked == (unique,)


@pytest.mark.parametrize(
    ("parameters", "closed"),
    [
        ({"type": "object", "properties": {}}, True),
        ({"properties": {}, "required": []}, True),
        ({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}, False),
        ({"type": "object", "properties": {}, "patternProperties": {"^x": {}}}, False),
        ({"type": "object"}, False),
    ],
)
async def test_a_function_that_declares_no_parameters_is_given_none(
    offers: Offers, parameters: dict[str, Any], closed: bool
) -> None:
    (tool,) = (await offers.read([function(parameters=parameters)])).tools
    assert isinstance(tool, FunctionTool)
    only_empty = orjson.loads(tool.contract.grammar.schema) == {
        "type": "object",
        "additionalProperties": False,
    }
    assert only_empty == closed

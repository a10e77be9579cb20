"""OpenAI's strict subset: its rules and its words, and that whatever its own SDK makes is inside."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import BaseModel, Field, TypeAdapter

from grammar.openai_strict import MAX_DEPTH, StrictViolation, check, check_parameters

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
REQUIRED = "'required' is required to be supplied and to be an array including every key in properties."
CLOSED = "'additionalProperties' is required to be supplied and to be false."


def obj(_extra: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **(_extra or {}),
    }


def open_(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "additionalProperties"}


TEXT = {"type": "string"}
OUTSIDE = [
    # (schema, message)
    (open_(obj(a=TEXT)), f"In context=(), {CLOSED}"),
    (obj({"additionalProperties": True}, a=TEXT), f"In context=(), {CLOSED}"),
    (obj({"additionalProperties": TEXT}, a=TEXT), f"In context=(), {CLOSED}"),
    (obj(a=open_(obj(b=TEXT))), f"In context=('properties', 'a'), {CLOSED}"),
    (obj(a={"type": "array", "items": open_(obj())}), f"In context=('properties', 'a', 'items'), {CLOSED}"),
    (obj(a={"anyOf": [TEXT, open_(obj())]}), f"In context=('properties', 'a', 'anyOf', '1'), {CLOSED}"),
    (obj({"$defs": {"x": open_(obj())}}), f"In context=('$defs', 'x'), {CLOSED}"),
    (obj(a={"type": ["object", "null"]}), f"In context=('properties', 'a'), {CLOSED}"),
    (obj({"required": ["a"]}, a=TEXT, b=TEXT), f"In context=(), {REQUIRED} Missing 'b'."),
    (obj({"required": None}, a=TEXT), f"In context=(), {REQUIRED} Missing 'a'."),
    (obj({"required": ["a", "b"]}, a=TEXT), f"In context=(), {REQUIRED} Extra required key 'b' supplied."),
    (obj(a={"type": "array"}), "In context=('properties', 'a'), array schema missing items."),
    (
        {"type": "object", "additionalProperties": False},
        "In context=(), object schema missing properties.",
    ),
    (
        {"type": "array", "items": TEXT},
        "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'.",
    ),
    ({"anyOf": [obj()]}, "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'."),
    (obj({"anyOf": [obj()]}), "In context=(), 'anyOf' is not permitted at the root."),
    (True, "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"None\"'."),
    *(
        (obj(a={keyword: value}), f"In context=('properties', 'a'), '{keyword}' is not permitted.")
        for keyword, value in (
            ("allOf", [TEXT, TEXT]),
            ("not", TEXT),
            ("dependentRequired", {"a": ["b"]}),
            ("dependentSchemas", {"a": TEXT}),
            ("if", TEXT),
            ("then", TEXT),
            ("else", TEXT),
        )
    ),
]


@pytest.mark.parametrize(("schema", "message"), OUTSIDE)
def test_what_is_outside_is_named_in_openais_words(schema: object, message: str) -> None:
    with pytest.raises(StrictViolation) as caught:
        check(schema)
    assert str(caught.value) == message


def nested(levels: int) -> dict[str, Any]:
    schema = obj(a=TEXT)
    for _ in range(levels):
        schema = obj(a=schema)
    return schema


@pytest.mark.parametrize(
    ("inside", "outside", "names"),
    [
        (nested(MAX_DEPTH - 1), nested(MAX_DEPTH), "10 levels"),
        (
            obj(**{f"p{i}": TEXT for i in range(5000)}),
            obj(**{f"p{i}": TEXT for i in range(5001)}),
            "5000 object properties",
        ),
        (
            obj(a={"enum": list(range(1000))}),
            obj(a={"enum": list(range(600))}, b={"enum": list(range(401))}),
            "1000 enum values",
        ),
        (
            obj(a={"enum": [f"{i:050}" for i in range(250)]}),
            obj(a={"enum": [f"{i:060}" for i in range(251)]}),
            "15000 characters",
        ),
        (
            obj({"$defs": {"x" * 60_000: TEXT}}, a={"const": "y" * 59_000}),
            obj({"$defs": {"x" * 60_000: TEXT}}, a={"const": "y" * 60_000}),
            "120000 characters",
        ),
    ],
    ids=["depth", "properties", "enum", "long enum", "names"],
)
def test_limits(inside: object, outside: object, names: str) -> None:
    check(inside)
    with pytest.raises(StrictViolation, match=names):
        check(outside)


def test_a_deep_schema_costs_no_stack() -> None:
    schema: dict[str, Any] = TEXT
    for _ in range(20_000):
        schema = {"anyOf": [schema]}
    check(obj(a=schema))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: float = Field(description="up", ge=0)


class Tree(BaseModel):
    value: Colour
    children: list[Tree]
    twin: Tree | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int | None


class Dog(BaseModel):
    kind: Literal["dog"]
    home: Point = Field(description="where")


class Everything(BaseModel):
    name: str = Field(min_length=1, pattern="^[a-z]+$")
    at: Point
    colour: Colour | None = None
    pet: Cat | Dog
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []
    size: Literal[1, 2, 3]
    pair: tuple[int, str]
    forest: list[Tree]


class Empty(BaseModel):
    pass


@pytest.mark.parametrize("model", [Point, Tree, Cat, Dog, Everything, Empty, TypeAdapter(Tree)])
def test_what_the_official_client_makes_of_a_model_is_inside(model: Any) -> None:
    check(to_strict_json_schema(model))


def test_functions_need_items_even_without_strict() -> None:
    with pytest.raises(StrictViolation, match="array schema missing items"):
        check_parameters({"type": "object", "properties": {"p": {"type": "array"}}})
    check_parameters({"type": "object", "properties": {"p": {"type": "object"}}})
    check_parameters({"type": "object"})


@pytest.mark.skipif(not DATA.exists(), reason="needs the shared data")
def test_no_real_tool_is_refused_without_strict() -> None:
    tools = 0
    for path in sorted((DATA / "bfcl").glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            for tool in json.loads(line)["tools"]:
                check_parameters(tool["function"]["parameters"])
                tools += 1
    assert tools > 400

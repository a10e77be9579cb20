"""Structural tags: each format as the nodes it means, and what has no node refused by its path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.structured.source import Source
from gateway.structured.structural_tags import TagReader
from grammar.spec import (
    Concat,
    Ebnf,
    Either,
    FreeText,
    Grammar,
    JsonSchema,
    Lark,
    Literal,
    Marker,
    Regex,
    Repeat,
)

JSON = JsonSchema('{"type":"object"}')


async def read(tag: dict[str, Any]) -> Grammar:
    async def schema(value: dict[str, object]) -> Grammar:
        assert value == {"type": "object"}
        return JSON

    return await TagReader(Source("structural_tag", "structural tag"), schema).read(tag)


def text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: Any = "<a>", content: Any = None, end: Any = "</a>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content or schema(), "end": end}


def schema(**extra: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"type": "object"}, **extra}


TAGGED = Concat((Literal("<a>"), JSON, Literal("</a>")))
FREE = FreeText(("<a",))
FORMATS: list[tuple[dict[str, Any], Grammar]] = [
    (text("x"), Literal("x")),
    ({"type": "token", "token": "<|end|>"}, Marker("<|end|>")),
    ({"type": "regex", "pattern": "a+"}, Regex("a+")),
    ({"type": "grammar", "grammar": "root ::= x"}, Ebnf("root ::= x")),
    ({"type": "grammar", "grammar": "start: x", "syntax": "lark"}, Lark("start: x")),
    ({"type": "any_text"}, FreeText()),
    ({"type": "any_text", "excludes": ["b", "b", "c"], "max_tokens": None}, FreeText(("b", "c"))),
    (schema(), JSON),
    (schema(style="json", any_order=False, excludes=[], max_whitespace_cnt=2), JSON),
    ({"type": "sequence", "elements": [text("x"), text("y")]}, Concat((Literal("x"), Literal("y")))),
    ({"type": "or", "elements": [text("x"), text("y")]}, Either((Literal("x"), Literal("y")))),
    ({"type": "optional", "content": text("x")}, Repeat(Literal("x"), 0, 1)),
    ({"type": "star", "content": text("x")}, Repeat(Literal("x"), 0, None)),
    ({"type": "plus", "content": text("x")}, Repeat(Literal("x"), 1, None)),
    ({"type": "repeat", "content": text("x"), "min": 2, "max": 3}, Repeat(Literal("x"), 2, 3)),
    ({"type": "repeat", "content": text("x"), "min": 0, "max": -1}, Repeat(Literal("x"), 0, None)),
    (tag(), TAGGED),
    (
        tag(begin={"type": "token", "token": "<s>"}, end=["x", "y"]),
        Concat((Marker("<s>"), JSON, Either((Literal("x"), Literal("y"))))),
    ),
    (
        tag(content={"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}),
        Concat((Literal("<a>"), Concat((FreeText(), FreeText(("</a>",)))), Literal("</a>"))),
    ),
    (
        tag(content={"type": "or", "elements": [text("x"), {"type": "any_text"}]}, end=""),
        Concat((Literal("<a>"), Either((Literal("x"), FreeText())), Literal(""))),
    ),
    (
        {"type": "tags_with_separator", "tags": [tag()], "separator": ","},
        Repeat(TAGGED, 0, None, ","),
    ),
    (
        {
            "type": "tags_with_separator",
            "tags": [tag(), tag()],
            "separator": "",
            "at_least_one": True,
            "stop_after_first": True,
        },
        Repeat(Either((TAGGED, TAGGED)), 1, 1),
    ),
    (
        {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag()]},
        Concat((Repeat(Concat((FREE, TAGGED)), 0, None), FREE)),
    ),
    (
        {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag()], "at_least_one": True},
        Concat((Repeat(Concat((FREE, TAGGED)), 1, None), FREE)),
    ),
    (
        {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag()], "stop_after_first": True},
        Either((Repeat(Concat((FREE, TAGGED)), 0, 1), FREE)),
    ),
    (
        {
            "type": "triggered_tags",
            "triggers": ["<a"],
            "tags": [tag()],
            "at_least_one": True,
            "stop_after_first": True,
            "excludes": ["z"],
        },
        Repeat(Concat((FreeText(("<a", "z")), TAGGED)), 1, 1),
    ),
    (
        tag("<b>", {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag()]}, "</b>"),
        Concat(
            (
                Literal("<b>"),
                Concat(
                    (Repeat(Concat((FreeText(("<a", "</b>")), TAGGED)), 0, None), FreeText(("<a", "</b>")))
                ),
                Literal("</b>"),
            )
        ),
    ),
    (
        {"type": "dispatch", "rules": [["x", text("y")]]},
        Concat(
            (
                Repeat(Concat((FreeText(("x",)), Concat((Literal("x"), Literal("y"))))), 0, None),
                FreeText(("x",)),
            )
        ),
    ),
    (
        {"type": "dispatch", "rules": [["x", text("y")]], "loop": False, "excludes": ["z"]},
        Either(
            (
                Repeat(Concat((FreeText(("x", "z")), Concat((Literal("x"), Literal("y"))))), 0, 1),
                FreeText(("x", "z")),
            )
        ),
    ),
]


@pytest.mark.parametrize(("form", "grammar"), FORMATS)
async def test_formats(form: dict[str, Any], grammar: Grammar) -> None:
    assert await read({"type": "structural_tag", "format": form}) == grammar


async def test_the_older_form() -> None:
    structure = {"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}
    older = await read({"type": "structural_tag", "structures": [structure], "triggers": ["<a"]})
    form = {"type": "triggered_tags", "triggers": ["<a"], "tags": [tag()]}
    assert older == await read({"format": form})


def deep(levels: int) -> dict[str, Any]:
    form = text("x")
    for _ in range(levels):
        form = {"type": "star", "content": form}
    return form


WRONG: list[tuple[dict[str, Any], str]] = [
    # (tag, what the message names)
    ({}, "'triggers' is missing"),
    ({"format": 5}, "'format' should be an object, but is an integer"),
    ({"format": {}}, "'format.type' is missing"),
    ({"format": {"type": "xml"}}, "format 'xml' is not served"),
    ({"format": text("x"), "structures": []}, "'structures' is unknown"),
    ({"format": {**text("x"), "y": 1}}, "'format.y' is unknown"),
    ({"format": {"type": "const_string", "value": 5}}, "'format.value' should be a string"),
    ({"format": {"type": "exclude_token", "exclude_tokens": []}}, "format 'exclude_token' is not served"),
    ({"format": {"type": "token", "token": 5}}, "'format.token' should be a string"),
    ({"format": {"type": "any_text", "max_tokens": 5}}, "'format.max_tokens' is not served"),
    ({"format": {"type": "any_text", "max_chars": 5}}, "'format.max_chars' is not served"),
    ({"format": {"type": "any_text", "excludes": [""]}}, "'format.excludes' should hold strings"),
    ({"format": schema(style="qwen_xml")}, "'format.style' should be 'json'"),
    ({"format": schema(any_order=True)}, "'format.any_order' is not served"),
    ({"format": schema(max_whitespace_cnt=0)}, "'max_whitespace_cnt' below 1"),
    ({"format": schema(json_schema="{}")}, "'format.json_schema' should be a JSON schema"),
    ({"format": {"type": "sequence", "elements": []}}, "'format.elements' should be an array, not empty"),
    (
        {"format": {"type": "sequence", "elements": [text("x"), 5]}},
        "'format.elements[1]' should be an object",
    ),
    (
        {"format": {"type": "repeat", "content": text("x"), "min": 3, "max": 2}},
        "'min' and 'max' are no range (at format)",
    ),
    (
        {"format": {"type": "repeat", "content": text("x"), "min": True, "max": 2}},
        "'format.min' should be an integer",
    ),
    ({"format": tag(begin=5)}, "'format.begin' should be an object"),
    (
        {"format": {"type": "tags_with_separator", "tags": [text("x")], "separator": ""}},
        "'format.tags[0].type' should be 'tag'",
    ),
    (
        {"format": {"type": "triggered_tags", "triggers": ["<b"], "tags": [tag()]}},
        "'<a>' begins with none of the triggers",
    ),
    ({"format": {"type": "dispatch", "rules": [["x"]]}}, "'format.rules[0]' is no pair"),
    (
        {"structures": [{"begin": "<a>", "schema": {"type": "object"}}], "triggers": ["<a"]},
        "'structures[0].end' is missing",
    ),
    ({"format": deep(40)}, "nested deeper than 32 levels"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
async def test_what_is_wrong_is_named_by_its_path(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await read(wrong)
    assert (caught.value.param, caught.value.code) == ("structural_tag", "invalid_grammar")
    assert message in caught.value.message


async def test_deep_ones_within_the_limit_are_read() -> None:
    grammar = await read({"format": deep(30)})
    assert isinstance(grammar, Repeat)


async def test_others_have_their_turn_while_a_large_tag_is_read() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going = asyncio.create_task(others())
    await read({"format": {"type": "sequence", "elements": [text("x")] * 2000}})
    going.cancel()
    assert turns > 100


@pytest.mark.parametrize("parts", [10_001, 500_000])
async def test_a_tag_of_too_many_parts_is_not_read_to_its_end(parts: int) -> None:
    elements = [text("x")] * (parts - 1) + [{"type": "nonsense"}]
    with pytest.raises(InvalidRequest) as caught:
        await read({"format": {"type": "or", "elements": elements}})
    assert caught.value.code == "grammar_too_complex"

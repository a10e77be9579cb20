"""Which format a model's replies have: told from its template, or by the operator, or refused in one line."""

from __future__ import annotations

import pytest

from engine.errors import StartError
from gateway.chat_template import ChatTemplate
from gateway.config import EngineOptions, ModelOptions
from gateway.reply_format import UnknownFormat, reply_format
from gateway.serve import HASH_MODEL, open_model
from gateway.tokenizer import Tokenizer
from gateway.tools.families import DEFAULT, FAMILIES
from gateway.tools.shapes import marker_texts
from gateway.tools.spelling import can_spell

THINKS = "{{ message.content.split('</think>')[-1] }}"


KNOWS_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[0].content }}"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, Tokenizer.hash())


def marks(thoughts: object) -> tuple[str, ...]:
    return () if thoughts is None else marker_texts(thoughts.open, thoughts.close)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "reasoning", "expected"),
    [
        (None, "auto", ()),
        ("{{ messages }}", "auto", ()),
        (THINKS, "auto", ("<think>", "</think>")),
        (THINKS, "none", ()),
        (THINKS, "mistral", ("[THINK]", "[/THINK]")),
        ("{{ messages }}", "think", ("<think>", "</think>")),
    ],
)
def test_the_marks_around_thoughts(source: str | None, reasoning: str, expected: tuple[str, ...]) -> None:
    chat = None if source is None else template(source)
    assert marks(reply_format(chat, reasoning=reasoning).thoughts) == expected


@pytest.mark.parametrize("name", FAMILIES)
def test_the_format_of_calls(name: str) -> None:
    assert reply_format(template(KNOWS_TOOLS), tools=name).name == name
    if can_spell(FAMILIES[name]):
        assert reply_format(template("{{ messages[0].content }}"), tools=name).name == name
    else:
        with pytest.raises(
            UnknownFormat, match=r"takes no tools cannot be told of .*: choose auto, .*hermes"
        ):
            reply_format(template("{{ messages[0].content }}"), tools=name)


def test_names_are_read_generously() -> None:
    assert reply_format(template(KNOWS_TOOLS), tools="Qwen-2.5").name == "qwen_3"


@pytest.mark.parametrize(
    ("tools", "source", "expected"),
    [
        ("cohere", "<|END_THINKING|>", ("<|START_THINKING|>", "<|END_THINKING|>")),
        ("cohere", "", ()),
        ("cohere", "</think>", ("<think>", "</think>")),
        ("harmony", "", marks(FAMILIES["harmony"].thoughts)),
    ],
)
def test_a_family_thinks_in_its_own_way(tools: str, source: str, expected: tuple[str, ...]) -> None:
    assert marks(reply_format(template(KNOWS_TOOLS + source), tools=tools).thoughts) == expected


def test_without_a_template_that_says_it_is_the_default() -> None:
    assert reply_format(None).name == reply_format(template("{{ messages }}")).name == DEFAULT.name


@pytest.mark.parametrize("field", ["tools", "reasoning"])
def test_an_unknown_name(field: str) -> None:
    with pytest.raises(UnknownFormat, match=r"^there is no \w+ format 'nope': choose auto, .*\w$"):
        reply_format(None, **{field: "nope"})


@pytest.mark.parametrize("option", ["tool_format", "reasoning_format"])
def test_a_start_with_an_unknown_name_fails_in_one_line(option: str) -> None:
    with pytest.raises(StartError, match="'nope'") as failure:
        open_model(HASH_MODEL, ModelOptions(**{option: "nope"}), EngineOptions())  # type: ignore[arg-type]
    assert "\n" not in str(failure.value)

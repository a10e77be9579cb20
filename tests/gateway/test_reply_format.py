"""Which format a model's replies have: told from its template, or by the operator, or refused in one line."""

from __future__ import annotations

import pytest

from engine.errors import StartError
from gateway.config import EngineOptions, ModelOptions
from gateway.reply_format import UnknownFormat, reply_format
from gateway.serve import HASH_MODEL, open_model
from gateway.tools.families import DEFAULT, FAMILIES
from gateway.tools.shapes import marker_texts

THINKS = "{{ message.content.split('</think>')[-1] }}"


def marks(thoughts: object) -> tuple[str, ...]:
    return () if thoughts is None else marker_texts(thoughts.open, thoughts.close)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("template", "reasoning", "expected"),
    [
        (None, "auto", ()),
        ("{{ messages }}", "auto", ()),
        (THINKS, "auto", ("<think>", "</think>")),
        (THINKS, "none", ()),
        (THINKS, "mistral", ("[THINK]", "[/THINK]")),
        ("{{ messages }}", "think", ("<think>", "</think>")),
    ],
)
def test_the_marks_around_thoughts(template: str | None, reasoning: str, expected: tuple[str, ...]) -> None:
    assert marks(reply_format(template, reasoning=reasoning).thoughts) == expected


def test_the_format_of_calls() -> None:
    assert reply_format(None).name == DEFAULT.name
    for name in FAMILIES:
        assert reply_format("{{ messages }}", tools=name).name == name


@pytest.mark.parametrize("field", ["tools", "reasoning"])
def test_an_unknown_name(field: str) -> None:
    with pytest.raises(UnknownFormat, match=r"^there is no \w+ format 'nope': choose auto, .*\w$"):
        reply_format(None, **{field: "nope"})


@pytest.mark.parametrize("option", ["tool_format", "reasoning_format"])
def test_a_start_with_an_unknown_name_fails_in_one_line(option: str) -> None:
    with pytest.raises(StartError, match="'nope'") as failure:
        open_model(HASH_MODEL, ModelOptions(**{option: "nope"}), EngineOptions())  # type: ignore[arg-type]
    assert "\n" not in str(failure.value)

"""Strings that go round in circles, numbers of endless digits, and what is none of these."""

from __future__ import annotations

import numpy as np
import pytest

from engine.runaway import DIGITS, REPEATS, SPAN, TAIL, RunawayGuard, goes_round, has_values
from grammar.backends.base import Bits
from grammar.backends.llguidance import LLGuidance
from grammar.matcher import Matcher
from grammar.spec import Choice, Concat, Either, FreeText, JsonSchema, Literal, Repeat
from grammar.vocabulary import Vocabulary, byte_vocabulary

END = 256


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return byte_vocabulary(257, {"<end>": END})


@pytest.mark.parametrize(
    ("text", "round_and_round"),
    [
        ("x" * SPAN, True),
        ("x" * (SPAN - 1), False),
        ("begins otherwise, " + "no, " * (SPAN // 4), True),
        ("no, " * (SPAN // 4) + "n", True),
        ("no, " * (SPAN // 4) + "N", False),
        ("twelve chars" * REPEATS, True),
        ("twelve chars" * (REPEATS - 1), False),
        ("abcdefghijklmnopqrstuvwxyz0123456789" * REPEATS, True),
        ("a sentence that says a thing and then another thing, as sentences do", False),
        ("", False),
    ],
)
def test_what_goes_round(text: str, round_and_round: bool) -> None:
    assert goes_round(text.encode()[-TAIL:]) == round_and_round


def _mask(vocabulary: Vocabulary, schema: str, written: str) -> tuple[Bits, bool]:
    """The mask behind some text, and whether the guard changed it."""
    matcher = Matcher(LLGuidance(vocabulary).compile(JsonSchema(schema)), (END,), vocabulary)
    for byte in written.encode():
        matcher.accept(byte)
    row = np.zeros(vocabulary.words, dtype=np.int32)
    matcher.fill(row)
    tail = list(written.encode()[-TAIL:])
    return row, not matcher.accepting and RunawayGuard.of(vocabulary).restrain(row, tail)


def _allowed(row: Bits) -> bytes:
    return bytes(i for i in range(256) if row[i // 32] >> (i % 32) & 1)


STRING = (
    '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
)
NUMBER = STRING.replace("string", "number")


def test_a_string_that_goes_round_may_only_end(vocabulary: Vocabulary) -> None:
    row, changed = _mask(vocabulary, STRING, '{"a": "' + "no, " * SPAN)
    assert changed
    assert _allowed(row) == b'"'


def test_a_number_of_endless_digits_may_only_end(vocabulary: Vocabulary) -> None:
    row, changed = _mask(vocabulary, NUMBER, '{"a": 0.' + "3141592653" * 4)
    assert changed
    assert not set(_allowed(row)) & set(b"0123456789")
    assert b"}" in _allowed(row)


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        (STRING, '{"a": "' + "no, " * (SPAN // 4 - 1)),
        (STRING, '{"a": "' + "0" * (SPAN - 1)),
        (NUMBER, '{"a": 0.' + "3" * (DIGITS - 1)),
        ('{"type":"array","items":{"type":"integer"}}', "[" + "0, " * SPAN),  # a row of zeros is data
        (STRING.replace('"string"', f'"string","minLength":{9 * SPAN}'), '{"a": "' + "no, " * SPAN),
    ],
)
def test_what_may_go_on(vocabulary: Vocabulary, schema: str, written: str) -> None:
    _, changed = _mask(vocabulary, schema, written)
    assert not changed


@pytest.mark.parametrize("thought", ["no, " * SPAN, "0" * 2 * DIGITS])
def test_thoughts_before_a_value_are_free(vocabulary: Vocabulary, thought: str) -> None:
    tree = Concat((FreeText(("</t>",)), Literal("</t>"), JsonSchema(STRING)))
    matcher = Matcher(LLGuidance(vocabulary).compile(tree), (END,), vocabulary)
    for byte in thought.encode():
        matcher.accept(byte)
    row = np.zeros(vocabulary.words, dtype=np.int32)
    matcher.fill(row)
    assert not matcher.accepting
    assert not RunawayGuard.of(vocabulary).restrain(row, list(thought.encode()[-TAIL:]))


def test_a_vocabulary_without_a_quotation_mark_is_left_alone() -> None:
    guard = RunawayGuard.of(Vocabulary((b"ab",), {}, 32))
    row = np.full(1, -1, dtype=np.int32)
    assert not guard.restrain(row, [0] * TAIL)


@pytest.mark.parametrize(
    ("grammar", "has"),
    [
        (JsonSchema("{}"), True),
        (Concat((Literal("a"), Either((FreeText(), Repeat(JsonSchema("{}")))))), True),
        (Concat((FreeText(("<",)), Choice(("a", "b")))), False),
    ],
)
def test_values_are_looked_for_everywhere(grammar: JsonSchema | Concat, has: bool) -> None:
    assert has_values(grammar) == has

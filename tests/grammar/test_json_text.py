"""JSON text: one text, one meaning."""

from __future__ import annotations

import pytest

from grammar import json_text
from grammar.errors import BadSchema


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Not JSON"),
        ("{} {}", "Not JSON"),
        ('{"a": 1,}', "Not JSON"),
        ("{'a': 1}", "Not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' comes twice"),
        ('{"enum": ["\\ud800"]}', "surrogate"),
        ('{"\\uDC00": 1}', "surrogate"),
        ("[NaN]", "NaN"),
        ("-Infinity", "-Infinity"),
        ("1e999", "1e999"),
        ("1" * 2000, "1000 digits"),
        ("[" * 200 + "]" * 200, "more than 128 deep"),
        (b'"\xff"', "UTF-8"),
        ("\ufeff{}", "Not JSON"),
    ],
)
def test_what_is_refused(text: str | bytes, says: str) -> None:
    with pytest.raises(BadSchema, match=says):
        json_text.parse(text)


def test_keys_keep_their_order_and_text_its_characters() -> None:
    value = json_text.parse('{"b": 1, "a": ["\\ud83d\\ude00", "]}[{", 1.50, true, null]}')
    assert list(value) == ["b", "a"]
    assert json_text.dump(value) == '{"b":1,"a":["😀","]}[{",1.5,true,null]}'


def test_brackets_in_strings_are_not_nesting() -> None:
    assert json_text.parse('["' + "[" * 300 + '\\""]', deepest=2) == ["[" * 300 + '"']


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": [2]}, {"b": [2.0], "a": 1.0}, True),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        ([1, 2], [2, 1], False),
    ],
)
def test_canonical_text_tells_json_values_apart(one: object, other: object, same: bool) -> None:
    assert (json_text.canonical(one) == json_text.canonical(other)) is same

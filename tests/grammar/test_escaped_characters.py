"""Character classes in patterns, against every way JSON has to write a character."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from grammar.backends.llguidance import LLGuidance
from grammar.contract import audit
from grammar.validate import Validator
from tests.grammar.cursors import BYTES, followed, spelled

CLASSES = [
    r"[^\"]",
    r"[^\\]",
    r"[^\",]",
    r"[^\"\\]",
    r"[^a]",
    r"[\x00-\x1f]",
    r"[\x00-\x21]",
    r"[\x00-!#-~]",
    r"[\x01-!]",
    r"[ -~]",
    r".",
    r"\S",
    r"\p{Cc}",
    r"\P{P}",
    r"\P{L}",
    r"[^\p{P}]",
    r"\W",
    r"\D",
    r"[\n\"]",
    r"(?:\x00|[\x01-!])",
]
FORGONE = {"\0"}
"""What may be lost to keep a class from taking too much."""


def written(char: str) -> Iterator[str]:
    """JSON texts of a string of this character; engines need not take all of them."""
    yield json.dumps(char)
    if char not in '"\\' and char >= " ":
        yield f'"{char}"'
    yield f'"\\u{ord(char):04x}"'


@pytest.mark.parametrize("pattern", CLASSES)
def test_a_class_takes_its_characters_and_no_other_however_they_are_written(pattern: str) -> None:
    schema = {"type": "string", "pattern": f"^{pattern}$"}
    contract = audit(schema)
    assert not contract.checked
    compiled = LLGuidance(BYTES).compile(contract.grammar)
    for char in map(chr, range(0x80)):
        taken = False
        for text in written(char):
            cursor = compiled.start()
            taken |= followed(cursor, spelled(text)) and cursor.accepting()
        belongs = not Validator(schema).faults(char)
        assert taken == belongs or (belongs and char in FORGONE), (char, taken)

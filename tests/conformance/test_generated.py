"""Texts that the engine lets a model write, whatever the model is: they satisfy the client's schema, not just ours."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar.backends.base import Compiled
from grammar.backends.llguidance import LLGuidance
from grammar.contract import audit
from grammar.errors import BadSchema, TooComplex
from grammar.validate import Validator
from grammar.vocabulary import byte_vocabulary
from tests.grammar.schemas import schemas

from .engine import DATA

BYTES = byte_vocabulary(256, {})
LIKED = dict.fromkeys(b'"}]', 40.0) | dict.fromkeys(b"ab1\\", 6.0) | dict.fromkeys(b"{[,", 3.0)
"""Bytes that bring a text to an end, or to where it is interesting."""


@pytest.fixture(scope="module")
def backend() -> LLGuidance:
    return LLGuidance(BYTES)


def written(compiled: Compiled, source: random.Random) -> str | None:
    """A text by a model that knows nothing; None if it does not come to an end."""
    cursor = compiled.start()
    row = np.zeros(BYTES.words, dtype=np.int32)
    text = bytearray()
    while len(text) < 400:
        cursor.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        if not allowed or (cursor.accepting() and source.random() < 0.5):
            return text.decode() if cursor.accepting() else None
        weights = [LIKED.get(byte, 1.0 if byte < 128 else 0.02) for byte in allowed]
        byte = source.choices(allowed, weights)[0]
        assert cursor.accept(byte)
        text.append(byte)
    return None


def check(backend: LLGuidance, schema: Any, seed: int, tries: int) -> None:
    try:
        contract = audit(schema)
        validator = Validator(schema)
    except (BadSchema, TooComplex):
        return
    if contract.checked:
        return
    compiled = backend.compile(contract.grammar)
    source = random.Random(seed)
    for _ in range(tries):
        text = written(compiled, source)
        if text is not None:
            assert valid(validator, text), (text, schema, contract.grammar.schema)


def valid(validator: Validator, text: str) -> bool:
    try:
        return not validator.problems(text)
    except TooComplex:
        return True  # it would take too long to tell


@settings(
    max_examples=50,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(schemas(), st.integers(0, 1000))
def test_random_schemas(backend: LLGuidance, schema: Any, seed: int) -> None:
    check(backend, schema, seed, tries=6)


@pytest.mark.skipif(not DATA.exists(), reason="the table is not part of the repository")
def test_keywords(backend: LLGuidance) -> None:
    for row in json.loads((DATA / "keyword_results.json").read_text()):
        check(backend, row["schema"], seed=1, tries=5)


def test_no_key_slips_past_a_named_one_by_its_spelling(backend: LLGuidance) -> None:
    r"""`"\u0061"` is `"a"`: the engine compares additional keys with named ones as they are written."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    cursor = backend.compile(audit(schema).grammar).start()
    for byte in b'{"a": "x", "\\u006':
        if not cursor.accept(byte):
            return
    assert not cursor.accept(ord("1"))

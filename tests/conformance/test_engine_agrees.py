"""The engine on what we write for it: it accepts the text of a value exactly if the written schema accepts the value."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar.contract import audit
from grammar.errors import BadSchema, TooComplex
from tests.grammar.arrange import Rendered, text
from tests.grammar.schemas import schemas, values

from .engine import Engine


@settings(
    max_examples=50,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(schemas(), st.lists(values, min_size=1, max_size=8))
def test_engine_and_schema_agree(engine: Engine, schema: Any, instances: list[Any]) -> None:
    try:
        contract = audit(schema)
    except (BadSchema, TooComplex):
        return
    written = json.loads(contract.grammar.schema)
    compiled = engine.backend.compile(contract.grammar)
    rendered = Rendered(written)
    for value in instances:
        if jsonschema_rs.is_valid(written, value):
            assert engine.accepts(compiled, text(rendered.arranged(value))), f"{value!r} is lost"
        else:
            guesses = [text(guess) for guess in rendered.guesses(value)]
            assert not any(engine.accepts(compiled, guess) for guess in guesses), f"{value!r} slips through"

"""What is promised for random schemas: the same values, or more of them where something is only checked."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar.contract import audit
from grammar.errors import BadSchema, TooComplex

from .schemas import schemas, values


def valid(schema: Any, value: Any) -> bool:
    return jsonschema_rs.Draft202012Validator(schema).is_valid(value)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(schemas(), st.lists(values, min_size=1, max_size=12))
def test_the_grammar_accepts_what_the_schema_accepts(schema: Any, instances: list[Any]) -> None:
    try:
        contract = audit(schema)
    except TooComplex:
        return
    except BadSchema as refused:
        if "'" not in str(refused) and "applies itself" not in str(refused):
            assert not any(valid(schema, value) for value in instances), "satisfiable, but refused as not"
        return
    rendered = json.loads(contract.grammar.schema)
    for value in instances:
        wanted, got = valid(schema, value), valid(rendered, value)
        if wanted:
            assert got, f"{value!r} is lost: {contract.grammar.schema}"
        elif not contract.checked:
            assert not got, f"{value!r} slips through: {contract.grammar.schema}"


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(schemas())
def test_every_keyword_gets_one_verdict(schema: Any) -> None:
    try:
        contract = audit(schema)
    except (BadSchema, TooComplex):
        return
    paths = [verdict.path for verdict in contract.verdicts]
    assert len(set(paths)) == len(paths)
    assert {"/" + keyword for keyword in schema} <= set(paths)
    assert all(
        (verdict.outcome == "enforced") == (verdict.backend is not None) for verdict in contract.verdicts
    )
    assert all(verdict.reason for verdict in contract.checked)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_schema_gives_the_same_contract(seed: int) -> None:
    schema = {"oneOf": [{"required": [name]} for name in "abc"[: seed + 1]], "type": "object"}
    assert audit(schema) == audit(json.loads(json.dumps(schema)))

"""How often a value is looked at: bounded from above, and tight enough for real schemas."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from grammar.check_cost import UNKNOWN, most_looks
from grammar.errors import TooComplex
from grammar.validate import MAX_LOOKS, UNTOLD, Validator

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "jsonschemabench"


def refs(*names: str) -> list[dict[str, str]]:
    return [{"$ref": f"#/$defs/{name}"} for name in names]


def doubling(levels: int, keyword: str) -> dict[str, Any]:
    """Twice as many looks at the same place with each definition."""
    defs: dict[str, Any] = {f"d{i}": {keyword: refs(f"d{i + 1}", f"d{i + 1}")} for i in range(levels)}
    return {"$defs": {**defs, f"d{levels}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


ITEMS = {"type": "array", "items": {"$ref": "#"}}
TWICE_INSIDE = {"anyOf": [ITEMS, {**ITEMS, "minItems": 1}, {"const": 1}]}
LINKED = {"properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}


@pytest.mark.parametrize(
    ("schema", "levels", "looks"),
    [
        # (schema, levels of nesting, the most looks at one place)
        (True, 3, (1, 1, 1, 1)),
        ({"type": "object"}, 2, (1, 1, 1)),
        ({"properties": {"a": {"items": {}}, "b": {}}}, 3, (1, 1, 1, 1)),
        ({"patternProperties": {"a": {}, "b": {}}, "additionalProperties": {}}, 1, (1, 3)),
        ({"items": [{}, {"not": {}}], "contains": {}}, 1, (1, 3)),
        ({"prefixItems": [{}, {}], "items": {}}, 1, (1, 1)),
        ({"allOf": [{}, {}], "if": {}, "then": {}, "not": {}}, 0, (6,)),
        ({"dependentSchemas": {"a": {}, "b": {}}}, 0, (3,)),
        ({"$ref": "#"}, 1, (1, 1)),
        ({"$ref": "#/$defs/a%20b~1", "$defs": {"a b/": {"not": {}}}}, 0, (3,)),
        ({"$ref": "#name", "$defs": {"x": {"$anchor": "name"}}}, 0, (2,)),
        ({"$ref": "http://x/y", "$defs": {"x": {"$id": "http://x/y"}}}, 0, (2,)),
        ({"$ref": "#/prefixItems/1", "prefixItems": [{}, {"not": {}}]}, 0, (3,)),
        ({"$ref": "#/nowhere"}, 0, (UNKNOWN,)),
        ({"$ref": "http://json-schema.org/draft-07/schema#"}, 1, (UNKNOWN, UNKNOWN)),
        (LINKED, 4, (1, 4, 4, 4, 4)),
        (TWICE_INSIDE, 3, (4, 10, 20, 40)),
        (doubling(3, "allOf"), 0, (30,)),
    ],
)
def test_looks(schema: Any, levels: int, looks: tuple[int, ...]) -> None:
    assert most_looks(schema, levels) == looks


def test_a_chain_of_references_costs_no_stack() -> None:
    defs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(20_000)}
    assert most_looks({"$defs": {**defs, "d20000": {}}, "$ref": "#/$defs/d0"}, 1) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (doubling(60, "allOf"), "1"),
        (doubling(60, "anyOf"), '"x"'),
        (doubling(60, "oneOf"), '"x"'),
        (TWICE_INSIDE, "[" * 60 + "2" + "]" * 60),
    ],
)
def test_what_would_take_for_ever_is_not_begun(schema: Any, text: str) -> None:
    with pytest.raises(TooComplex):
        Validator(schema).problems(text)


def test_what_would_take_long_to_explain_is_not_explained() -> None:
    begun = time.perf_counter()
    assert Validator(TWICE_INSIDE).problems("[" * 12 + "2" + "]" * 12) == (UNTOLD,)
    assert Validator(TWICE_INSIDE).problems("[" * 12 + "1" + "]" * 12) == ()
    assert time.perf_counter() - begun < 0.5


@pytest.mark.skipif(not DATA.exists(), reason="needs the shared data")
def test_real_schemas_stay_far_below_the_limit() -> None:
    schemas = 0
    for path in sorted(DATA.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            case = json.loads(line)
            assert most_looks(case["schema"], 8)[-1] < MAX_LOOKS / 100, case["id"]
            schemas += 1
    assert schemas > 400

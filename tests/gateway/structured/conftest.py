"""A contract of the test's own making, so that these tests do not change when more keywords can be enforced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from grammar import contract
from grammar.contract import Contract, Verdict
from grammar.spec import JsonSchema

Promise = Callable[[Mapping[str, Any]], Contract]


def promised(schema: Mapping[str, Any]) -> Contract:
    """Everything is enforced but `uniqueItems` at the root."""
    verdicts = [
        Verdict(f"/{keyword}", keyword, "checked", None, "no engine can")
        if keyword == "uniqueItems"
        else Verdict(f"/{keyword}", keyword, "enforced", "llguidance")
        for keyword in schema
    ]
    return Contract(JsonSchema(orjson.dumps(schema).decode()), tuple(verdicts))


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The schemas that were audited, each by `promised`."""
    seen: list[object] = []

    def audit(schema: Any, *, undeclared_keys: bool) -> Contract:
        assert not undeclared_keys
        seen.append(schema)
        return promised(schema)

    monkeypatch.setattr(contract, "audit", audit)
    return seen

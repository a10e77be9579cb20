"""The official suite for draft 2020-12: nothing invalid slips through; what cannot be enforced is refused by name."""

from __future__ import annotations

import json

import pytest

from .engine import DATA, Case, Engine, run

FOLDER = DATA / "json-schema-test-suite" / "tests" / "draft2020-12"

FORMATS_ARE_ENFORCED = "is only an annotation by default"
"""The suite reads `format` as the draft does by default; we enforce it, as every client means it."""
NARROWER = {
    "no validation: invalid number, but it still validates",  # a meta-schema that switches keywords off
}


@pytest.mark.skipif(not FOLDER.exists(), reason="the suite is not part of the repository")
def test_suite(engine: Engine) -> None:
    cases = []
    for file in sorted(FOLDER.glob("*.json")):
        for group in json.loads(file.read_text()):
            tests = [
                (test["data"], test["valid"])
                for test in group["tests"]
                if FORMATS_ARE_ENFORCED not in test["description"] and test["description"] not in NARROWER
            ]
            cases.append(Case(f"{file.stem}: {group['description']}", group["schema"], tests))
    table = run(engine, cases)
    table.print("JSON-Schema-Test-Suite 2020-12")
    assert not table.let_through
    assert not table.lost
    assert table.exact >= 0.78 * len(cases)

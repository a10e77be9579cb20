"""415 real schemas with valid and invalid values: nothing invalid slips through, and nine in ten are enforced whole."""

from __future__ import annotations

import json

import pytest

from .engine import DATA, Case, Engine, run

FOLDER = DATA / "jsonschemabench"


@pytest.mark.skipif(not FOLDER.exists(), reason="the schemas are not part of the repository")
@pytest.mark.timeout(300)
def test_real_schemas(engine: Engine) -> None:
    cases = []
    for file in sorted(FOLDER.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            tests = [(test["data"], test["valid"]) for test in row["tests"]]
            cases.append(Case(row["id"], row["schema"], tests))
    table = run(engine, cases)
    table.print("jsonschemabench")
    assert not table.let_through
    assert not table.lost
    assert table.exact >= 0.9 * len(cases)
    assert sorted(table.compile)[len(table.compile) * 95 // 100] < 0.1

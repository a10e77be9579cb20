"""The table of keywords that three engines were measured on: ours has no wrong entry."""

from __future__ import annotations

import json

import pytest

from .engine import DATA, Case, Engine, run

FILE = DATA / "keyword_results.json"


@pytest.mark.skipif(not FILE.exists(), reason="the table is not part of the repository")
def test_keywords(engine: Engine) -> None:
    cases = [
        Case(
            f"{row['keyword']} {row['case']}".strip(),
            row["schema"],
            [(value, True) for value in row["valid"]] + [(value, False) for value in row["invalid"]],
        )
        for row in json.loads(FILE.read_text())
    ]
    table = run(engine, cases)
    table.print("keywords")
    assert not table.let_through
    assert not table.lost
    assert table.exact >= 0.85 * len(cases)

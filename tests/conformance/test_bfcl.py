"""Some of the Berkeley leaderboard's function-calling cases on the demo model; `bfcl` asks them all."""

from __future__ import annotations

import pytest

from tests.end_to_end.server import Server

from .bfcl import Case, Outcome, ask_all, cases, problem, table

_ALL = cases()

pytestmark = [
    pytest.mark.demo_model,
    pytest.mark.skipif(not _ALL, reason="the cases are not beside the repository"),
]


def _some() -> list[Case]:
    """Of each category the one whose offer is neither large nor small."""
    by_category: dict[str, list[Case]] = {}
    for case in _ALL:
        by_category.setdefault(case.category, []).append(case)
    groups = [sorted(group, key=lambda case: len(str(case.tools))) for group in by_category.values()]
    return [group[len(group) // 2] for group in groups]


@pytest.mark.timeout(180)
async def test_required_calls_fit_their_tools(demo_server: Server) -> None:
    outcomes = await ask_all(demo_server.url, _some(), max_tokens=256)
    print(f"\n{table(outcomes)}")
    assert [(outcome.case.id, outcome.problem) for outcome in outcomes if outcome.problem] == []
    whole = [outcome for outcome in outcomes if not outcome.truncated]
    assert len(whole) >= len(outcomes) / 3, "what is cut off says little"


@pytest.mark.parametrize(
    ("calls", "finish"),
    [
        ([("f", '{"a": 1}'), ("g", "{}")], "tool_calls"),
        ([("f", '{"a": "x"}')], "tool_calls"),
        ([("f", '{"a": 1')], "tool_calls"),
        ([("f", "5")], "tool_calls"),
        ([("f", '{"a": 1}')], "stop"),
        ([], "tool_calls"),
        ([("f", '{"a": "x"}'), ("f", '{"a"')], "length"),
    ],
)
def test_a_wrong_answer_is_seen(calls: list[tuple[str, str]], finish: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    case = Case("case", "category", [], tools, [])
    assert problem(Outcome(case, calls, finish)) is not None

"""Function-calling cases of the Berkeley leaderboard, asked with `tool_choice: "required"`: calls must fit their tools.

    python -m tests.conformance.bfcl [URL]

asks all of `../shared/data/bfcl` of a running server, or of the demo model, and prints a table. `right` counts the cases
whose functions are those of the ground truth: the skill of the model, nothing that we promise.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
from openai import APIError, AsyncOpenAI

from tests.end_to_end.server import Server

FOLDER = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "bfcl"
MAX_TOKENS = 512
CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class Case:
    id: str
    category: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    expected: list[str]
    """The functions of the ground truth, in order."""

    def parameters(self, name: str) -> dict[str, Any] | None:
        """What the client said the function takes; None if it offered no such function."""
        for tool in self.tools:
            if tool["function"]["name"] == name:
                schema: dict[str, Any] = tool["function"]["parameters"]
                return schema
        return None


@dataclass(slots=True)
class Outcome:
    """`problem` is the first thing about the answer that is not as it must be."""

    case: Case
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str = ""
    tokens: int = 0
    problem: str | None = None

    @property
    def truncated(self) -> bool:
        return self.finish == "length"

    @property
    def right(self) -> bool:
        return [name for name, _ in self.calls] == self.case.expected


def cases() -> list[Case]:
    """All of them; none where the data is not."""
    found = []
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            given = json.loads(line)
            truth = [next(iter(call)) for call in given["ground_truth"] or ()]
            found.append(Case(given["id"], path.stem, given["question"][0], given["tools"], truth))
    return found


async def ask(client: AsyncOpenAI, model: str, case: Case, **options: Any) -> Outcome:
    """Ask one case, and look at what comes."""
    outcome = Outcome(case)
    try:
        completion = await client.chat.completions.create(
            model=model,
            messages=case.messages,  # type: ignore[arg-type]
            tools=case.tools,  # type: ignore[arg-type]
            tool_choice="required",
            **{"max_tokens": MAX_TOKENS, "seed": 0, **options},
        )
    except APIError as error:
        outcome.problem = f"refused: {error}"
        return outcome
    choice = completion.choices[0]
    outcome.finish = choice.finish_reason
    outcome.tokens = completion.usage.completion_tokens
    outcome.calls = [
        (call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()
    ]
    outcome.problem = problem(outcome)
    return outcome


def problem(outcome: Outcome) -> str | None:
    """A call that was cut by the limit may be the last one, and is nothing but a beginning."""
    expected = "length" if outcome.truncated else "tool_calls"
    if outcome.finish != expected:
        return f"finished with {outcome.finish}"
    if not outcome.calls and not outcome.truncated:
        return "no call"
    whole = outcome.calls[:-1] if outcome.truncated else outcome.calls
    for name, arguments in whole:
        if (found := _call_problem(outcome.case, name, arguments)) is not None:
            return found
    return None


def _call_problem(case: Case, name: str, arguments: str) -> str | None:
    schema = case.parameters(name)
    if schema is None:
        return f"calls {name!r}, which was not offered"
    try:
        value = json.loads(arguments)
    except ValueError as error:
        return f"arguments of {name} are no JSON: {error}: {arguments!r}"
    if not isinstance(value, dict):
        return f"arguments of {name} are no object: {arguments!r}"
    try:
        jsonschema_rs.Draft202012Validator(schema).validate(value)
    except jsonschema_rs.ValidationError as error:
        return f"arguments of {name} do not validate: {error.message}: {arguments!r}"
    return None


async def ask_all(
    url: str, asked: Sequence[Case], *, concurrency: int = CONCURRENCY, **options: Any
) -> list[Outcome]:
    """All of them, so many at once, in the order given."""
    turn = asyncio.Semaphore(concurrency)
    async with AsyncOpenAI(base_url=url, api_key="unused", timeout=300) as client:
        model = (await client.models.list()).data[0].id

        async def one(case: Case) -> Outcome:
            async with turn:
                return await ask(client, model, case, **options)

        return await asyncio.gather(*[one(case) for case in asked])


def table(outcomes: Sequence[Outcome]) -> str:
    rows = [f"{'category':24}{'cases':>7}{'calls':>7}{'whole':>7}{'cut':>6}{'wrong':>7}{'right':>7}"]
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for name in (outcome.case.category, "all"):
            count = counts.setdefault(name, Counter())
            count["cases"] += 1
            count["calls"] += len(outcome.calls)
            count["whole"] += not outcome.truncated and outcome.problem is None
            count["cut"] += outcome.truncated
            count["wrong"] += outcome.problem is not None
            count["right"] += outcome.right
    for name in sorted(counts, key=lambda name: (name == "all", name)):
        count = counts[name]
        cells = f"{count['cases']:7}{count['calls']:7}{count['whole']:7}{count['cut']:6}{count['wrong']:7}{count['right']:7}"
        rows.append(f"{name:24}{cells}")
    return "\n".join(rows)


@contextmanager
def _demo() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        server = Server(Path(directory), "--drain-delay", "0", model=None)
        try:
            yield server.url
        finally:
            server.stop()


def _run(url: str) -> int:
    asked = cases()
    began = time.monotonic()
    outcomes = asyncio.run(ask_all(url, asked))
    took = time.monotonic() - began
    for outcome in outcomes:
        if outcome.problem is not None:
            print(f"{outcome.case.id}: {outcome.problem}")
    print(table(outcomes))
    tokens = sum(outcome.tokens for outcome in outcomes)
    print(f"{took:.0f} s, {tokens / took:.0f} tokens/s")
    return any(outcome.problem is not None for outcome in outcomes)


def main() -> int:
    if len(sys.argv) > 1:
        return _run(sys.argv[1])
    with _demo() as url:
        return _run(url)


if __name__ == "__main__":
    sys.exit(main())

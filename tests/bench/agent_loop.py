"""How much of what an agent sends again is found: `python -m tests.bench.agent_loop [MODEL] [TURNS]`.

An agent calls a tool in every turn, which it is made to (`tool_choice: required`), and sends the conversation back with the
tool's result. Printed for each way of keeping the history is the share of the re-sent tokens (the prompt of the turn before
and what was generated behind it) that was found in the cache, the worst turn and all together:

canonical   stateless chat, tokenised anew in every turn
spliced     stateless chat, `--splice-bytes`
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from openai import OpenAI

from .served import Served, serve

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    parameter: {"type": "string", "maxLength": 40},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                },
                "required": [parameter, "limit"],
                "additionalProperties": False,
            },
        },
    }
    for name, description, parameter in (
        ("search_files", "Find files whose text holds a word.", "word"),
        ("read_file", "Read the first lines of a file.", "path"),
        ("run_tests", "Run the tests of a package.", "package"),
    )
]
SYSTEM = "You mend programs. Look around with the tools, one call after the other, before you say anything."


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else ""
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    for name, flags in (("canonical", ()), ("spliced", ("--splice-bytes", "64MiB"))):
        with serve(model, *flags) as server:
            _report(name, _measure(server, turns, _chat))


def _report(name: str, turns: list[tuple[int, int]]) -> None:
    shares = [found / sent for found, sent in turns]
    whole = sum(found for found, _ in turns) / sum(sent for _, sent in turns)
    print(
        f"{name:10} worst turn {min(shares):7.2%}   all {whole:7.2%}   (last turn: {turns[-1][1]} tokens re-sent)"
    )


def _measure(server: Served, turns: int, turn: Callable[..., Any]) -> list[tuple[int, int]]:
    """For each turn but the first how many tokens were found, and how many were sent again."""
    rng = random.Random(1)
    with OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=300) as client:
        return list(turn(client, client.models.list().data[0].id, turns, rng))


def _chat(client: OpenAI, model: str, turns: int, rng: random.Random) -> Any:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "The build is broken since this morning. Why?"},
    ]
    before = 0
    for number in range(turns):
        answer = client.chat.completions.create(
            model=model,
            messages=messages,  # type: ignore[arg-type]
            tools=TOOLS,  # type: ignore[arg-type]
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=1.0,
            seed=number,
            max_tokens=160,
        )
        usage, message = answer.usage, answer.choices[0].message
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        if before:
            yield usage.prompt_tokens_details.cached_tokens or 0, before
        before = usage.prompt_tokens + usage.completion_tokens - 1  # the last token was never computed
        messages.append(message.model_dump(exclude_none=True, exclude={"refusal", "annotations"}))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": _result(rng)}
            for call in message.tool_calls or ()
        ]


def _result(rng: random.Random) -> str:
    words = ("build", "error", "module", "line", "test", "import", "passed", "failed", "config", "path")
    return " ".join(rng.choice(words) for _ in range(rng.randint(10, 40)))


if __name__ == "__main__":
    main()

"""What a schema costs while decoding, and what its forced tokens gain: `python -m tests.bench.constrained_decode MODEL_DIR`.

Eight answers at a time, one after the other until all are made, through the library door: once free, once under the
schema token by token, once with forced tokens. Every request is as long in each of the three, so that the batches have
the same shape. The three take turns, and the best turn of each counts, since whatever else runs on the machine only takes
away. `cpu` is the processor time of all threads for a token, which a busy machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.llm import LLM
from engine.request import SamplingParams
from grammar.spec import JsonSchema

STREAMS = 8
PROMPT = "<|im_start|>user\nA {} from the list of our customers, as JSON.<|im_end|>\n<|im_start|>assistant\n"
SUBJECTS = ("carpenter", "school", "bakery", "farmer", "library", "pilot", "hotel", "nurse")


def text(longest: int) -> dict[str, object]:
    return {"type": "string", "maxLength": longest}


def record(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMA = record(
    customer_id={"type": "integer", "minimum": 1, "maximum": 99999},
    full_name=text(24),
    contact=record(
        email_address=text(24), phone_number=text(16), preferred_channel={"enum": ["email", "phone"]}
    ),
    billing_address=record(
        street_line=text(24),
        postal_code=text(8),
        city_name=text(16),
        country_code={"enum": ["DE", "FR", "US"]},
    ),
    recent_orders={
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": record(
            order_number={"type": "integer", "minimum": 1, "maximum": 999},
            total_amount={"type": "number", "minimum": 0, "maximum": 1000},
            is_delivered={"type": "boolean"},
        ),
    },
    newsletter_subscription={"type": "boolean"},
)


@dataclass(frozen=True, slots=True)
class Turn:
    tokens: int
    seconds: float
    cpu: float
    steps: int
    forced: int
    lengths: tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(arguments.model_dir / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    prompts = [
        tokenizer.encode(PROMPT.format(SUBJECTS[i % len(SUBJECTS)])).ids for i in range(arguments.requests)
    ]
    grammar = JsonSchema(json.dumps(SCHEMA))

    def sampling(limits: list[int], *ends: int) -> list[SamplingParams]:
        return [
            SamplingParams(max_tokens=limit, temperature=0.7, seed=seed, stop_token_ids=ends)
            for seed, limit in enumerate(limits)
        ]

    config = EngineConfig(
        model_dir=str(arguments.model_dir), max_running=STREAMS, kv_bytes=2**29, max_model_len=2048
    )
    unforced = EngineConfig(
        model_dir=config.model_dir,
        max_running=STREAMS,
        kv_bytes=2**29,
        max_model_len=2048,
        forced_tokens=False,
    )
    with LLM(config) as fast, LLM(unforced) as plain:
        under_schema = sampling([400] * len(prompts), end)
        for llm in (fast, plain):
            llm.generate(prompts, under_schema, grammar=grammar)  # compiles, and fills what is filled once
        lengths = list(turn(plain, lambda llm: llm.generate(prompts, under_schema, grammar=grammar)).lengths)
        best: dict[str, Turn] = {}
        for _ in range(arguments.turns):
            for name, llm, run in (
                ("free", plain, lambda llm: llm.generate(prompts, sampling(lengths))),
                ("schema", plain, lambda llm: llm.generate(prompts, under_schema, grammar=grammar)),
                ("schema, forced tokens", fast, lambda llm: llm.generate(prompts, under_schema, grammar=grammar)),
            ):  # fmt: skip
                made = turn(llm, run)
                if name not in best or made.seconds < best[name].seconds:
                    best[name] = made
    report(best)


def turn(llm: LLM, run: Callable[[LLM], list[object]]) -> Turn:
    before, began, cpu = llm.counters, time.perf_counter(), time.process_time()
    completions = run(llm)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    after = llm.counters
    return Turn(
        after.generated_tokens - before.generated_tokens,
        seconds,
        cpu,
        after.steps - before.steps,
        after.forced_tokens - before.forced_tokens,
        tuple(len(completion.answers[0].tokens) for completion in completions),
    )


def report(best: dict[str, Turn]) -> None:
    base = best["free"]
    print("| 8 streams | tokens | steps | forced | tokens/s | of free | cpu ms/token | of free |")
    print("|---|---|---|---|---|---|---|---|")
    for name, made in best.items():
        rate, cost = made.tokens / made.seconds, made.cpu / made.tokens * 1000
        print(
            f"| {name} | {made.tokens} | {made.steps} | {made.forced / made.tokens:.0%} | {rate:.0f} "
            f"| {rate * base.seconds / base.tokens:.0%} | {cost:.2f} | {cost / (base.cpu / base.tokens * 1000):.0%} |"
        )


if __name__ == "__main__":
    main()

"""How far an answer moves when its prompt is found in the cache, cut otherwise, or computed beside others: `MODEL_DIR`.

    python -m tests.bench.cache_drift ~/.cache/headwater/models/smollm2-135m-instruct

For each kind of arithmetic the log-probability of every prompt token is computed in one step, alone, and again in random
chunks beside other rows. The table gives the largest difference (nats), how many of the most likely tokens differ, and the
rate at which a prompt is computed, so that it shows what determinism costs. 0 in the first two columns is exact.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator

import msgspec
from rich.console import Console
from rich.table import Table

from engine.config import EngineConfig
from engine.llm import LLM
from engine.request import GenerationRequest, SamplingParams, TokenLogprob

LENGTH = 600
PROMPTS = 4
KINDS = {
    "bfloat16, C kernels": {"dtype": "bfloat16"},
    "bfloat16, torch": {"dtype": "bfloat16", "native_kernels": False},
    "float32, C kernels": {"dtype": "float32"},
    "float32, torch": {"dtype": "float32", "native_kernels": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model_dir")
    model_dir = parser.parse_args().model_dir
    table = Table("arithmetic", "deterministic", "largest difference", "other best tokens", "prompt tokens/s")
    for name, changes in KINDS.items():
        for asked in (False, True):
            config = msgspec.convert(
                {"model_dir": model_dir, "pages": 512, "deterministic": asked, **changes}, EngineConfig
            )
            difference, flips, rate, kept = _measure(config)
            table.add_row(
                name,
                ("asked for" if asked else "by itself") if kept else "no",
                f"{difference:.2g}",
                str(flips),
                f"{rate:.0f}",
            )
            if kept and not asked:
                break  # asking for it would change nothing
    Console(width=110).print(table)


def _measure(config: EngineConfig) -> tuple[float, int, float, bool]:
    noise = random.Random(7)
    whole = msgspec.structs.replace(config, max_running=1, max_step_tokens=1024, prefix_cache=False)
    with (
        LLM(whole) as alone,
        LLM(msgspec.structs.replace(config, max_running=16, max_step_tokens=96)) as shared,
    ):
        size = alone.info.vocab_size
        prompts = [[noise.randrange(size) for _ in range(LENGTH)] for _ in range(PROMPTS)]
        begun = time.perf_counter()
        expected = [scores for prompt in prompts for scores in _scores(alone, [prompt])]
        rate = LENGTH * PROMPTS / (time.perf_counter() - begun)
        found = _scores(shared, prompts)
        kept = alone.info.deterministic
    pairs = [
        pair for one, other in zip(expected, found, strict=True) for pair in zip(one, other, strict=True)
    ]
    return (
        max(abs(one.logprob - other.logprob) for one, other in pairs),
        sum(one.top[0][0] != other.top[0][0] for one, other in pairs),
        rate,
        kept,
    )


_numbers = itertools.count()


def _scores(llm: LLM, prompts: list[list[int]]) -> list[list[TokenLogprob]]:
    sampling = SamplingParams(max_tokens=0, prompt_logprobs=1)
    requests = [
        GenerationRequest(request_id=str(next(_numbers)), prompt=prompt, sampling=sampling)
        for prompt in prompts
    ]
    return [list(_known(completion.prompt_logprobs)) for completion in llm.answer(requests)]


def _known(scores: tuple[TokenLogprob | None, ...] | None) -> Iterator[TokenLogprob]:
    return (score for score in scores or () if score is not None)


if __name__ == "__main__":
    main()

"""What the text side costs: rates of tokenising, detokenising and stop search, each at two sizes.

usage: python -m tests.bench.text_cost [MODEL_DIR]

Without a directory it measures the byte tokenizer of the hash model.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gateway.chat_template import ChatTemplate
from gateway.detokenizer import Detokenizer
from gateway.stops import StopSearch
from gateway.tokenizer import Tokenizer

WORDS = (
    "the",
    "river",
    "carries",
    "stones,",
    "and",
    "42",
    "markets:",
    "naïve",
    "—",
    "wait!\n\n",
    "",
    "",
    "return",
    "x + 1",
)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    start = time.perf_counter()
    tokenizer = Tokenizer.hash() if path is None else Tokenizer.load(path)
    print(f"load: {1e3 * (time.perf_counter() - start):.0f} ms, {tokenizer.vocab_size} ids")
    template = ChatTemplate.hash(tokenizer) if path is None else ChatTemplate.load(path, tokenizer)
    rng = random.Random(0)
    for size in (2_000, 20_000):
        text = " ".join(rng.choices(WORDS, k=size))
        ids = tokenizer.encode(text, add_special=False)
        show(
            f"tokenise {len(text):,} characters",
            len(ids),
            lambda text=text: tokenizer.encode(text, add_special=False),
        )
        if template is not None:
            messages = [{"role": "user", "content": text}]
            show("  as a chat message", len(ids), lambda messages=messages: template.encode(messages))
        show(f"detokenise {len(ids):,} one by one", len(ids), lambda ids=ids: detokenise(tokenizer, ids))
        for name, stops in (
            ("a usual stop", ["\n\nUser:"]),
            ("sixteen long stops", [f"{'e ' * k}!" for k in range(20, 36)]),
        ):
            show(
                f"  and search {name}",
                len(ids),
                lambda ids=ids, stops=stops: detokenise(tokenizer, ids, stops),
            )


def detokenise(tokenizer: Tokenizer, ids: list[int], stops: list[str] | None = None) -> None:
    detokenizer, search = Detokenizer(tokenizer), StopSearch(stops or [])
    for token in ids:
        search.push(detokenizer.push((token,)))


def show(name: str, tokens: int, work: Callable[[], object]) -> None:
    """The best of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    best = min(times)
    print(f"{name:45} {1e6 * best / tokens:6.2f} µs a token, {tokens / best:12,.0f} tokens/s")


if __name__ == "__main__":
    main()

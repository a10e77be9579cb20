"""How soon an answer begins by where its prefix comes from: `python -m tests.bench.cache_tiers MODEL_DIR [ROUNDS]`.

Each round asks for one token after a prompt of 2,000 tokens of its own, and then after the same with another last token: from
the device, from the host's memory, and, by an engine that was started anew on the same directory, from disk: once with the
files in the kernel's page cache, once without. The library's door is used, so that neither HTTP nor a tokeniser is in the
way. Printed are medians, ratios to what they are to be compared with, and what each way moves in a second.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from engine.config import EngineConfig
from engine.llm import LLM
from engine.load_costs import LoadCosts
from engine.request import SamplingParams

PREFIX = 2000
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def main() -> None:
    model, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    seconds: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        config = EngineConfig(
            model_dir=model, max_model_len=4096, host_bytes=1 << 30, cache_dir=scratch, disk_bytes=2 << 30
        )
        with _started(config) as llm:
            for number in range(rounds):
                seconds["cold"].append(_ask(llm, _prompt(number, 0)))
                seconds["device"].append(_ask(llm, _prompt(number, 1)))
            pages, page_bytes = PREFIX // config.page_size, llm.info.page_bytes
            load = _costs(llm).host_page
        print(f"{pages} pages of {page_bytes} bytes, {pages * page_bytes / 1e6:.1f} MB")
        print(f"a page is loaded in {1e6 * load:.0f} us, {page_bytes / load / 1e9:.1f} GB/s")
        for name in ("disk", "cold disk"):
            if name == "cold disk":
                _drop_page_cache(Path(scratch))
            with _started(config) as llm:
                for number in range(rounds):
                    _after_restart(llm, name, number, seconds)
                read = _costs(llm).disk_page
            print(f"{name}: a page is read in {1e6 * read:.0f} us, {page_bytes / read / 1e9:.2f} GB/s")
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, median in medians.items():
        print(
            f"{name:10} {1000 * median:8.1f} ms   cold / it: {medians['cold'] / median:6.1f}   "
            f"it / host: {median / medians['host']:5.2f}   ({', '.join(f'{1000 * s:.0f}' for s in seconds[name])})"
        )


def _started(config: EngineConfig) -> LLM:
    llm = LLM(config)
    time.sleep(2.0)  # while its memory is prefaulted
    for seed in range(3):
        _ask(llm, [5, 6, 7, 8 + seed])  # the first steps of an engine are slower
    return llm


def _after_restart(llm: LLM, name: str, number: int, seconds: dict[str, list[float]]) -> None:
    """A prompt from disk, and then the same from the host's memory."""
    before = llm.counters.cache
    disk = _ask(llm, _prompt(number, 2))
    if llm.counters.cache.disk.hit_tokens - before.disk.hit_tokens < PREFIX:
        print(f"{name}: a read took longer than it was waited for, {1000 * disk:.0f} ms")
        return
    llm._engine._scheduler.cache.evict(1 << 30)
    while llm._engine._moves.save_now():
        pass
    host = _ask(llm, _prompt(number, 3))
    assert llm.counters.cache.host.hit_tokens - before.host.hit_tokens >= PREFIX, "not from the host's memory"
    seconds[name].append(disk)
    seconds["host"].append(host)


def _costs(llm: LLM) -> LoadCosts:
    return llm._engine._scheduler.tiers.costs


def _ask(llm: LLM, prompt: list[int]) -> float:
    began = time.perf_counter()
    stream = llm.stream(prompt, GREEDY)
    next(stream)
    taken = time.perf_counter() - began
    for _ in stream:
        pass
    return taken


def _prompt(number: int, last: int) -> list[int]:
    draw = random.Random(number)
    return [draw.randrange(1000, 40000) for _ in range(PREFIX)] + [100 + last, 7]


def _drop_page_cache(directory: Path) -> None:
    """Have the kernel forget what it has in memory of these files."""
    for path in (directory / "pages").rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


if __name__ == "__main__":
    main()

"""Each C kernel beside its torch reference on the demo model's shapes: `python -m tests.bench.kernels`.

Microseconds, the least of all repeats. Weights come from 24 copies taken in turn, more than the caches hold, because a
step reads each of its weights once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from engine.batch import PlannedRow
from engine.models.rope import Rotations
from engine.openmp import shorten_spinning
from tests.plans import make_sequence

HIDDEN, MLP, HEADS, KV_HEADS, WIDTH, PAGE_SIZE = 576, 1536, 9, 3, 64, 16
VOCABULARY = 49_152
MATRICES = {
    "qkv": ((HEADS + 2 * KV_HEADS) * WIDTH, HIDDEN),
    "output": (HIDDEN, HEADS * WIDTH),
    "gate_up": (2 * MLP, HIDDEN),
    "down": (HIDDEN, MLP),
}
COPIES = 24


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "headwater" / "native")
    arguments = parser.parse_args()

    shorten_spinning()
    import torch

    from engine.attention.native import NativeAttention
    from engine.attention.torch import TorchAttention
    from engine.kv_pool import LayerPages
    from engine.layers import TorchLayers
    from engine.native.build import build
    from engine.native.kernels import NativeLibrary
    from engine.step_inputs import step_inputs

    torch.set_num_threads(arguments.threads)
    library = NativeLibrary(build(arguments.cache), threads=arguments.threads)
    half = torch.bfloat16

    def show(label: str, native: Callable[[int], object], reference: Callable[[int], object]) -> None:
        ours, theirs = least(native, arguments.repeats), least(reference, arguments.repeats)
        print(f"| {label} | {ours:.0f} | {theirs:.0f} | {theirs / ours:.1f} |", flush=True)

    print("| kernel | C | torch | ratio |\n|---|---|---|---|")
    weights = {name: [torch.randn(shape).to(half) for _ in range(COPIES)] for name, shape in MATRICES.items()}
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        inputs = {depth: torch.randn(rows, depth).to(half) for depth in (HIDDEN, MLP)}

        def layer(product: Callable[..., object], at: int, inputs: dict[int, torch.Tensor] = inputs) -> None:
            for copies in weights.values():
                weight = copies[at % COPIES]
                product(inputs[weight.shape[1]], weight)

        show(
            f"linear, the four of a layer, {rows} rows",
            lambda at, layer=layer: layer(lambda x, w: library.linear(x, w, None, half), at),
            lambda at, layer=layer: layer(torch.nn.functional.linear, at),
        )
    for rows in (1, 8, 32):
        logits = torch.randn(rows, VOCABULARY)
        masks = torch.randint(-(2**31), 2**31, (rows, VOCABULARY // 32), dtype=torch.int32)
        every = torch.arange(rows)
        show(
            f"bar, {rows} x {VOCABULARY}, half of each row",
            lambda _, x=logits, r=every, m=masks: library.bar(x, r, m),
            lambda _, x=logits, r=every, m=masks: TorchLayers().bar(x, r, m),
        )
    for rows, cached, new in (
        (1, 159, 1),
        (8, 159, 1),
        (8, 159, 2),
        (8, 159, 4),
        (8, 159, 8),
        (32, 159, 1),
        (1, 1499, 1),
        (8, 610, 30),
        (1, 0, 512),
        (1, 1024, 512),
    ):
        pages = -(-(cached + new) // PAGE_SIZE)
        planned = [
            PlannedRow(
                make_sequence(r, range(cached + new), range(r * pages, (r + 1) * pages)),
                cached,
                new,
                sample=True,
            )
            for r in range(rows)
        ]
        batch = step_inputs(tuple(planned), page_size=PAGE_SIZE, rotations=Rotations(torch.ones(WIDTH // 2)))
        shape = (rows * pages, KV_HEADS, PAGE_SIZE, WIDTH)
        layer_pages = [LayerPages(torch.randn(shape).to(half), torch.randn(shape).to(half)) for _ in range(4)]
        queries = torch.randn(rows * new, HEADS, WIDTH).to(half)
        ours, theirs = NativeAttention(library), TorchAttention()
        show(
            f"attention, {rows} x {new} after {cached}",
            lambda at, a=ours, q=queries, p=layer_pages, b=batch: a.attend(q, p[at % 4], None, b),
            lambda at, a=theirs, q=queries, p=layer_pages, b=batch: a.attend(q, p[at % 4], None, b),
        )


def least(run: Callable[[int], object], repeats: int) -> float:
    """Microseconds."""
    times = []
    for at in range(repeats + 1):
        began = time.perf_counter()
        run(at)
        times.append(time.perf_counter() - began)
    return min(times[1:]) * 1e6


if __name__ == "__main__":
    main()

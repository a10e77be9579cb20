"""Each kernel against its torch reference: random shapes, odd sizes, shuffled pages, both element types.

The source is built twice: for this machine, and for a baseline CPU whose code has no bfloat16 instructions.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.base import Attention, HeadNorm
from engine.attention.native import NativeAttention
from engine.attention.torch import TorchAttention
from engine.batch import PlannedRow
from engine.kv_pool import LayerPages
from engine.layers import TorchLayers
from engine.models.rope import Rotations
from engine.native import build
from engine.native import prebuilt as prebuilding
from engine.native.kernels import NativeLibrary
from engine.native.layers import NativeLayers
from engine.native.prebuilt import LEVELS, prebuilt
from engine.step_inputs import StepInputs, step_inputs
from tests.plans import make_sequence

BUILDS = {"native": build.NATIVE_FLAGS, "baseline": ("-O1",)}
QUICK = ("-O0",)
DTYPES = (torch.float32, torch.bfloat16)
EXAMPLES = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.fixture(scope="module", params=BUILDS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    try:
        path = build.build(tmp_path_factory.mktemp("native"), machine_flags=BUILDS[request.param])
    except build.BuildError as error:
        pytest.skip(str(error))
    return NativeLibrary(path, threads=2)


def close(found: Tensor, expected: Tensor, *, scale: float = 1.0) -> None:
    """Within two roundings of bfloat16, which keeps 8 bits; or float32 sums in another order."""
    tolerance = 2.0**-6 if found.dtype is torch.bfloat16 else 2e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * scale)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# ---- layers ----------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(
    rows=st.integers(1, 70),
    outs=st.integers(1, 90),
    depth=st.integers(1, 9).map(lambda n: 32 * n),
    bias=st.booleans(),
)
def test_linear(library: NativeLibrary, rows: int, outs: int, depth: int, bias: bool) -> None:
    x = numbers(rows, depth, dtype=torch.bfloat16)
    weight = numbers(outs, depth, dtype=torch.bfloat16, seed=1)
    offset = numbers(outs, dtype=torch.bfloat16, seed=2) if bias else None
    exact = torch.nn.functional.linear(x.float(), weight.float(), None if offset is None else offset.float())
    close(library.linear(x, weight, offset, torch.float32), exact, scale=depth)
    close(library.linear(x, weight, offset, torch.bfloat16), exact.bfloat16(), scale=depth**0.5)


@pytest.mark.parametrize("depth", [64, 72])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_choose_torch_where_the_kernel_does_not_suit(
    library: NativeLibrary, depth: int, dtype: torch.dtype
) -> None:
    x, weight = numbers(3, depth, dtype=dtype), numbers(10, depth, dtype=dtype, seed=1)
    layers = NativeLayers(library)
    close(layers.linear(x, weight, None), TorchLayers().linear(x, weight, None), scale=depth**0.5)
    assert layers.logits(x, weight).dtype is torch.float32


@EXAMPLES
@given(rows=st.integers(1, 40), width=st.integers(1, 700), dtype=st.sampled_from(DTYPES))
def test_norms(library: NativeLibrary, rows: int, width: int, dtype: torch.dtype) -> None:
    native, reference = NativeLayers(library), TorchLayers()
    x, residual, weight = (numbers(rows, width, dtype=dtype, seed=i) for i in range(3))
    close(native.rms_norm(x, weight[0], 1e-5), reference.rms_norm(x, weight[0], 1e-5))
    ours, theirs = residual.clone(), residual.clone()
    close(native.add_rms_norm(x, ours, weight[0], 1e-5), reference.add_rms_norm(x, theirs, weight[0], 1e-5))
    assert torch.equal(ours, theirs)


@EXAMPLES
@given(rows=st.integers(1, 40), width=st.integers(1, 700), dtype=st.sampled_from(DTYPES))
def test_silu_mul(library: NativeLibrary, rows: int, width: int, dtype: torch.dtype) -> None:
    gate_up = numbers(rows, 2 * width, dtype=dtype) * 8
    close(NativeLayers(library).silu_mul(gate_up), TorchLayers().silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_and_numbers_that_are_none(library: NativeLibrary, dtype: torch.dtype) -> None:
    """Overflow saturates as in torch, and a NaN is never rounded away."""
    gate = torch.tensor([[0.0, -0.0, 1e30, -1e30, 200.0, -200.0, torch.inf, torch.nan]], dtype=dtype)
    gate_up = torch.cat((gate, torch.ones_like(gate)), dim=1)
    found = NativeLayers(library).silu_mul(gate_up)
    torch.testing.assert_close(found, TorchLayers().silu_mul(gate_up), equal_nan=True)
    x = numbers(1, 64, dtype=dtype)
    x[0, 7] = torch.nan
    assert NativeLayers(library).rms_norm(x, torch.ones(64, dtype=dtype), 1e-5).isnan().all()


@EXAMPLES
@given(rows=st.integers(1, 9), vocabulary=st.integers(1, 20_000), data=st.data())
def test_bar(library: NativeLibrary, rows: int, vocabulary: int, data: st.DataObject) -> None:
    masked = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), unique=True, min_size=1)))
    words = -(-vocabulary // 32) + data.draw(st.integers(0, 2))
    generator = torch.Generator().manual_seed(vocabulary)
    masks = torch.randint(-(2**31), 2**31, (len(masked), words), generator=generator, dtype=torch.int32)
    masks[:, ::3] = -1
    masks[:, 1::3] = 0
    ours = numbers(rows, vocabulary, dtype=torch.float32)
    theirs = ours.clone()
    NativeLayers(library).bar(ours, masked, masks)
    TorchLayers().bar(theirs, masked, masks)
    assert torch.equal(ours, theirs)
    for row, mask in zip(masked.tolist(), masks, strict=True):
        for token in range(0, vocabulary, 97):
            allowed = mask[token // 32].item() >> token % 32 & 1
            assert (ours[row, token] > -torch.inf) == bool(allowed)


# ---- attention -------------------------------------------------------------------------------------------------------


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], int | None]:
    """Page size, rows of (cached, new) tokens, window."""
    row = st.tuples(st.integers(0, 150), st.one_of(st.just(1), st.integers(1, 70)))
    window = st.one_of(st.none(), st.integers(1, 90))
    return draw(st.sampled_from((1, 4, 16, 32))), draw(st.lists(row, min_size=1, max_size=5)), draw(window)


SHAPES = [(9, 3, 64), (4, 4, 80), (6, 2, 96), (8, 1, 128), (2, 2, 16), (40, 1, 32), (2, 1, 256)]


def make_inputs(page_size: int, rows: list[tuple[int, int]], width: int) -> tuple[StepInputs, int]:
    """Rows over pages of a pool in random order. Also says how many pages the pool must have."""
    needed = [-(-(cached + new) // page_size) for cached, new in rows]
    order = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(5)).tolist()
    planned = []
    for uid, ((cached, new), count) in enumerate(zip(rows, needed, strict=True)):
        sequence = make_sequence(uid, range(cached + new), [order.pop() for _ in range(count)])
        planned.append(PlannedRow(sequence, cached, new, True))
    frequencies = 1.0 / 100.0 ** (torch.arange(0, width, 2) / width)
    return step_inputs(tuple(planned), page_size=page_size, rotations=Rotations(frequencies)), sum(needed) + 3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(batch=batches(), normed=st.booleans())
def test_attention(
    library: NativeLibrary,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    batch: tuple[int, list[tuple[int, int]], int | None],
    normed: bool,
) -> None:
    heads, kv_heads, width = shape
    page_size, rows, window = batch
    inputs, count = make_inputs(page_size, rows, width)
    qkv = numbers(sum(inputs.counts), (heads + 2 * kv_heads) * width, dtype=dtype)
    norm = HeadNorm(query=numbers(width, dtype=dtype), key=numbers(width, dtype=dtype, seed=1), eps=1e-5)
    cached = [numbers(count, kv_heads, page_size, width, dtype=dtype, seed=seed) for seed in (2, 3)]
    results = []
    for attention in (TorchAttention(), NativeAttention(library)):
        pages = LayerPages(cached[0].clone(), cached[1].clone())
        queries = attention.store(qkv.clone(), norm if normed else None, pages, inputs)
        attended = attention.attend(queries, pages, window, inputs)
        results.append((attended, pages))
    (expected, expected_pages), (found, found_pages) = results
    close(found_pages.keys, expected_pages.keys)
    assert torch.equal(found_pages.values, expected_pages.values)
    close(found, expected, scale=4.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [lambda library: TorchAttention(), NativeAttention], ids=["torch", "native"])
@pytest.mark.parametrize("rows", [[(20, 1), (0, 1)], [(5, 30), (3, 3)]], ids=["single", "long"])
def test_no_position_outside_a_context_is_read(
    library: NativeLibrary,
    make: Callable[[NativeLibrary], Attention],
    dtype: torch.dtype,
    rows: list[tuple[int, int]],
) -> None:
    """Every place of the pool that no row owns holds NaN, and none of it comes through."""
    inputs, count = make_inputs(16, rows, 32)
    pages = LayerPages(*(torch.full((count, 2, 16, 32), torch.nan, dtype=dtype) for _ in range(2)))
    for row, length in enumerate(inputs.lengths):
        for position in range(length):
            page = int(inputs.page_table[row, position // 16])
            pages.keys[page, :, position % 16] = 1.0
            pages.values[page, :, position % 16] = 1.0
    qkv = torch.ones(sum(inputs.counts), 8 * 32, dtype=dtype)
    attention = make(library)
    attended = attention.attend(attention.store(qkv, None, pages, inputs), pages, None, inputs)
    torch.testing.assert_close(attended, torch.ones_like(attended))


@pytest.mark.parametrize("window", [None, 90])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cutting_a_row_or_giving_it_company_changes_no_bit(
    library: NativeLibrary, dtype: torch.dtype, window: int | None
) -> None:
    whole, count = make_inputs(16, [(0, 300)], 64)
    pages = LayerPages(*(numbers(count + 20, 2, 16, 64, dtype=dtype, seed=seed) for seed in range(2)))
    queries = numbers(300, 6, 64, dtype=dtype, seed=2)
    expected = library.attend(queries, pages, window, whole)
    table = whole.page_table[0].tolist()
    start = 0
    for new in (1, 33, 100, 2, 164):
        rows = [
            (make_sequence(0, range(300), table), start, new),
            (make_sequence(1, range(40), range(3)), 10, 30),
        ]
        inputs = step_inputs(
            tuple(PlannedRow(*row, True) for row in rows), page_size=16, rotations=Rotations(torch.ones(32))
        )
        together = torch.cat((queries[start : start + new], queries[:30]))
        found = library.attend(together, pages, window, inputs)
        assert torch.equal(found[:new], expected[start : start + new])
        start += new


@pytest.mark.parametrize("depth", [576, 1536])
def test_a_product_of_one_row_is_the_same_among_many(library: NativeLibrary, depth: int) -> None:
    x, weight = numbers(70, depth, dtype=torch.bfloat16), numbers(50, depth, dtype=torch.bfloat16, seed=1)
    together = library.linear(x, weight, None, torch.float32)
    for row in (0, 3, 68, 69):
        assert torch.equal(library.linear(x[row : row + 1], weight, None, torch.float32)[0], together[row])


# ---- build -----------------------------------------------------------------------------------------------------------


def test_a_build_is_made_once_and_leaves_nothing_else(tmp_path: Path) -> None:
    first = build.build(tmp_path / "cache", machine_flags=QUICK)
    made = first.stat().st_mtime_ns
    assert build.build(tmp_path / "cache", machine_flags=QUICK) == first
    assert first.stat().st_mtime_ns == made
    assert build.build(tmp_path / "cache", machine_flags=(*QUICK, "-g0")) != first
    assert all(path.suffix == ".so" for path in (tmp_path / "cache").iterdir())


def test_a_place_that_cannot_even_be_looked_at_is_no_place(tmp_path: Path) -> None:
    unreachable = tmp_path / ("x" * 300)
    with pytest.raises(build.NoPlace, match="File name too long"):
        build.build(unreachable, machine_flags=QUICK)


def test_what_a_failing_compiler_says_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"^\S+ failed: [^\n]*no-such-option[^\n]*$"):
        build.build(tmp_path, machine_flags=("--no-such-option",))
    assert list(tmp_path.iterdir()) == []


def test_no_compiler_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="no C compiler"):
        build.build(tmp_path)


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_item_is_done_once_however_many_help(
    tmp_path_factory: pytest.TempPathFactory, threads: int
) -> None:
    """Thousands of short jobs, with pauses in which the helpers fall asleep."""
    library = NativeLibrary(build.build(tmp_path_factory.getbasetemp() / "crew"), threads=threads)
    x, weight = numbers(3, 64, dtype=torch.bfloat16), numbers(300, 64, dtype=torch.bfloat16, seed=1)
    expected = library.linear(x, weight, None, torch.float32)
    for round_ in range(3000):
        assert torch.equal(library.linear(x, weight, None, torch.float32), expected)
        if round_ % 500 == 0:
            time.sleep(0.002)


def test_helpers_end_with_their_library(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = build.build(tmp_path_factory.getbasetemp() / "crew")
    before = threads_now()
    library = NativeLibrary(path, threads=4)
    helpers = threads_now() - before
    assert len(helpers) == 3
    del library
    gc.collect()
    assert not helpers & threads_now()


def threads_now() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}


# ---- built beforehand ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("libraries")
    quick = tuple(replace(level, flags=(*level.flags, *QUICK)) for level in LEVELS)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prebuilding, "LEVELS", quick)
            made = prebuilding.build_all(directory)
    except build.BuildError as error:
        pytest.skip(str(error))
    assert sorted(made) == sorted(directory.iterdir())
    return directory


@pytest.mark.parametrize("number", range(len(LEVELS)))
def test_a_cpu_gets_the_best_library_that_it_can_run(libraries: Path, tmp_path: Path, number: int) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: sse " + " ".join(LEVELS[number].needs) + " more\n")
    found = prebuilt(libraries, cpuinfo)
    assert found is not None
    assert found.name.startswith(f"{LEVELS[number].name}-")
    assert found.name.count("bf16") == LEVELS[number].name.count("bf16")
    cpuinfo.write_text("flags\t\t: sse avx\n")
    assert prebuilt(libraries, cpuinfo) is None


def test_what_was_built_beforehand_computes_the_same(libraries: Path) -> None:
    path = prebuilt(libraries)
    if path is None:
        pytest.skip("this CPU is older than any of them is made for")
    x, weight = numbers(5, 576, dtype=torch.bfloat16), numbers(50, 576, dtype=torch.bfloat16, seed=1)
    product = NativeLibrary(path, threads=1).linear(x, weight, None, torch.float32)
    torch.testing.assert_close(product, x.float() @ weight.float().T, rtol=1e-4, atol=1e-3)


def test_one_of_another_source_is_not_found(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prebuilt(tmp_path / "none") is None
    source = tmp_path / "kernels.c"
    source.write_text("int other;")
    monkeypatch.setattr(prebuilding, "SOURCE", source)
    assert prebuilt(libraries) is None

"""Carries out plans on a torch device: plan to tensors, forward, sample."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
from msgspec import structs
from torch import Tensor

from .attention.base import Attention
from .attention.invariant import InvariantAttention, check_tiles
from .attention.native import NativeAttention
from .attention.torch import TorchAttention
from .batch import Masks, PageMemory, Plan, PlannedRow, RowResult, RunnerInfo, StepResult
from .config import EngineConfig, context_of
from .errors import StartError
from .invariant import InvariantLayers
from .kv_budget import page_count
from .kv_pool import KVPool, page_bytes
from .layers import Layers, TorchLayers
from .logprobs import token_logprobs
from .models.config import DecoderConfig
from .models.decoder import Decoder
from .models.families import read_model_config
from .models.parameters import DecoderParameters, load_parameters, stored_dtype
from .models.rope import Rotations
from .native.build import BuildError, NoPlace, build
from .native.kernels import NativeLibrary
from .native.layers import NativeLayers
from .native.prebuilt import prebuilt
from .private_directory import PrivateDirectory
from .request import TokenLogprob
from .sampler import NOT_FINITE, Sampler
from .step_inputs import step_inputs
from .weights import Checkpoint

_log = logging.getLogger(__name__)
_PROMPT_LOGITS_AT_ONCE = (
    64  # bounds the float32 logits [rows, V] of a prompt whose log-probabilities are wanted
)


class TorchRunner:
    """A loaded model, its KV pages and its sampler. Implements `batch.Runner`. Not thread-safe: one caller."""

    def __init__(
        self,
        *,
        info: RunnerInfo,
        decoder: Decoder,
        pool: KVPool,
        rotations: Rotations,
        sampler: Sampler,
    ) -> None:
        self._info = info
        self._decoder = decoder
        self._pool = pool
        self._rotations = rotations
        self._sampler = sampler

    @classmethod
    def load(cls, config: EngineConfig) -> TorchRunner:
        """Load `config.model_dir`. Raises StartError or ModelError with one line that says what to change."""
        if config.model_dir is None:
            raise StartError("no model directory is configured")
        directory = Path(config.model_dir)
        torch.set_num_threads(_threads(config))
        device = _device(config)
        model = read_model_config(directory / "config.json")
        max_model_len = context_of(config, longest=model.max_positions)
        with Checkpoint(directory) as checkpoint:
            dtype = _dtype(config, model, checkpoint)
            parameters = load_parameters(model, checkpoint, dtype=dtype, device=device)
            digest = checkpoint.digest()
        size = page_bytes(model, page_size=config.page_size, dtype=dtype)
        pages = page_count(config, page_bytes=size, max_model_len=max_model_len, device=device)
        attention, layers = _backends(config, model, device)
        deterministic = _is_invariant(attention, layers, parameters)
        if config.deterministic and not deterministic:
            attention, layers = _invariant(attention, layers, model, parameters, device)
            deterministic = True
        return cls(
            info=RunnerInfo(
                model_digest=digest,
                vocab_size=model.vocab_size,
                max_model_len=max_model_len,
                page_size=config.page_size,
                pages=pages,
                page_bytes=size,
                weight_bytes=parameters.bytes,
                device=str(device),
                dtype=str(dtype).removeprefix("torch."),
                attention=attention.name,
                deterministic=deterministic,
            ),
            decoder=Decoder(model, parameters, layers=layers, attention=attention),
            pool=KVPool(model, pages=pages, page_size=config.page_size, dtype=dtype, device=device),
            rotations=Rotations(model.rope.inverse_frequencies(model.head_dim).to(device)),
            sampler=Sampler(layers),
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def memory(self) -> PageMemory:
        return self._pool.memory

    @torch.inference_mode()
    def run(self, plan: Plan, masks: Masks) -> StepResult:
        """Load and copy pages, compute every row, sample. A row whose logits are not finite fails alone."""
        self._sampler.forget(plan.retired)
        self._pool.memory.load(plan.loads)
        self._pool.copy(plan.copies)
        if not plan.rows:
            return StepResult(())
        inputs = step_inputs(plan.rows, page_size=self._info.page_size, rotations=self._rotations)
        hidden = self._decoder.hidden(inputs, self._pool)
        results = self._sample(plan.rows, hidden, masks)
        for index, (row, first) in enumerate(_with_first_token(plan.rows)):
            if (wanted := _prompt_tokens(row)) and results[index].error is None:
                results[index] = self._with_prompt_logprobs(
                    results[index], row, wanted, hidden[first : first + len(wanted)]
                )
        return StepResult(tuple(results))

    def _sample(self, rows: tuple[PlannedRow, ...], hidden: Tensor, masks: Masks) -> list[RowResult]:
        results = [RowResult()] * len(rows)
        sampled = [
            (index, first + row.count - 1)
            for index, (row, first) in enumerate(_with_first_token(rows))
            if row.sample
        ]
        if not sampled:
            return results
        last = torch.tensor([token for _, token in sampled], device=hidden.device)
        logits = self._decoder.logits(hidden[last])
        kept: list[int] = []  # those whose masks are there
        allowed: list[memoryview | None] = []
        for place, (index, _) in enumerate(sampled):
            mask = masks.of(rows[index])
            if isinstance(mask, RowResult):
                results[index] = mask
            else:
                kept.append(place)
                allowed.append(mask)
        if len(kept) < len(sampled):
            logits = logits[torch.tensor(kept, dtype=torch.int64, device=logits.device)]
            sampled = [sampled[place] for place in kept]
        if sampled:
            sequences = [rows[index].sequence for index, _ in sampled]
            for (index, _), result in zip(
                sampled, self._sampler.sample(logits, sequences, allowed), strict=True
            ):
                results[index] = result
        return results

    def _with_prompt_logprobs(
        self, result: RowResult, row: PlannedRow, wanted: list[int], hidden: Tensor
    ) -> RowResult:
        """`wanted` are the prompt tokens that the hidden states [len(wanted), E] predict."""
        top = row.sequence.request.sampling.prompt_logprobs or 0
        found: list[TokenLogprob] = []
        for start in range(0, len(wanted), _PROMPT_LOGITS_AT_ONCE):
            part = slice(start, start + _PROMPT_LOGITS_AT_ONCE)
            logits = self._decoder.logits(hidden[part])
            if not logits.isfinite().all():
                return RowResult(error=NOT_FINITE)
            found += token_logprobs(logits, wanted[part], [top] * len(wanted[part]))
        return structs.replace(result, prompt_logprobs=tuple(found))


def _with_first_token(rows: tuple[PlannedRow, ...]) -> Iterator[tuple[PlannedRow, int]]:
    """Each row with the place of its first token in the step."""
    first = 0
    for row in rows:
        yield row, first
        first += row.count


def _prompt_tokens(row: PlannedRow) -> list[int]:
    """The prompt tokens whose log-probabilities this row must bring. Choices after the first share the first's."""
    sequence = row.sequence
    if sequence.request.sampling.prompt_logprobs is None or sequence.index != 0:
        return []
    return sequence.tokens[row.start + 1 : min(row.start + row.count + 1, sequence.prompt_len)]


def _threads(config: EngineConfig) -> int:
    return config.threads or len(os.sched_getaffinity(0))


def _device(config: EngineConfig) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise StartError("device cuda is configured, but torch finds no CUDA device")
    return torch.device("cuda" if has_cuda and config.device != "cpu" else "cpu")


def _dtype(config: EngineConfig, model: DecoderConfig, checkpoint: Checkpoint) -> torch.dtype:
    """float32 models stay float32; half-precision ones run in bfloat16."""
    if config.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    return torch.float32 if stored_dtype(model, checkpoint) == "float32" else torch.bfloat16


def _backends(config: EngineConfig, model: DecoderConfig, device: torch.device) -> tuple[Attention, Layers]:
    """C kernels where they are wanted and can be had, else torch; the log says why not."""
    if device.type != "cpu" or not config.native_kernels:
        return TorchAttention(), TorchLayers()
    try:
        library = _native_library(config)
    except (BuildError, OSError) as error:
        _log.warning("native kernels are not used, torch takes over: %s", error)
        return TorchAttention(), TorchLayers()
    if not NativeAttention.supports(model.head_dim):
        _log.warning("native attention is not used: it cannot handle heads of width %d", model.head_dim)
        return TorchAttention(), NativeLayers(library)
    return NativeAttention(library), NativeLayers(library)


def _is_invariant(attention: Attention, layers: Layers, parameters: DecoderParameters) -> bool:
    """The C kernels fix the order of every sum, as long as they take them all."""
    return (
        isinstance(attention, NativeAttention)
        and isinstance(layers, NativeLayers)
        and layers.invariant(parameters.products())
    )


def _invariant(
    attention: Attention,
    layers: Layers,
    model: DecoderConfig,
    parameters: DecoderParameters,
    device: torch.device,
) -> tuple[Attention, Layers]:
    """The same arithmetic in pieces of one shape. Raises StartError where even those depend on their surroundings."""
    layers = InvariantLayers(layers, parameters.products())
    if layers.one_by_one:
        _log.warning("deterministic: products are computed row by row on this machine, which is very slow")
    if isinstance(attention, NativeAttention):
        return attention, layers
    if not check_tiles(heads=model.heads, kv_heads=model.kv_heads, width=model.head_dim, device=device):
        raise StartError("deterministic is configured, but attention on this machine depends on the batch")
    return InvariantAttention(), layers


def _native_library(config: EngineConfig) -> NativeLibrary:
    """One that came with this installation, or else built into the cache once; where there is none that can be written to,
    built for this process alone."""
    if (ready := prebuilt()) is not None:
        return NativeLibrary(ready, threads=_threads(config))
    try:
        return NativeLibrary(build(_native_cache(config)), threads=_threads(config))
    except NoPlace:
        with closing(PrivateDirectory()) as scratch:
            return NativeLibrary(build(scratch.path), threads=_threads(config))


def _native_cache(config: EngineConfig) -> Path:
    if config.native_cache is not None:
        return Path(config.native_cache)
    try:
        return Path.home() / ".cache" / "headwater" / "native"
    except RuntimeError:  # a user without a home
        raise NoPlace("no native_cache is configured, and there is no home directory") from None

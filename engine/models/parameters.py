"""The parameters of a decoder, and where Hugging Face checkpoints keep them.

All supported families use one naming scheme; what differs is which biases and norms exist. Projections that read the
same input are stored as one matrix: q, k and v; gate and up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attention.base import HeadNorm
from ..errors import ModelError
from ..weights import Checkpoint, Shape
from .config import DecoderConfig, WeightDType

_EMBEDDING, _FINAL_NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """E hidden width, Q width of all query heads, K of all key heads, F of the MLP."""

    input_norm: Tensor  # [E]
    qkv: Tensor  # [Q + 2K, E]
    qkv_bias: Tensor | None  # [Q + 2K]
    head_norm: HeadNorm | None
    output: Tensor  # [E, Q]
    output_bias: Tensor | None  # [E]
    mlp_norm: Tensor  # [E]
    gate_up: Tensor  # [2F, E]
    gate_up_bias: Tensor | None  # [2F]
    down: Tensor  # [E, F]
    down_bias: Tensor | None  # [E]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParameters:
    embedding: Tensor  # [V, E]
    layers: tuple[LayerParameters, ...]
    final_norm: Tensor  # [E]
    head: Tensor  # [V, E]; the embedding itself where the model ties them
    bytes: int  # of memory, all tensors together

    def products(self) -> Iterator[Tensor]:
        """The weights that rows are multiplied with."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)
        yield self.head


def load_parameters(
    config: DecoderConfig, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device
) -> DecoderParameters:
    """Read every parameter. Raises ModelError for a tensor that is missing, unexpected, misshapen or not finite."""
    checkpoint.check(expected_tensors(config), ignored=frozenset({_HEAD}) if config.tied else frozenset())
    loader = _Loader(checkpoint, dtype, device)
    embedding = loader.load((_EMBEDDING, config.vocab_size), width=config.hidden)
    layers = tuple(_load_layer(config, loader, index) for index in range(config.layers))
    final_norm = loader.load((_FINAL_NORM, config.hidden))
    head = embedding if config.tied else loader.load((_HEAD, config.vocab_size), width=config.hidden)
    return DecoderParameters(
        embedding=embedding, layers=layers, final_norm=final_norm, head=head, bytes=loader.bytes
    )


def stored_dtype(config: DecoderConfig, checkpoint: Checkpoint) -> WeightDType:
    """What config.json says, else what the embedding is stored as."""
    if config.dtype is not None:
        return config.dtype
    names: dict[str, WeightDType] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    stored = checkpoint.dtype(_EMBEDDING)
    if stored not in names:
        raise ModelError(f"{_EMBEDDING} is stored as {stored}, which is not supported")
    return names[stored]


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """Name and shape of every tensor that a checkpoint of this model must hold."""
    expected: dict[str, Shape] = {
        _EMBEDDING: (config.vocab_size, config.hidden),
        _FINAL_NORM: (config.hidden,),
    }
    if not config.tied:
        expected[_HEAD] = (config.vocab_size, config.hidden)
    for index in range(config.layers):
        expected |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_tensors(config).items()}
    return expected


def _layer_tensors(config: DecoderConfig) -> dict[str, Shape]:
    hidden, mlp = config.hidden, config.intermediate
    queries, keys = config.q_width, config.kv_width
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (mlp, hidden, config.mlp_bias),
        "mlp.up_proj": (mlp, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, mlp, config.mlp_bias),
    }
    tensors: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        tensors |= {f"self_attn.{which}_norm.weight": (config.head_dim,) for which in "qk"}
    for name, (rows, columns, biased) in linears.items():
        tensors[f"{name}.weight"] = (rows, columns)
        if biased:
            tensors[f"{name}.bias"] = (rows,)
    return tensors


class _Loader:
    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self.bytes = 0

    def load(self, *parts: tuple[str, int], width: int | None = None) -> Tensor:
        """One tensor made of named parts of so many rows, one below the other; [rows] or [rows, width]."""
        rows = sum(count for _, count in parts)
        shape = (rows,) if width is None else (rows, width)
        whole = torch.empty(shape, dtype=self._dtype, device=self._device)
        start = 0
        for name, count in parts:
            self._checkpoint.copy(name, whole[start : start + count])
            start += count
        self.bytes += whole.nbytes
        return whole


def _load_layer(config: DecoderConfig, loader: _Loader, index: int) -> LayerParameters:
    at = f"model.layers.{index}."
    hidden, mlp = config.hidden, config.intermediate
    queries, keys = config.q_width, config.kv_width
    qkv = (
        (at + "self_attn.q_proj", queries),
        (at + "self_attn.k_proj", keys),
        (at + "self_attn.v_proj", keys),
    )
    output = ((at + "self_attn.o_proj", hidden),)
    gate_up = ((at + "mlp.gate_proj", mlp), (at + "mlp.up_proj", mlp))
    down = ((at + "mlp.down_proj", hidden),)

    def weight(parts: tuple[tuple[str, int], ...], width: int) -> Tensor:
        return loader.load(*((f"{name}.weight", rows) for name, rows in parts), width=width)

    def bias(parts: tuple[tuple[str, int], ...], present: bool) -> Tensor | None:
        return loader.load(*((f"{name}.bias", rows) for name, rows in parts)) if present else None

    def norm(name: str, width: int) -> Tensor:
        return loader.load((f"{at}{name}.weight", width))

    return LayerParameters(
        input_norm=norm("input_layernorm", hidden),
        qkv=weight(qkv, hidden),
        qkv_bias=bias(qkv, config.qkv_bias),
        head_norm=HeadNorm(
            query=norm("self_attn.q_norm", config.head_dim),
            key=norm("self_attn.k_norm", config.head_dim),
            eps=config.norm_eps,
        )
        if config.qk_norm
        else None,
        output=weight(output, queries),
        output_bias=bias(output, config.output_bias),
        mlp_norm=norm("post_attention_layernorm", hidden),
        gate_up=weight(gate_up, hidden),
        gate_up_bias=bias(gate_up, config.mlp_bias),
        down=weight(down, mlp),
        down_bias=bias(down, config.mlp_bias),
    )

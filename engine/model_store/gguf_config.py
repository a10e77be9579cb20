"""GGUF metadata as config.json and generation_config.json, and the tensors a model of that config must have.

Key names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#standardized-key-value-pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import ModelError
from .gguf_file import TensorInfo, Value

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
ROPE_FACTORS = "rope_freqs.weight"

# Llama 3.1 and later: the file keeps only the factors; these produced them in every released model.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_ORIGINAL = 1.0, 4.0, 8192

# What ends an answer, by the names the supported families give it (a file states at most three of them by id).
_END_TOKENS = ("</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
_CONTROL = 3


@dataclass(frozen=True, slots=True)
class Family:
    """`interleaved`: rotary pairs lie side by side in the rows of q and k, where Hugging Face wants two halves."""

    model_type: str
    architecture: str
    interleaved: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False


_FAMILIES = {
    "llama": Family("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", qkv_bias=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", qk_norm=True),
}
_MISTRAL = Family("mistral", "MistralForCausalLM", interleaved=True)


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the model: its names here and there. `heads` is set where the rows must be un-interleaved."""

    name: str
    source: str
    shape: tuple[int, ...]
    heads: int | None = None


class GGUFConfig:
    """The shape of a model as a GGUF file states it. Raises ModelError if it is incomplete or not supported."""

    def __init__(self, file: str, metadata: Mapping[str, Value], tensors: Mapping[str, TensorInfo]) -> None:
        self._file = file
        self._metadata = metadata
        if _integer(metadata.get("split.count", 1)) not in (0, 1):
            raise ModelError(f"{file} is one part of a split model: merge the parts into one file first")
        self._arch = self._text("general.architecture")
        if self._arch not in _FAMILIES:
            raise ModelError(
                f"{file}: architecture {self._arch!r} is not supported (only {', '.join(_FAMILIES)})"
            )
        if EMBEDDING not in tensors:
            raise ModelError(f"{file} has no tensor {EMBEDDING!r}")
        self.tied = OUTPUT not in tensors
        self.vocab_size = tensors[EMBEDDING].shape[0]
        self.layers = self._count("block_count")
        if self.layers > len(tensors):
            raise ModelError(f"{file} is damaged: it has {len(tensors)} tensors for {self.layers} layers")
        self.hidden_size = self._count("embedding_length")
        self.intermediate_size = self._count("feed_forward_length")
        self.max_position = self._count("context_length")
        self.heads = self._count("attention.head_count")
        self.kv_heads = self._count("attention.head_count_kv", self.heads)
        self.head_dim = self._count("attention.key_length", self.hidden_size // self.heads)
        self.eps = self._number("attention.layer_norm_rms_epsilon")
        self.rope_theta = self._number("rope.freq_base", 10_000.0)
        self.window = self._window()
        self.family = _MISTRAL if self.window and self._arch == "llama" else _FAMILIES[self._arch]
        self._check_heads()

    @property
    def plan(self) -> tuple[TensorPlan, ...]:
        """Every tensor of the model, in the order of the forward pass."""
        hidden = self.hidden_size
        layers = [tensor for layer in range(self.layers) for tensor in self._layer(layer)]
        head = () if self.tied else (TensorPlan("lm_head.weight", OUTPUT, (self.vocab_size, hidden)),)
        return (
            TensorPlan("model.embed_tokens.weight", EMBEDDING, (self.vocab_size, hidden)),
            *layers,
            TensorPlan("model.norm.weight", "output_norm.weight", (hidden,)),
            *head,
        )

    def config_json(self, rope_factors: Sequence[float] | None) -> dict[str, object]:
        """`rope_factors` are the values of the tensor `rope_freqs.weight`, None without one."""
        config: dict[str, object] = {
            "architectures": [self.family.architecture],
            "model_type": self.family.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position,
            "rms_norm_eps": self.eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": self._rope_scaling(rope_factors),
            "tie_word_embeddings": self.tied,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "torch_dtype": "bfloat16",
            "bos_token_id": self._token_id("bos"),
            "eos_token_id": self._token_id("eos"),
            "pad_token_id": self._token_id("padding"),
        }
        if self.family is _MISTRAL:
            config["sliding_window"] = self.window
        elif self.family.model_type != "llama":
            config |= {"use_sliding_window": False, "sliding_window": None}
        return config

    def generation_json(self) -> dict[str, object]:
        """Every id that ends an answer: what the file states, and control tokens known to."""
        ids = [self._token_id(name) for name in ("eos", "eot", "eom")]
        tokens, kinds = (
            self._metadata.get("tokenizer.ggml.tokens"),
            self._metadata.get("tokenizer.ggml.token_type"),
        )
        if isinstance(tokens, list) and isinstance(kinds, list):
            for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False)):
                if kind == _CONTROL and token in _END_TOKENS:
                    ids.append(index)
        return {
            "bos_token_id": self._token_id("bos"),
            "eos_token_id": list(dict.fromkeys(i for i in ids if i is not None)),
            "pad_token_id": self._token_id("padding"),
        }

    def _layer(self, index: int) -> Iterator[TensorPlan]:
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        mixed = self.family.interleaved

        def plan(name: str, source: str, *shape: int, heads: int | None = None) -> TensorPlan:
            return TensorPlan(f"model.layers.{index}.{name}", f"blk.{index}.{source}", shape, heads)

        yield plan("input_layernorm.weight", "attn_norm.weight", hidden)
        yield plan(
            "self_attn.q_proj.weight", "attn_q.weight", queries, hidden, heads=self.heads if mixed else None
        )
        yield plan(
            "self_attn.k_proj.weight", "attn_k.weight", keys, hidden, heads=self.kv_heads if mixed else None
        )
        yield plan("self_attn.v_proj.weight", "attn_v.weight", keys, hidden)
        if self.family.qkv_bias:
            yield plan("self_attn.q_proj.bias", "attn_q.bias", queries)
            yield plan("self_attn.k_proj.bias", "attn_k.bias", keys)
            yield plan("self_attn.v_proj.bias", "attn_v.bias", keys)
        if self.family.qk_norm:
            yield plan("self_attn.q_norm.weight", "attn_q_norm.weight", self.head_dim)
            yield plan("self_attn.k_norm.weight", "attn_k_norm.weight", self.head_dim)
        yield plan("self_attn.o_proj.weight", "attn_output.weight", hidden, queries)
        yield plan("post_attention_layernorm.weight", "ffn_norm.weight", hidden)
        yield plan("mlp.gate_proj.weight", "ffn_gate.weight", inner, hidden)
        yield plan("mlp.up_proj.weight", "ffn_up.weight", inner, hidden)
        yield plan("mlp.down_proj.weight", "ffn_down.weight", hidden, inner)

    # -- rope ----------------------------------------------------------------------------------------------------------

    def _rope_scaling(self, factors: Sequence[float] | None) -> dict[str, object] | None:
        kind = self._metadata.get(f"{self._arch}.rope.scaling.type", "none")
        if factors is not None:
            return self._llama3_scaling(factors)
        if kind == "none":
            return None
        if kind not in ("linear", "yarn"):
            raise ModelError(f"{self._file}: rope scaling {kind!r} is not supported")
        scaling: dict[str, object] = {"rope_type": kind, "factor": self._number("rope.scaling.factor")}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = self._count("rope.scaling.original_context_length")
        return scaling

    def _llama3_scaling(self, factors: Sequence[float]) -> dict[str, object]:
        """The parameters behind a table of factors. Whatever does not reproduce the table is refused, not approximated."""
        original = self._count("rope.scaling.original_context_length", _LLAMA3_ORIGINAL)
        factor = max(1.0, *factors)
        expected = [self._llama3_factor(i, factor, original) for i in range(self.head_dim // 2)]
        if len(factors) != len(expected) or not all(map(_near, factors, expected)):
            raise ModelError(f"{self._file}: its rope factors are not those of Llama 3")
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": _LLAMA3_LOW,
            "high_freq_factor": _LLAMA3_HIGH,
            "original_max_position_embeddings": original,
        }

    def _llama3_factor(self, index: int, factor: float, original: int) -> float:
        """What frequency `index` is divided by (Llama 3.1 release notes; `rope_type: llama3` in transformers)."""
        wavelength: float = 2 * math.pi * self.rope_theta ** (2 * index / self.head_dim)
        turns = original / wavelength
        blend = min(max((turns - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW), 0.0), 1.0)
        return 1 / ((1 - blend) / factor + blend)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def _window(self) -> int | None:
        window = self._count("attention.sliding_window", 0, least=0)
        if window and self._arch != "llama":
            raise ModelError(f"{self._file}: a sliding window is not supported for {self._arch}")
        return window or None

    def _check_heads(self) -> None:
        rotated = self._count("rope.dimension_count", self.head_dim)
        if rotated != self.head_dim or self.head_dim % 2:
            raise ModelError(
                f"{self._file}: rotary embedding of {rotated} of {self.head_dim} dimensions is not supported"
            )
        if self._count("attention.value_length", self.head_dim) != self.head_dim:
            raise ModelError(f"{self._file}: heads with values of another size than keys are not supported")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self._file} is damaged: {self.heads} heads cannot share {self.kv_heads} keys")

    # -- typed reads ---------------------------------------------------------------------------------------------------

    def _text(self, key: str) -> str:
        value = self._metadata.get(key)
        if not isinstance(value, str):
            raise ModelError(f"{self._file} has no {key}")
        return value

    def _count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._metadata.get(f"{self._arch}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise ModelError(f"{self._file}: {self._arch}.{key} is {_short(value)}, not a count")
        return value

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._metadata.get(f"{self._arch}.{key}", default)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise ModelError(f"{self._file}: {self._arch}.{key} is {_short(value)}, not a positive number")
        return _shortest(value)

    def _token_id(self, name: str) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < self.vocab_size:
            raise ModelError(f"{self._file}: the {name} token id is {_short(value)}, outside the vocabulary")
        return value


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _shortest(value: float) -> float:
    """A float32 that was read as a double, as the number somebody once wrote: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4)

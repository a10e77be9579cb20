"""Tiny GGUF files, written by the `gguf` library from toy transformers models, for the importer to read back.

What is written follows the format's own rules and shares no code with the importer: rows of q and k of a llama model are
put in pairs here, and put back there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

BYTES = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
ALPHABET = [chr(byte) for byte in BYTES] + [chr(0x100 + i) for i in range(256 - len(BYTES))]
"""The 256 characters of byte-level BPE, in the order of GPT-2's own vocabulary."""

MERGES = ["t h", "th e", "Ġ the", "1 2", "12 3"]
VOCAB = [
    *ALPHABET,
    *(merge.replace(" ", "") for merge in MERGES),
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
]
KINDS = [1] * (len(VOCAB) - 3) + [3, 3, 4]
PADDED_VOCAB = 288  # like real files, more rows than tokens, and a multiple of a quantization block

_SIZES = {
    "vocab_size": PADDED_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Toy:
    """A toy model of a family, and what its GGUF file says beyond what every file says."""

    arch: str
    build: Callable[[], PreTrainedModel]
    extra: Mapping[str, str | int | float] = field(default_factory=dict)
    rope_factors: bool = False


TOYS = {
    "llama": Toy("llama", lambda: LlamaForCausalLM(LlamaConfig(**_SIZES))),
    "llama tied": Toy("llama", lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=True))),
    "llama3 rope": Toy(
        "llama", lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, rope_parameters=_LLAMA3)), rope_factors=True
    ),
    "llama linear rope": Toy(
        "llama",
        lambda: LlamaForCausalLM(
            LlamaConfig(
                **_SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
            )
        ),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "mistral window": Toy(
        "llama",
        lambda: MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=5)),
        {"attention.sliding_window": 5},
    ),
    "qwen2 bias": Toy("qwen2", lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES, tie_word_embeddings=True))),
    "qwen2 yarn": Toy(
        "qwen2",
        lambda: Qwen2ForCausalLM(
            Qwen2Config(
                **_SIZES,
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": 10_000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            )
        ),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
    ),
    "qwen3 norms": Toy("qwen3", lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=32))),
}


def toy_model(toy: Toy, seed: int = 0) -> PreTrainedModel:
    """In float32, with weights that float16 and bfloat16 hold exactly: multiples of 1/64 below 1, norms about 1."""
    model = toy.build().float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randint(-32, 33, weight.shape, generator=generator) / 64)
            if "norm" in name:
                weight.add_(1)
    return model


def write_toy(
    path: Path,
    toy: Toy,
    model: PreTrainedModel,
    kind: GGMLQuantizationType = F32,
    *,
    metadata: Mapping[str, object] | None = None,
    without: tuple[str, ...] = (),
    replace: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Matrices are of the given kind, vectors are float32. `metadata` overrides keys, None leaves one out."""
    writer = GGUFWriter(path, toy.arch)
    for key, value in _metadata(toy, model).items():
        if metadata is None or key not in metadata:
            _add(writer, key, value)
    for key, value in (metadata or {}).items():
        if value is not None:
            _add(writer, key, value)
    tensors = gguf_tensors(toy, model) | dict(replace or {})
    for name, values in tensors.items():
        if name not in without:
            chosen = kind if values.ndim > 1 else F32
            writer.add_tensor(name, quantize(values, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(toy: Toy, model: PreTrainedModel) -> dict[str, np.ndarray]:
    tensors = {}
    for name, weight in model.named_parameters():  # tied weights once
        stem, _, suffix = name.rpartition(".")
        values = weight.detach().numpy()
        if toy.arch == "llama" and stem.endswith(("q_proj", "k_proj")):
            values = _in_pairs(values, model.config.head_dim)
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            tensors[f"blk.{layer}.{_NAMES[part]}.{suffix}"] = values
        else:
            tensors[f"{_NAMES[stem]}.{suffix}"] = values
    if toy.rope_factors:
        theta, half = model.config.rope_parameters["rope_theta"], model.config.head_dim // 2
        plain = 1 / theta ** (torch.arange(half) / half)
        tensors["rope_freqs.weight"] = (plain / model.model.rotary_emb.inv_freq).float().numpy()
    return tensors


def _in_pairs(values: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows j and j + D/2 of each head become rows 2j and 2j + 1."""
    result = np.empty_like(values)
    half = head_dim // 2
    for start in range(0, len(values), head_dim):
        result[start : start + head_dim : 2] = values[start : start + half]
        result[start + 1 : start + head_dim : 2] = values[start + half : start + head_dim]
    return result


def _metadata(toy: Toy, model: PreTrainedModel) -> dict[str, object]:
    config = model.config
    arch = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim if toy.arch == "qwen3" else 16,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        **toy.extra,
    }
    return {f"{toy.arch}.{key}": value for key, value in arch.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": VOCAB,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": VOCAB.index("<|im_end|>"),
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }


def _add(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)

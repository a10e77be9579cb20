"""Models of every supported family at toy size: random weights from the reference class, saved in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB_SIZE = 96
MAX_POSITIONS = 256

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama3-rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-biases": ("qwen3", {"head_dim": 32, "attention_bias": True}),
}  # fmt: skip
"""Name of a toy -> (model_type, what its config adds to the common shape)."""


def build_toy_model(
    directory: Path,
    name: str = "llama",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    shard_size: str = "1GB",
) -> PreTrainedModel:
    """Write one of `FAMILIES` to `directory` and return the reference it was copied from.

    The weights are far larger than trained ones would be at this size, so that every part of the model matters to the
    logits and the probabilities are not all alike.
    """
    model_type, changes = FAMILIES[name]
    config = CONFIG_MAPPING[model_type](**{**_SHAPE, **changes})
    config.dtype = dtype
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.3)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return model

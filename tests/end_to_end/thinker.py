"""A model directory for tests: a template that thinks and calls tools as Qwen 3 does, and weights drawn at random.

What it says is noise, so whatever shape its answers have is the server's doing. It is small enough to load at once, and
the tokens that thoughts and calls are marked with are special ones, as in the models it stands for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
MAX_LENGTH = 4096

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n\\n<tools>' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}\
{% endfor %}{{ '\\n</tools>\\n\\nFor each call:\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>\
<|im_end|>\\n' }}{% endif -%}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}\
{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}\
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}\
{% endif -%}
"""


def write_thinker(directory: Path, seed: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    _dump(directory / "tokenizer_config.json", {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"})
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    size = tokenizer.get_vocab_size()
    _dump(directory / "config.json", _config(size, tokenizer.token_to_id("<|im_end|>")))
    save_file(_weights(size, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def token_id(directory: Path, text: str) -> int:
    found: int | None = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id(text)
    assert found is not None, text
    return found


def _tokenizer() -> Tokenizer:
    """Bytes, and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    return tokenizer


def _config(vocabulary: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }


def _weights(vocabulary: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    head = HIDDEN // HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * head, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    weights = {"model.embed_tokens.weight": rng.normal(0, 0.1, (vocabulary, HIDDEN))}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        weights |= {f"{at}.{name}.weight": rng.normal(0, 0.2, shape) for name, shape in shapes.items()}
        weights |= {
            f"{at}.{name}.weight": np.ones(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")
        }
    weights["model.norm.weight"] = np.ones(HIDDEN)
    return {name: value.astype(np.float32) for name, value in weights.items()}


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))

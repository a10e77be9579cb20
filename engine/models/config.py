"""What a decoder is made of, and config.json read as data.

`ConfigReader` is an allow-list: a key must be asked for by the model's family or be known to have no effect on the
logits. Anything else that is set is refused by name, because serving it would silently compute something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import ModelError
from ..json_file import read_json_object
from .rope import Rope

WeightDType = Literal["float32", "bfloat16", "float16"]

_WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id",
        "initializer_range", "is_llama_config", "output_attentions", "output_hidden_states", "pretraining_tp",
        "problem_type", "return_dict", "task_specific_params", "tokenizer_class", "transformers.js_config",
        "transformers_version", "unsloth_fixed", "unsloth_version", "use_cache", "_attn_implementation_autoset",
        "chunk_size_feed_forward", "model_max_length",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A pre-norm decoder with rotary positions, grouped-query attention and a gated SiLU MLP.

    `windows[i]` is how many positions layer `i` sees, the current one included; None is all. `tied` shares the
    embedding with the head. `dtype` is how the checkpoint says its weights are stored, None where it does not.
    """

    family: str
    vocab_size: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    rope: Rope
    windows: tuple[int | None, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied: bool
    dtype: WeightDType | None

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


class ConfigReader:
    """One config.json, key by key. Raises ModelError naming the key that is missing, malformed or not supported."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self._values = values
        self._source = source
        self._read: set[str] = set()

    @classmethod
    def open(cls, path: Path) -> ConfigReader:
        return cls(read_json_object(path), str(path))

    def error(self, key: str, problem: str) -> ModelError:
        return ModelError(f"{self._source}: {key} {problem}")

    def value(self, key: str) -> object:
        """Whatever the key holds, None if it is absent; the key counts as read."""
        self._read.add(key)
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**31:
            raise self.error(key, f"must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e12:
            raise self.error(key, f"must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {value!r}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.value(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, not {value!r}")
        return value

    def section(self, key: str) -> ConfigReader | None:
        """A nested object, to be read and finished like the whole."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"must be an object, not {value!r}")
        return ConfigReader(value, f"{self._source}: {key}")

    def finish(self) -> None:
        """Refuse every key that is set, was not read, and might matter."""
        for key, value in self._values.items():
            if key not in self._read and key not in _WITHOUT_EFFECT and value not in (None, False):
                raise self.error(key, "is not supported")


def read_decoder(
    reader: ConfigReader,
    *,
    family: str,
    windows: tuple[int | None, ...],
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    tied: bool = False,
) -> DecoderConfig:
    """The keys that all families share, beside what a family found out for itself. `tied` is the family's default."""
    activation = reader.text("hidden_act", "silu")
    if activation != "silu":
        raise reader.error("hidden_act", f"{activation!r} is not supported")
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise reader.error("num_key_value_heads", f"({kv_heads}) must divide num_attention_heads ({heads})")
    hidden = reader.integer("hidden_size")
    head_dim = reader.integer("head_dim", hidden // heads)
    if head_dim % 2:
        raise reader.error("head_dim", f"must be even, not {head_dim}")
    config = DecoderConfig(
        family=family,
        vocab_size=reader.integer("vocab_size"),
        hidden=hidden,
        intermediate=reader.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=reader.integer("max_position_embeddings"),
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=_read_rope(reader),
        windows=windows,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tied=reader.flag("tie_word_embeddings", tied),
        dtype=_read_dtype(reader),
    )
    reader.finish()
    return config


def _read_dtype(reader: ConfigReader) -> WeightDType | None:
    old, new = reader.value("torch_dtype"), reader.value("dtype")
    value = new if new is not None else old
    if value in (None, "float32", "bfloat16", "float16"):
        return value
    raise reader.error("dtype", f"{value!r} is not supported")


def _read_rope(reader: ConfigReader) -> Rope:
    """Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters`, which holds all of it."""
    theta = reader.number("rope_theta", 10_000.0)
    old, new = reader.section("rope_scaling"), reader.section("rope_parameters")
    scaling = new if new is not None else old
    if scaling is None:
        return Rope(theta=theta)
    theta = scaling.number("rope_theta", theta)
    legacy_kind = scaling.text("type", "default")
    kind = scaling.text("rope_type", legacy_kind)
    match kind:
        case "default":
            rope = Rope(theta=theta)
        case "linear":
            rope = Rope(theta=theta, kind="linear", factor=scaling.number("factor"))
        case "llama3":
            rope = Rope(
                theta=theta,
                kind="llama3",
                factor=scaling.number("factor"),
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
                original_positions=scaling.integer("original_max_position_embeddings"),
            )
        case _:
            raise scaling.error("rope_type", f"{kind!r} is not supported")
    scaling.finish()
    return rope

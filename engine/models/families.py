"""From `model_type` to the family that understands it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import llama, mistral, qwen
from .config import ConfigReader, DecoderConfig

_FAMILIES: dict[str, tuple[str, Callable[[ConfigReader], DecoderConfig]]] = {
    "llama": ("LlamaForCausalLM", llama.read),
    "mistral": ("MistralForCausalLM", mistral.read),
    "qwen2": ("Qwen2ForCausalLM", qwen.read_qwen2),
    "qwen3": ("Qwen3ForCausalLM", qwen.read_qwen3),
}


def read_model_config(path: Path) -> DecoderConfig:
    """Read a config.json. Raises ModelError with the key that is missing, malformed or not supported."""
    reader = ConfigReader.open(path)
    kind = reader.text("model_type")
    if kind not in _FAMILIES:
        raise reader.error("model_type", f"{kind!r} is not supported (supported: {', '.join(_FAMILIES)})")
    architecture, read = _FAMILIES[kind]
    if reader.value("architectures") not in (None, [architecture]):
        raise reader.error("architectures", f"must be [{architecture!r}]: only text generation is supported")
    return read(reader)

"""Qwen2 and 2.5 (biased q, k and v) and Qwen3 (normed q and k heads): both may give some layers a sliding window."""

from __future__ import annotations

from .config import ConfigReader, DecoderConfig, read_decoder


def read_qwen2(reader: ConfigReader) -> DecoderConfig:
    return read_decoder(reader, family="qwen2", windows=_windows(reader), qkv_bias=True)


def read_qwen3(reader: ConfigReader) -> DecoderConfig:
    attention_bias = reader.flag("attention_bias")
    reader.integer("head_dim")  # the quotient that other families default to is wrong here
    return read_decoder(
        reader,
        family="qwen3",
        windows=_windows(reader),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
    )


def _windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """`layer_types` where given, else layers from `max_window_layers` on, and none unless `use_sliding_window`."""
    layers = reader.integer("num_hidden_layers")
    kinds, first = reader.value("layer_types"), reader.value("max_window_layers")
    sliding, window = reader.flag("use_sliding_window"), reader.value("sliding_window")
    if not sliding or window is None:
        return (None,) * layers
    width = reader.integer("sliding_window")
    if kinds is None:
        first = reader.integer("max_window_layers", layers) if first != 0 else 0
        return tuple(width if layer >= first else None for layer in range(layers))
    names = {"full_attention": None, "sliding_attention": width}
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in names for kind in kinds):
        raise reader.error("layer_types", f"must name full_attention or sliding_attention {layers} times")
    return tuple(names[kind] for kind in kinds)

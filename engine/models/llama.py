"""Llama 2 and 3, SmolLM2 and others of the same build: `model_type` llama."""

from __future__ import annotations

from .config import ConfigReader, DecoderConfig, read_decoder


def read(reader: ConfigReader) -> DecoderConfig:
    attention_bias = reader.flag("attention_bias")
    return read_decoder(
        reader,
        family="llama",
        windows=(None,) * reader.integer("num_hidden_layers"),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=reader.flag("mlp_bias"),
    )

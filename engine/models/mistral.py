"""Mistral 7B and successors with `model_type` mistral: Llama's build, with one sliding window for all layers."""

from __future__ import annotations

from .config import ConfigReader, DecoderConfig, read_decoder


def read(reader: ConfigReader) -> DecoderConfig:
    window = None if reader.value("sliding_window") is None else reader.integer("sliding_window")
    return read_decoder(reader, family="mistral", windows=(window,) * reader.integer("num_hidden_layers"))

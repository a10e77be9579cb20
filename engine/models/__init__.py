"""Decoder families as settings of one decoder.

config      what a decoder is made of; config.json as data, with an allow-list of keys
families    from `model_type` to the file that reads it: llama, mistral, qwen
rope        rotary frequencies and their rescalings
parameters  which tensors there are, and where a checkpoint keeps them
decoder     the forward pass
"""

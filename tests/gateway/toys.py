"""Toy tokenizers of the kinds the supported families use, as parsed tokenizer.json documents and model directories."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = [
    "the river and the stone, the cloud and the market: one two three four",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))  # naïve café, größer, 日本語 にほんご, привет мир 🎉🎊",
    "user assistant system start end im hello world <|im| start |> [INST] [/INST] </s>",
]


def byte_level(specials: Iterable[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")) -> Tokenizer:
    """GPT-2 style: SmolLM2, Qwen, Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens(["<tool_call>", "\t\t"])
    return tokenizer


def sentencepiece(*, legacy: bool) -> Tokenizer:
    """Llama 2 and Mistral: byte fallback, spaces spelled as U+2581, one of them put before the text.

    `legacy` puts it there by a normalizer (after every special token), otherwise a Metaspace pre-tokenizer does at the
    start of the text only.
    """
    special = ["<unk>", "<s>", "</s>"]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    trained.train_from_iterator(TEXT[:1], trainer)
    model = json.loads(trained.to_str())["model"]
    pieces = [*special, *(f"<0x{i:02X}>" for i in range(256))]
    pieces += [piece for piece in model["vocab"] if piece not in special]
    merges = [tuple(pair) for pair in model["merges"]]
    bpe = models.BPE(
        {piece: i for i, piece in enumerate(pieces)},
        merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    if legacy:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(s, normalized=False) for s in special])
    return tokenizer


def write(directory: Path, tokenizer: Tokenizer, **files: dict[str, Any]) -> Path:
    """A model directory with tokenizer.json and the named config files."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


CHATML_CONFIG = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "unk_token": "<|endoftext|>"}
LLAMA_CONFIG = {
    "eos_token": "</s>",
    "bos_token": {"content": "<s>"},
    "unk_token": "<unk>",
    "add_bos_token": True,
}

"""A model's tokenizer.json and the configs beside it: which tokens there are, what each spells, which are special.

The one reading of these files. The gateway encodes and decodes by it, the engine constrains by it, so the two cannot
disagree on what a token says. Knows nothing of merges and normalizers: those are for the `tokenizers` library.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>")
"""End an answer in chat models whose generation_config forgets to say so."""

HASH_MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
"""The special tokens of the hash model, ids 256 to 258."""

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")

_METASPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's visible space."""

_DECODERS = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")

_PLAIN_SPECIAL = {
    "special": True,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
}


class TokenizerError(ValueError):
    """The tokenizer's files are missing, damaged or not supported, or a text is not Unicode. Safe to show."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the files beside tokenizer.json say."""

    names: Mapping[str, str]
    """Spelling of bos_token, eos_token, unk_token and pad_token, where they exist."""
    stop_ids: tuple[int, ...]
    add_bos: bool | None
    vocab_size: int


class TokenizerFile:
    """Immutable. Use `load` or `hash`."""

    def __init__(self, data: Mapping[str, Any], facts: Facts) -> None:
        """`data` is a parsed tokenizer.json."""
        model = data["model"]
        if not isinstance(model.get("vocab"), dict):
            raise TokenizerError(f"tokenizer.json has a model that is not supported: {model.get('type')}")
        self._data = data
        self._added = _added_tokens(data, control=set(facts.names.values()) | set(END_OF_TURN))
        self.facts = facts
        self.specials: Mapping[str, int] = {t["content"]: t["id"] for t in self._added if t["special"]}
        """Ids by spelling."""
        self.vocab: Mapping[str, int] = model["vocab"] | {t["content"]: t["id"] for t in self._added}
        """Ids by spelling as the file has it, special ones too."""
        spell = _Speller(data)
        size = max(facts.vocab_size, 1 + max(self.vocab.values(), default=-1))
        self.token_bytes: Sequence[bytes] = [spell.token_bytes(text) for text in _spellings(self.vocab, size)]
        """Exact bytes by id; those of a special token are its spelling."""
        self.strips_leading_space: bool = spell.strips_leading_space
        """SentencePiece puts a space before the first word; decoding from the start takes one away again."""
        named_ends = [facts.names.get("eos_token", ""), *END_OF_TURN]
        ends = [self.vocab[end] for end in named_ends if end in self.vocab]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*facts.stop_ids, *ends)))
        """Tokens that end an answer."""

    @classmethod
    def load(cls, model_dir: Path) -> TokenizerFile:
        """Read tokenizer.json and the configs beside it. Raises TokenizerError."""
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"no tokenizer.json in {model_dir}")
        data = _read_object(path)
        try:
            return cls(data, _read_facts(model_dir))
        except (KeyError, TypeError, AttributeError) as error:
            raise TokenizerError(f"{path} is not a tokenizer we can read: {error!r}") from error

    @classmethod
    def hash(cls) -> TokenizerFile:
        """The tokenizer of the hash model: ids 0 to 255 are bytes, then `<|im_start|>`, `<|im_end|>`, `<|endoftext|>`."""
        letters = {value: letter for letter, value in _byte_letters().items()}
        added = [{"id": 256 + i, "content": mark, **_PLAIN_SPECIAL} for i, mark in enumerate(HASH_MARKS)]
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": True,
        }
        data = {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": {letters[i]: i for i in range(256)}, "merges": []},
        }
        return cls(data, Facts(names={"eos_token": "<|im_end|>"}, stop_ids=(), add_bos=False, vocab_size=0))

    def disguised(self) -> tuple[dict[int, str], bytes]:
        """A tokenizer.json for the library with each special token respelled, and these stand-ins by id.

        The stand-ins take over the ids: no text that lacks one, whatever its words and merges, can give a special token.
        """
        secret = secrets.token_hex(16)
        stand_in = {t["id"]: f"\ue000{secret}:{t['id']}\ue001" for t in self._added if t["special"]}
        respelled = [
            {**t, "content": stand_in[t["id"]], "single_word": False} if t["special"] else t
            for t in self._added
        ]
        model = dict(self._data["model"])
        model["vocab"] = {spelling: i for spelling, i in model["vocab"].items() if i not in stand_in}
        # the library gives an added token the id of its spelling in the vocabulary, and any free one without
        model["vocab"] |= {t["content"]: t["id"] for t in respelled}
        unknown = self._data["model"]["vocab"].get(model.get("unk_token"))
        if unknown in stand_in:
            model["unk_token"] = stand_in[unknown]
        # padding and truncation are the engine's business, and the library would apply them silently
        document = {
            **self._data,
            "model": model,
            "added_tokens": respelled,
            "padding": None,
            "truncation": None,
        }
        return stand_in, orjson.dumps(document)


class _Speller:
    """How a vocabulary's spellings map to bytes, told from the decoder of a tokenizer.json."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        steps = _flatten(data.get("decoder"))
        kinds = {step["type"] for step in steps}
        if not kinds or kinds - _DECODERS:
            raise TokenizerError(
                f"tokenizer.json has a decoder that is not supported: {sorted(kinds) or None}"
            )
        self._letters = _byte_letters() if "ByteLevel" in kinds else None
        self._fallback = "ByteFallback" in kinds or bool(data["model"].get("byte_fallback"))
        self._spaced = "Metaspace" in kinds or any(
            step["type"] == "Replace" and step.get("pattern") == {"String": _METASPACE} for step in steps
        )
        self.strips_leading_space = any(
            (step["type"] == "Strip" and step.get("content") == " " and step.get("start"))
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )

    def token_bytes(self, spelling: str) -> bytes:
        if self._letters is not None:
            try:
                return bytes([self._letters[letter] for letter in spelling])
            except KeyError:  # an added token, spelled as it reads
                return spelling.encode()
        if self._fallback and _BYTE_TOKEN.fullmatch(spelling):
            return bytes([int(spelling[3:5], 16)])
        if self._spaced:
            spelling = spelling.replace(_METASPACE, " ")
        return spelling.encode()


def _byte_letters() -> dict[str, int]:
    """The byte-level BPE alphabet (GPT-2): printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = {chr(value): value for value in itself}
    others = (value for value in range(256) if value not in itself)
    letters.update({chr(0x100 + i): value for i, value in enumerate(others)})
    return letters


def _flatten(step: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, out of their sequences."""
    if step is None:
        return []
    inner = step.get("decoders") or step.get("normalizers") or step.get("pretokenizers")
    return [step] if inner is None else [leaf for part in inner for leaf in _flatten(part)]


def _added_tokens(data: Mapping[str, Any], *, control: set[str]) -> list[dict[str, Any]]:
    """The added tokens. Those that control the model are special whatever the file says."""
    return [
        {**token, "special": bool(token.get("special")) or token["content"] in control}
        for token in data.get("added_tokens") or []
    ]


def _spellings(vocab: Mapping[str, int], size: int) -> list[str]:
    spelling = [""] * size
    for text, token in vocab.items():
        spelling[token] = text
    return spelling


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise TokenizerError(f"{path} is not a JSON object")
    return data


def _read_facts(model_dir: Path) -> Facts:
    def read(name: str) -> dict[str, Any]:
        path = model_dir / name
        return _read_object(path) if path.is_file() else {}

    own, generation, model = (
        read("tokenizer_config.json"),
        read("generation_config.json"),
        read("config.json"),
    )
    add_bos = own.get("add_bos_token")
    size = model.get("vocab_size")
    return Facts(
        names={name: spelling for name in _SPECIAL_NAMES if (spelling := _spelling_of(own.get(name)))},
        stop_ids=_ids(generation.get("eos_token_id")) or _ids(model.get("eos_token_id")),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        vocab_size=size if isinstance(size, int) else 0,
    )


def _spelling_of(entry: object) -> str | None:
    """A special token in tokenizer_config.json: a string, or an object with its content."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _ids(entry: object) -> tuple[int, ...]:
    """An eos_token_id: absent, one id, or several."""
    entries = entry if isinstance(entry, list) else [entry]
    return tuple(i for i in entries if isinstance(i, int) and not isinstance(i, bool))

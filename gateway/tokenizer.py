"""Text to token ids and back, for one model.

Wraps the `tokenizers` library with two promises it does not make by itself:

* A special token typed in text stays text, always. The library recognises special tokens by their spelling, so every
  one of them is respelled here, inside the library, as a *stand-in* that nobody outside this process can know; a
  genuine special token enters by its id (`encode_segments`).
* Every token has exact bytes (`token_bytes`), so that decoding is a table lookup and one UTF-8 decode, linear and
  incremental. Bytes that are not UTF-8 become U+FFFD by the maximal-subpart rule (Unicode 16, section 3.9).

Not done here: templates, stop strings, truncation.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import tokenizers

from .special_tokens import SpecialTokens

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|end_of_turn|>")
"""End an answer in chat models whose generation_config forgets to say so."""

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")

_METASPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""SentencePiece's visible space."""

_HASH_MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


class TokenizerError(ValueError):
    """The tokenizer's files are missing, damaged or not supported, or a text is not Unicode. Safe to show."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the files beside tokenizer.json say."""

    names: Mapping[str, str]
    """Spelling of bos_token, eos_token, unk_token and pad_token, where they exist."""
    stop_ids: tuple[int, ...]
    add_bos: bool | None
    vocab_size: int


class Tokenizer:
    """One model's tokenizer. Immutable; `encode` may run in many threads at once and releases the GIL."""

    def __init__(self, data: Mapping[str, Any], facts: _Facts) -> None:
        """`data` is a parsed tokenizer.json. Use `load` or `hash`."""
        model = data["model"]
        if not isinstance(model.get("vocab"), dict):
            raise TokenizerError(f"tokenizer.json has a model that is not supported: {model.get('type')}")
        added = _added_tokens(data, control=set(facts.names.values()) | set(_END_OF_TURN))
        self.specials = SpecialTokens({t["content"]: t["id"] for t in added if t["special"]})
        vocab: dict[str, int] = model["vocab"] | {t["content"]: t["id"] for t in added}
        spell = _Speller(data)
        size = max(facts.vocab_size, 1 + max(vocab.values(), default=-1))
        self._bytes = [spell.token_bytes(spelling) for spelling in _spellings(vocab, size)]
        self._stand_in, self._backend = _disguise(data, added)

        self._special_ids = frozenset(self.specials.ids.values())
        self._visible = [b"" if i in self._special_ids else raw for i, raw in enumerate(self._bytes)]
        self.strips_leading_space: bool = spell.strips_leading_space
        """SentencePiece puts a space before the first word; decoding from the start takes one away again."""

        self.special_names: Mapping[str, str] = facts.names
        """Spelling of bos_token, eos_token, unk_token and pad_token, where they exist: what templates ask for."""
        self.bos_id: int | None = vocab.get(facts.names.get("bos_token", ""))
        named_ends = [facts.names.get("eos_token", ""), *_END_OF_TURN]
        ends = [vocab[end] for end in named_ends if end in vocab]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*facts.stop_ids, *ends)))
        """Tokens that end an answer."""
        adds_bos = facts.add_bos if facts.add_bos is not None else self._backend_adds_bos()
        self._prefix = [self.bos_id] if adds_bos and self.bos_id is not None else []

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
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
    def hash(cls) -> Tokenizer:
        """The tokenizer of the hash model: ids 0 to 255 are bytes, then `<|im_start|>`, `<|im_end|>`, `<|endoftext|>`."""
        letters = {value: letter for letter, value in _byte_letters().items()}
        added = [{"id": 256 + i, "content": mark, **_PLAIN_SPECIAL} for i, mark in enumerate(_HASH_MARKS)]
        data = {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": True,
            },
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": False,
                "use_regex": True,
            },
            "model": {"type": "BPE", "vocab": {letters[i]: i for i in range(256)}, "merges": []},
        }
        return cls(data, _Facts(names={"eos_token": "<|im_end|>"}, stop_ids=(), add_bos=False, vocab_size=0))

    # -- text to ids ---------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Ids of `text`, in which special tokens are plain text. `add_special` puts the model's BOS before them,
        if it wants one. Raises TokenizerError if the text holds a lone surrogate."""
        ids = self._encode(text)
        return [*self._prefix, *ids] if add_special else ids

    def encode_segments(self, segments: Iterable[str | int]) -> list[int]:
        """Ids of text pieces (special tokens in them are plain text) and genuine special tokens, given by id.

        The pieces are tokenised together, so what a token does to its neighbours' spaces is as in the library.
        """
        return self._encode("".join(s if isinstance(s, str) else self._stand_in[s] for s in segments))

    def _encode(self, text: str) -> list[int]:
        try:
            return self._backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            raise TokenizerError("the text holds half of a surrogate pair and is not Unicode") from error

    # -- ids to text ---------------------------------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to below this. Includes ids that the model has and the tokenizer gives no text."""
        return len(self._bytes)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids` from the start of a text. An id out of range is an IndexError."""
        table = self.byte_table(skip_special=skip_special)
        text = b"".join([table[i] for i in ids]).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def byte_table(self, *, skip_special: bool) -> Sequence[bytes]:
        """Exact bytes by id; with `skip_special` those of special tokens are empty."""
        return self._visible if skip_special else self._bytes

    def token_bytes(self, token: int) -> bytes:
        """Exact bytes of one token, which need not be UTF-8 by themselves."""
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """One token for people to read, as in logprobs: U+FFFD where its bytes are no UTF-8 by themselves."""
        return self._bytes[token].decode("utf-8", "replace")

    def is_special(self, token: int) -> bool:
        return token in self._special_ids

    # -- once, at load -------------------------------------------------------------------------------------------------

    def _backend_adds_bos(self) -> bool:
        """The post-processor writes ids, which are the same in the disguise."""
        return self.bos_id in self._backend.encode("a", add_special_tokens=True).ids[:1]


_PLAIN_SPECIAL = {
    "special": True,
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
}


_DECODERS = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


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


_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


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


def _disguise(
    data: Mapping[str, Any], added: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, str], tokenizers.Tokenizer]:
    """Build the library's tokenizer with each special token respelled. Returns the stand-ins by id.

    The stand-ins take over the ids: no text that lacks one, whatever its words and merges, can give a special token.
    """
    secret = secrets.token_hex(16)
    stand_in = {t["id"]: f"\ue000{secret}:{t['id']}\ue001" for t in added if t["special"]}
    respelled = [
        {**t, "content": stand_in[t["id"]], "single_word": False} if t["special"] else t for t in added
    ]
    model = dict(data["model"])
    model["vocab"] = {spelling: i for spelling, i in model["vocab"].items() if i not in stand_in}
    # the library gives an added token the id of its spelling in the vocabulary, and any free one without
    model["vocab"] |= {t["content"]: t["id"] for t in respelled}
    unknown = data["model"]["vocab"].get(model.get("unk_token"))
    if unknown in stand_in:
        model["unk_token"] = stand_in[unknown]
    # padding and truncation are the engine's business, and the library would apply them silently
    document = {**data, "model": model, "added_tokens": respelled, "padding": None, "truncation": None}
    try:
        return stand_in, tokenizers.Tokenizer.from_buffer(orjson.dumps(document))
    except Exception as error:  # the library raises the bare class for a file it cannot read
        raise TokenizerError(f"tokenizer.json cannot be used: {error}") from error


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


def _read_facts(model_dir: Path) -> _Facts:
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
    return _Facts(
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

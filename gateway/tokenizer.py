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

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import tokenizers

from grammar.tokenizer_file import TokenizerError, TokenizerFile

from .special_tokens import SpecialTokens

__all__ = ["Tokenizer", "TokenizerError"]


class Tokenizer:
    """One model's tokenizer. Immutable; `encode` may run in many threads at once and releases the GIL."""

    def __init__(self, file: TokenizerFile) -> None:
        """Raises TokenizerError for a tokenizer.json the library does not take."""
        self.specials = SpecialTokens(file.specials)
        self._bytes = file.token_bytes
        self._stand_in, document = file.disguised()
        self._backend = _library_tokenizer(document)

        self._special_ids = frozenset(file.specials.values())
        self._visible = [b"" if i in self._special_ids else raw for i, raw in enumerate(self._bytes)]
        self.vocabulary = _vocabulary(self._bytes, file.specials)
        """A digest of what each id spells: ids of one tokenizer mean the same to another of the same vocabulary."""
        self.strips_leading_space: bool = file.strips_leading_space
        """SentencePiece puts a space before the first word; decoding from the start takes one away again."""

        names, add_bos = file.facts.names, file.facts.add_bos
        self.special_names: Mapping[str, str] = names
        """Spelling of bos_token, eos_token, unk_token and pad_token, where they exist: what templates ask for."""
        self.bos_id: int | None = file.vocab.get(names.get("bos_token", ""))
        self.stop_ids: tuple[int, ...] = file.stop_ids
        """Tokens that end an answer."""
        adds_bos = add_bos if add_bos is not None else self._backend_adds_bos()
        added = [token.content for token in self._backend.get_added_tokens_decoder().values()]
        self._beginnings = frozenset(text[:k] for text in added for k in range(1, len(text)))
        self._longest = max(map(len, added), default=1)
        self._prefix = [self.bos_id] if adds_bos and self.bos_id is not None else []

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Read tokenizer.json and the configs beside it. Raises TokenizerError."""
        return cls(TokenizerFile.load(model_dir))

    @classmethod
    def hash(cls) -> Tokenizer:
        """The tokenizer of the hash model: ids 0 to 255 are bytes, then `<|im_start|>`, `<|im_end|>`, `<|endoftext|>`."""
        return cls(TokenizerFile.hash())

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

    def unfinished(self, text: str) -> int:
        """How many characters at the end of `text` could yet become part of an added token, which is one wherever it stands."""
        return next(
            (k for k in range(min(len(text), self._longest), 0, -1) if text[-k:] in self._beginnings), 0
        )

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


def _library_tokenizer(document: bytes) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(document)
    except Exception as error:  # the library raises the bare class for a file it cannot read
        raise TokenizerError(f"tokenizer.json cannot be used: {error}") from error


def _vocabulary(spellings: Sequence[bytes], specials: Mapping[str, int]) -> str:
    digest = hashlib.sha256(b"".join([len(raw).to_bytes(4, "little") + raw for raw in spellings]))
    for token in sorted(specials.values()):
        digest.update(token.to_bytes(4, "little"))
    return digest.hexdigest()[:32]

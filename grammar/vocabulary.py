"""What a model's tokens spell: all a constraint engine has to know about a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .tokenizer_file import TokenizerFile


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[i]` are the bytes token `i` adds to a text, empty for special tokens and ids without a meaning.

    There are `size` of them, the width of the logits, which may be larger than the number of tokens the model knows.
    `specials` maps the text of each special token to its id. `tokenizer_json` is the text of the model's own tokeniser
    where it has one, in which no text becomes a special token: forced text is spelled the way it would.
    """

    tokens: tuple[bytes, ...]
    specials: Mapping[str, int]
    size: int
    tokenizer_json: str | None = None

    @property
    def words(self) -> int:
        """int32 words in one row of a mask."""
        return (self.size + 31) // 32


def load_vocabulary(model_dir: Path, *, size: int) -> Vocabulary:
    """From tokenizer.json and the configs beside it, for logits of width `size`. Tokens beyond it cannot be sampled and
    are left out. Raises TokenizerError, as the gateway's tokenizer does for the same files."""
    file = TokenizerFile.load(model_dir)
    _, document = file.disguised()
    return _vocabulary(file.token_bytes, file.specials, size, document.decode())


def byte_vocabulary(size: int, specials: Mapping[str, int]) -> Vocabulary:
    """One token for each byte, ids 0 to 255, as the hash model has them. Each text is spelled in one way only."""
    return _vocabulary([bytes([value]) for value in range(256)], specials, size, None)


def _vocabulary(
    spellings: Sequence[bytes], specials: Mapping[str, int], size: int, tokenizer_json: str | None
) -> Vocabulary:
    inside = {text: token for text, token in specials.items() if token < size}
    tokens = [*spellings[:size], *[b""] * (size - len(spellings))]
    for token in inside.values():
        tokens[token] = b""
    return Vocabulary(tuple(tokens), inside, size, tokenizer_json)

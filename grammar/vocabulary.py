"""What a model's tokens spell: all a constraint engine has to know about a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`tokens[i]` are the bytes token `i` adds to a text, empty for special tokens and ids without a meaning.

    `specials` maps the text of each special token to its id. `size` is the width of the logits, which may be larger than
    the number of tokens. `tokenizer_json` is the text of the model's own tokeniser where it has one: forced text is
    spelled the way it would.
    """

    tokens: tuple[bytes, ...]
    specials: Mapping[str, int]
    size: int
    tokenizer_json: str | None = None

    @property
    def words(self) -> int:
        """int32 words in one row of a mask."""
        return (self.size + 31) // 32

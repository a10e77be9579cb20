"""Driving cursors and matchers by text, and reading masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from grammar.backends.base import Backend, Bits, Cursor
from grammar.backends.spelling import Spelling
from grammar.spec import Grammar
from grammar.vocabulary import Vocabulary, byte_vocabulary

SPECIALS = {"<|im_start|>": 256, "<|im_end|>": 257, "<|endoftext|>": 258}

BYTES = byte_vocabulary(300, SPECIALS)
"""The hash model's vocabulary, with logits wider than it."""


class _Fills(Protocol):
    def fill(self, row: Bits) -> None: ...


def allowed(place: _Fills, vocabulary: Vocabulary) -> list[int]:
    row = np.full(vocabulary.words, -1, dtype=np.int32)
    place.fill(row)
    return [int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))]


def spelled(text: str | bytes | int | Iterable[str | bytes | int]) -> list[int]:
    """Byte tokens of texts, with special tokens by id between them."""
    if isinstance(text, int):
        return [text]
    if isinstance(text, str):
        return list(text.encode())
    if isinstance(text, bytes):
        return list(text)
    return [token for part in text for token in spelled(part)]


class Spelled:
    """The same as the tokeniser of another vocabulary spells it; its special tokens are those of the same text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._spell = Spelling(vocabulary)
        self._single = {raw: token for token, raw in enumerate(vocabulary.tokens) if len(raw) == 1}
        self._specials = {token: vocabulary.specials[text] for text, token in SPECIALS.items()}
        self._nothing = vocabulary.size

    def __call__(self, text: str | bytes | int | Iterable[str | bytes | int]) -> list[int]:
        if isinstance(text, int):
            return [self._specials[text]]
        if isinstance(text, str):
            return self._spell(text)
        if isinstance(text, bytes):
            return [self._single.get(text[i : i + 1], self._nothing) for i in range(len(text))]
        return [token for part in text for token in self(part)]


def followed(cursor: Cursor, tokens: Iterable[int]) -> bool:
    """Accept tokens one by one as long as they are allowed; whether all were."""
    return all(cursor.accept(token) for token in tokens)


def outcome(backend: Backend, grammar: Grammar, text: str | bytes | Iterable[str | bytes | int]) -> str:
    """`complete`, `partial` or `refused`: what a grammar makes of a text."""
    cursor = backend.compile(grammar).start()
    if not followed(cursor, spelled(text)):
        return "refused"
    return "complete" if cursor.accepting() else "partial"

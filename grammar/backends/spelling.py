"""Text as the model's own tokeniser spells it, for text that a grammar forces."""

from __future__ import annotations

from typing import Final

import tokenizers

from ..vocabulary import Vocabulary

_MARK: Final = "\x02"
"""A tokeniser may put a space before a text, though not in the middle of one, so the text goes behind this mark."""


class Spelling:
    """Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        document = vocabulary.tokenizer_json
        self._library = None if document is None else tokenizers.Tokenizer.from_str(document)
        self._bytes = vocabulary.tokens
        self._ids = {raw: token for token, raw in enumerate(vocabulary.tokens) if raw}
        self._longest = max(map(len, vocabulary.tokens))

    def __call__(self, text: str) -> list[int]:
        """Tokens whose bytes are those of the text, in the middle of another. Without a tokeniser that can do so, the
        longest token first. Bytes that no token has are left out."""
        raw = text.encode()
        if self._library is not None:
            for marked in (text, _MARK + text):
                ids = self._library.encode(marked, add_special_tokens=False).ids
                for start in range(min(len(ids), 4)):  # the mark and a space are three bytes at most
                    if b"".join(self._bytes[i] for i in ids[start:]) == raw:
                        return ids[start:]
        return self._greedy(raw)

    def _greedy(self, raw: bytes) -> list[int]:
        tokens: list[int] = []
        at = 0
        while at < len(raw):
            for end in range(min(len(raw), at + self._longest), at, -1):
                token = self._ids.get(raw[at:end])
                if token is not None:
                    tokens.append(token)
                    at = end
                    break
            else:
                at += 1
        return tokens

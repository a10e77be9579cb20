"""The spellings of a model's special tokens: finding them in text, and keeping text from becoming one.

A template writes special tokens as text, so a message could smuggle one in, whole or as a half that meets its other half
in a neighbouring string. `broken` makes that impossible: it puts a *sentinel*, a character that occurs nowhere else,
inside every spelling and at every end of the text that could be part of one. The sentinels are taken out again once the
rendered text has been split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping


class SpecialTokens:
    """Immutable. `ids` maps spellings to ids."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = ids
        longest_first = sorted(ids, key=len, reverse=True)
        self._any = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if ids else None
        self._longest = len(longest_first[0]) if ids else 0
        self._beginnings = {word[:k] for word in ids for k in range(1, len(word))}
        self._endings = {word[k:] for word in ids for k in range(1, len(word))}

    def split(self, text: str) -> list[str | int]:
        """Cut text at the special tokens it spells, the leftmost and longest first: pieces of text, and ids."""
        if self._any is None:
            return [text]
        pieces = self._any.split(text)
        return [self.ids[piece] if i % 2 else piece for i, piece in enumerate(pieces) if piece]

    def touches(self, text: str) -> bool:
        """Whether `text` spells a special token, or could together with what stands beside it."""
        if self._any is None or not text:
            return False
        return self._any.search(text) is not None or self._opens(text) or self._closes(text)

    def broken(self, text: str, sentinel: str) -> str:
        """`text` with sentinels, so that it can never be part of a special token."""
        if not self.touches(text):
            return text
        before = sentinel if self._closes(text) else ""
        after = sentinel if self._opens(text) else ""
        inside = "" if self._any is None else self._any.sub(lambda m: m[0][:1] + sentinel + m[0][1:], text)
        return before + inside + after

    def _opens(self, text: str) -> bool:
        """The end of the text could begin a special token, or be the middle of one."""
        reach = min(len(text), self._longest)
        return any(text[-k:] in self._beginnings for k in range(1, reach + 1)) or self._is_middle(text)

    def _closes(self, text: str) -> bool:
        """The start of the text could end a special token, or be the middle of one."""
        reach = min(len(text), self._longest)
        return any(text[:k] in self._endings for k in range(1, reach + 1)) or self._is_middle(text)

    def _is_middle(self, text: str) -> bool:
        return len(text) < self._longest and any(text in word for word in self.ids)

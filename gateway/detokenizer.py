"""Token ids to text as they arrive: only whole characters, nothing held back that is certain.

A token may end in the middle of a character; its first bytes wait for the rest. Bytes that cannot become a character
turn into U+FFFD as soon as that is certain, by the maximal-subpart rule, so that the pieces joined are exactly
`Tokenizer.decode` of all ids, however they were split. O(1) a token.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .tokenizer import Tokenizer

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one growing sequence.

    `skip_special`: special tokens have no text. `continues`: the ids follow a text (the prompt of a completion) rather
    than start one, so a leading space is part of the text and stays.
    """

    __slots__ = ("_decoder", "_strip", "_table")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        self._table = tokenizer.byte_table(skip_special=skip_special)
        self._decoder = _utf8_decoder("replace")
        self._strip = tokenizer.strips_leading_space and not continues

    def push(self, ids: Iterable[int]) -> str:
        """The characters these ids complete. An id out of range is an IndexError."""
        table = self._table
        return self._stripped(self._decoder.decode(b"".join([table[i] for i in ids])))

    def flush(self) -> str:
        """What is still held back: U+FFFD for a character that was never completed. Ends the sequence."""
        return self._stripped(self._decoder.decode(b"", True))

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

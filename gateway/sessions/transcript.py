"""What a next turn continues from.

A transcript is whole: what was said before lies in it too, so that no later deletion takes anything out of a conversation
that goes on, and one read is enough.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any

import msgspec


class Transcript(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`messages` are all that was said, as chat templates take them, the answer last. `parts` has the texts of those contents
    that came in several, by the index of their message.

    `ids` are the token ids of the last turn, its prompt and what was really generated behind it, as little-endian uint32.
    They are those of `vocabulary`, a digest of the tokenizer: to another they mean nothing. Empty: nothing is known.
    """

    messages: list[dict[str, Any]]
    parts: dict[int, list[str]] = {}
    ids: bytes = b""
    vocabulary: str = ""

    def known(self, vocabulary: str) -> array[int]:
        """The ids, for a tokenizer of that digest."""
        return unpack_ids(self.ids) if self.vocabulary == vocabulary else array("I")


def pack_ids(ids: Iterable[int]) -> bytes:
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(packed: bytes) -> array[int]:
    """Raises ValueError for bytes that are no whole ids."""
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids

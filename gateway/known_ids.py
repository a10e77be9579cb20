"""What is known of the turn before: the token ids it really was, from the beginning of its prompt to the end of its answer."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable

import msgspec


class KnownIds(msgspec.Struct, frozen=True, kw_only=True):
    """`ids`: the first `prompt` are those of the prompt, the others were generated behind it, as little-endian uint32. They
    are those of `vocabulary`, a digest of the tokenizer: to another they mean nothing. The prompt's text has `chars`
    characters and this `digest`."""

    ids: bytes
    prompt: int
    chars: int
    digest: bytes
    vocabulary: str

    @classmethod
    def of(cls, prompt: Iterable[int], text: str, answer: Iterable[int], vocabulary: str) -> KnownIds:
        """`text` is the prompt as the template wrote it."""
        ids = array("I", prompt)
        length = len(ids)
        ids.extend(answer)
        return cls(
            ids=pack_ids(ids),
            prompt=length,
            chars=len(text),
            digest=text_digest(text),
            vocabulary=vocabulary,
        )


def text_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


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

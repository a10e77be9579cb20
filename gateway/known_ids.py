"""What is known of the turn before: the token ids it really was, from the beginning of its prompt to the end of its answer."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable

import msgspec


class KnownIds(msgspec.Struct, frozen=True, kw_only=True):
    """`ids`: the first `prompt` are those of the prompt, the others were generated behind it, as little-endian uint32. They
    are those of `vocabulary`, a digest of the tokenizer: to another they mean nothing. The prompt was made of `messages`
    messages, from which the template wrote `chars` characters with this `digest`."""

    ids: bytes
    prompt: int
    messages: int
    chars: int
    digest: bytes
    vocabulary: str

    @classmethod
    def of(
        cls, prompt: Iterable[int], written: str, messages: int, answer: Iterable[int], vocabulary: str
    ) -> KnownIds:
        """`written` is the prompt as the template wrote it, `answer` what was generated and shown: nothing of an answer that
        a stop string cut."""
        ids = array("I", prompt)
        length = len(ids)
        ids.extend(answer)
        return cls(
            ids=pack_ids(ids),
            prompt=length,
            messages=messages,
            chars=len(written),
            digest=text_digest(written),
            vocabulary=vocabulary,
        )

    def begins(self, text: str) -> bool:
        """Whether a prompt that the template wrote goes on from this one."""
        return len(text) >= self.chars and text_digest(text[: self.chars]) == self.digest


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

"""What goes along with a page wherever it is: which page it is, whose, and how far down it may go."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

import msgspec

from ..lease import Tier


class PageMeta(msgspec.Struct, frozen=True, kw_only=True):
    """`chain` names the page: `page_chain(parent, tokens)`, where `parent` is the chain of the page before it, and that of
    the first page `root`. `namespace` and `adapter` are what `root` was made of, `tenant` is
    who wrote it, `group` and `tag` as in `cache.lease`. It is gone `max_age` seconds after its last use."""

    chain: bytes
    parent: bytes
    root: bytes
    tokens: tuple[int, ...]
    tenant: str = ""
    namespace: bytes = b""
    adapter: bytes = b""
    group: bytes = b""
    tag: str = ""
    lowest: Tier = "disk"
    max_age: float | None = None


def page_chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """32 bytes that stand for a page's tokens and all before them. Hashed by SHA-256, framed by length."""
    count = len(tokens)
    return hashlib.sha256(parent + struct.pack(f"<{count + 1}I", count, *tokens)).digest()


def chains(
    parent: bytes, tokens: Sequence[int], page_size: int, *, first: int, limit: int
) -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Chain and tokens of each whole page of `tokens[:limit]` from the page `first` on; `parent` is the chain before that."""
    for start in range(first * page_size, limit - page_size + 1, page_size):
        key = tuple(tokens[start : start + page_size])
        parent = page_chain(parent, key)
        yield parent, key

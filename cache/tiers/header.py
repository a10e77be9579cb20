"""What a page's file says of itself, and of which kind it is."""

from __future__ import annotations

import hashlib

import msgspec

from .page import PageMeta


class PageKind(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model decides the bytes of a page. Pages of different kinds are of no use to each other."""

    model_digest: str
    dtype: str
    page_size: int
    page_bytes: int
    layout: str = "kv"

    @property
    def digest(self) -> str:
        """Names the kind in 32 hex digits."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:32]


class FileHeader(msgspec.Struct, frozen=True, kw_only=True):
    """`hits` is how often the page had been used when it was written; `checksum` is the payload's."""

    kind: PageKind
    meta: PageMeta
    checksum: int
    hits: int = 0


class FoundPage(msgspec.Struct, frozen=True):
    """A page that was there at the start, unused for `idle` seconds, by the clock of the file system."""

    header: FileHeader
    idle: float

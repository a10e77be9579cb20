"""The KV of one prompt as a file that another engine with the same model can read.

    offset 0   magic, 8 bytes: "HWKX", a format version and three zeros
    8          length of the header, little-endian uint32
    12         CRC-32 of the header, little-endian uint32
    16         header: a msgpack map, `ArchiveHeader`
    then       the pages, one after the other, each its bytes and their CRC-32 as little-endian uint32

The header names no namespace and no tenant: whoever reads the file in says whose pages they become.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cache.tiers.header import PageKind
from cache.tiers.page_file import BadPageFile, read_exactly

MAGIC = b"HWKX\x01\0\0\0"
MAX_HEADER = 64 << 20
"""Bytes: millions of tokens."""

_FRONT = struct.Struct("<8sII")
_CHECKSUM = struct.Struct("<I")


class ArchiveHeader(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` fill the pages one by one, the last one maybe in part."""

    kind: PageKind
    adapter: bytes
    tokens: list[int]

    @property
    def pages(self) -> int:
        return -(-len(self.tokens) // self.kind.page_size)


class BadArchive(Exception):
    """The file is not what it has to be. The message may be shown to whoever sent it."""


Fill = Callable[[memoryview], None]
"""Puts the bytes of a page into a buffer."""


def write_archive(path: Path, header: ArchiveHeader, pages: Iterable[Fill]) -> int:
    """Write a new file, readable by its owner only; its length. Raises OSError, and whatever filling a page raises; no file is
    left then."""
    body = msgspec.msgpack.encode(header)
    page = memoryview(bytearray(header.kind.page_bytes))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(_FRONT.pack(MAGIC, len(body), zlib.crc32(body)) + body)
            for fill in pages:
                fill(page)
                out.write(page)
                out.write(_CHECKSUM.pack(zlib.crc32(page)))
            return out.tell()
    except BaseException:
        path.unlink()
        raise


class Archive:
    """A file that is open for reading, its header checked against what this engine holds."""

    def __init__(self, descriptor: int, kind: PageKind, adapter: bytes) -> None:
        self._descriptor = descriptor
        self.header, self._start = _read_header(descriptor)
        self.size = _check(self.header, kind, adapter, self._start, os.fstat(descriptor).st_size)

    def pages(self) -> Iterator[memoryview]:
        """The bytes of each page, in a buffer that the next one overwrites. Raises BadArchive and OSError."""
        length = self.header.kind.page_bytes
        buffer = memoryview(bytearray(length + _CHECKSUM.size))
        for number in range(self.header.pages):
            try:
                read_exactly(self._descriptor, buffer, self._start + number * len(buffer))
            except BadPageFile as error:
                raise BadArchive("the file ends early") from error
            (checksum,) = _CHECKSUM.unpack_from(buffer, length)
            if zlib.crc32(buffer[:length]) != checksum:
                raise BadArchive(f"page {number + 1} of the file is damaged")
            yield buffer[:length]


@contextmanager
def open_archive(path: Path, kind: PageKind, adapter: bytes) -> Iterator[Archive]:
    """Raises BadArchive and OSError. A link, and what is no file, is not followed or waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadArchive("this is no file")
        yield Archive(descriptor, kind, adapter)
    finally:
        os.close(descriptor)


def _read_header(descriptor: int) -> tuple[ArchiveHeader, int]:
    front = os.pread(descriptor, _FRONT.size, 0)
    if len(front) < _FRONT.size or not front.startswith(MAGIC[:4]):
        raise BadArchive("this is no file of exported pages")
    magic, length, checksum = _FRONT.unpack(front)
    if magic != MAGIC:
        raise BadArchive("the file's format is of another version")
    if length > MAX_HEADER:
        raise BadArchive("the file's header is damaged")
    body = os.pread(descriptor, length, _FRONT.size)
    if len(body) < length:
        raise BadArchive("the file ends early")
    if zlib.crc32(body) != checksum:
        raise BadArchive("the file's header is damaged")
    try:
        return msgspec.msgpack.decode(body, type=ArchiveHeader), _FRONT.size + length
    except msgspec.DecodeError as error:
        raise BadArchive(f"the file's header cannot be read: {error}") from error


def _check(header: ArchiveHeader, kind: PageKind, adapter: bytes, start: int, size: int) -> int:
    theirs = header.kind
    if theirs.model_digest != kind.model_digest:
        raise BadArchive(
            f"its pages were computed with another model: {theirs.model_digest[:16]}, not {kind.model_digest[:16]}"
        )
    if header.adapter != adapter:
        raise BadArchive("its pages were computed with another adapter")
    for name in ("dtype", "page_size", "layout", "page_bytes"):
        if (its := getattr(theirs, name)) != (ours := getattr(kind, name)):
            raise BadArchive(f"its pages are of {name} {its}, and those of this engine of {ours}")
    if not header.tokens:
        raise BadArchive("there are no tokens in the file")
    expected = start + header.pages * (kind.page_bytes + _CHECKSUM.size)
    if size != expected:
        raise BadArchive(f"the file has {size} bytes instead of {expected}")
    return size

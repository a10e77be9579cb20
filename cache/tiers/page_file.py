"""The format of a page on disk: a header that says which page of which model it is, then its bytes.

    offset 0   magic, 8 bytes: "HWKV", a format version and three zeros
    8          length of the header, little-endian uint32
    12         CRC-32 of the header, little-endian uint32
    16         header: a msgpack map, `FileHeader`
    then zeros up to a multiple of 4,096
    then       payload: the page's bytes as the runner moves them, nothing after it

Checksums find what a disk or a power failure did. They are no defence against somebody who can write into the directory.
CRC-32 (ISO 3309) because zlib's runs at 4 GB/s and lets other threads run meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path

import msgspec

from .page import PageMeta, page_chain

MAGIC = b"HWKV\x01\0\0\0"
ALIGNMENT = 4096
_FRONT = struct.Struct("<8sII")
_MOST_HEADER = 1 << 20


class BadPageFile(Exception):
    """It is not what it has to be; the message says why."""


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


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FileHeader)


def encode_front(header: FileHeader) -> bytes:
    """All that stands before the payload."""
    body = _encoder.encode(header)
    front = _FRONT.pack(MAGIC, len(body), zlib.crc32(body)) + body
    return front.ljust(aligned(len(front)), b"\0")


def aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def read_header(descriptor: int) -> tuple[FileHeader, int]:
    """The header and where the payload begins. Raises BadPageFile and OSError."""
    front = os.pread(descriptor, ALIGNMENT, 0)
    if len(front) < _FRONT.size:
        raise BadPageFile("too short for a header")
    magic, length, checksum = _FRONT.unpack_from(front)
    if magic != MAGIC:
        raise BadPageFile("not a page of this format")
    if length > _MOST_HEADER:
        raise BadPageFile("a header of no sensible length")
    end = _FRONT.size + length
    if end > len(front):
        front += os.pread(descriptor, end - len(front), len(front))
    body = front[_FRONT.size : end]
    if len(body) < length:
        raise BadPageFile("cut off in its header")
    if zlib.crc32(body) != checksum:
        raise BadPageFile("its header is damaged")
    try:
        return _decoder.decode(body), aligned(end)
    except msgspec.DecodeError as error:
        raise BadPageFile(f"its header cannot be read: {error}") from error


def check_header(header: FileHeader, kind: PageKind, name: str) -> None:
    """Whether this is the page that `name` (its chain in hex) promises. Raises BadPageFile."""
    meta = header.meta
    if header.kind != kind:
        raise BadPageFile("of another model, or of other pages")
    if meta.chain.hex() != name or page_chain(meta.parent, meta.tokens) != meta.chain:
        raise BadPageFile("not the page it is named after")
    if len(meta.tokens) != kind.page_size:
        raise BadPageFile("not a whole page")


def write_page(path: Path, header: FileHeader, payload: memoryview) -> None:
    """A new file, readable by its owner only. It is not forced to the disk: what a power failure tears is found torn, and is
    then a miss. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, encode_front(header), payload)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, front: bytes, payload: memoryview) -> None:
    written = os.writev(descriptor, [front, payload])
    if written < len(front):
        raise OSError("a header was written in part")
    rest = payload[written - len(front) :]
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_page(descriptor: int, kind: PageKind, meta: PageMeta, into: memoryview) -> None:
    """Fill `into`, `kind.page_bytes` long, with the bytes of just this page. Raises BadPageFile and OSError; what `into`
    holds then is undefined."""
    header, start = read_header(descriptor)
    check_header(header, kind, meta.chain.hex())
    if (
        header.meta.tokens != meta.tokens
        or header.meta.root != meta.root
        or header.meta.parent != meta.parent
    ):
        raise BadPageFile("another page")
    if os.fstat(descriptor).st_size != start + len(into):
        raise BadPageFile("not of the length it should have")
    read_exactly(descriptor, into, start)
    if zlib.crc32(into) != header.checksum:
        raise BadPageFile("its bytes are damaged")


def read_exactly(descriptor: int, into: memoryview, start: int) -> None:
    """Raises BadPageFile where the file ends early, and OSError."""
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], start + done)
        if not count:
            raise BadPageFile("cut off")
        done += count

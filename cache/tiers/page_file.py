"""The format of a page on disk: a header that says which page of which model it is, then its bytes.

    offset 0   magic, 8 bytes: "HWKV", a format version and three zeros
    8          length of the header, little-endian uint32
    12         CRC-32 of the header, little-endian uint32
    16         header: a msgpack map, `FileHeader`
    then zeros up to a multiple of 4,096
    then       payload: the page's bytes as the runner moves them, nothing after it

Checksums find what a disk or a power failure did. They are no defence against somebody who can write into the directory. The
header's is CRC-32 (ISO 3309), the payload's `checksum`: of what runs without another dependency the only one that costs
less than the reading (20 GB/s; zlib's CRC-32 4, SHA-256 2 on the same machine).
"""

from __future__ import annotations

import os
import struct
import zlib
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from .header import FileHeader, PageKind
from .page import PageMeta, page_chain

MAGIC = b"HWKV\x01\0\0\0"
ALIGNMENT = 4096
_FRONT = struct.Struct("<8sII")
_MOST_HEADER = 1 << 20


class BadPageFile(Exception):
    """It is not what it has to be; the message says why."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FileHeader)


def checksum(data: memoryview) -> int:
    """The sum of all 64-bit little-endian words, each times a number of its own, modulo 2**64; zeros fill the last word up.

    The numbers are odd: no change within one word goes unnoticed. They have nothing to do with each other, so that any other
    change has to be made for it.
    """
    whole = len(data) // 8
    factors = _factors(whole + 1)
    words = np.frombuffer(data, dtype="<u8", count=whole)
    total = int(np.einsum("i,i->", words, factors[:-1]))
    return (total + int.from_bytes(data[8 * whole :], "little") * int(factors[-1])) % 2**64


@lru_cache(maxsize=4)
def _factors(count: int) -> npt.NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014) of 1, 2, …, made odd."""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) | np.uint64(1)


def encode_front(header: FileHeader) -> bytes:
    """All that stands before the payload."""
    body = _encoder.encode(header)
    front = _FRONT.pack(MAGIC, len(body), zlib.crc32(body)) + body
    return front.ljust(aligned(len(front)), b"\0")


def aligned(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def read_header(descriptor: int) -> tuple[FileHeader, int]:
    """The header and where the payload begins. Raises BadPageFile and OSError."""
    return _read_header(memoryview(os.pread(descriptor, ALIGNMENT, 0)), descriptor)


def _read_header(front: memoryview, descriptor: int) -> tuple[FileHeader, int]:
    """`front` is how the file begins; what is missing of its header is read."""
    if len(front) < _FRONT.size:
        raise BadPageFile("too short for a header")
    magic, length, checksum = _FRONT.unpack_from(front)
    if magic != MAGIC:
        raise BadPageFile("not a page of this format")
    if length > _MOST_HEADER:
        raise BadPageFile("a header of no sensible length")
    end = _FRONT.size + length
    body = front[_FRONT.size : end] if end <= len(front) else os.pread(descriptor, length, _FRONT.size)
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
    """Fill `into`, `kind.page_bytes` long, with the bytes of just this page, which `meta` names truly. Raises BadPageFile and
    OSError; what `into` holds then is undefined."""
    front, behind = bytearray(ALIGNMENT), bytearray(1)
    done = os.preadv(descriptor, [front, into, behind], 0)  # nearly always that is all
    header, start = _read_header(memoryview(front)[:done], descriptor)
    if header.kind != kind or not _is(header.meta, meta):
        raise BadPageFile("another page")
    if start != ALIGNMENT or done != start + len(into):
        if os.fstat(descriptor).st_size != start + len(into):
            raise BadPageFile("not of the length it should have")
        read_exactly(descriptor, into, start)
    if checksum(into) != header.checksum:
        raise BadPageFile("its bytes are damaged")


def _is(one: PageMeta, other: PageMeta) -> bool:
    return (
        one.chain == other.chain
        and one.tokens == other.tokens
        and one.root == other.root
        and one.parent == other.parent
    )


def read_exactly(descriptor: int, into: memoryview, start: int) -> None:
    """Raises BadPageFile where the file ends early, and OSError."""
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], start + done)
        if not count:
            raise BadPageFile("cut off")
        done += count

"""What the store knows about a model it pulled or imported: where it lies and the digest of each of its files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

IMPORTER_VERSION = 1
"""Raised whenever an import of the same file would write something else; what an older importer wrote is then redone."""

_CHUNK = 1 << 20


class FileRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mtime_ns` is None where the store owns the file: nobody else writes there, and a copied store stays valid."""

    sha256: str
    size: int
    mtime_ns: int | None = None

    def describes(self, path: Path) -> bool:
        """Whether the file still looks as it did when it was hashed. Does not read it."""
        try:
            stat = path.stat()
        except OSError:
            return False
        return stat.st_size == self.size and self.mtime_ns in (None, stat.st_mtime_ns)


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the model came from: `name` is a path, a hub id or a package; `file` describes the one file it was made of."""

    name: str
    file: FileRecord | None = None


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`path` is the model's directory, relative to the record's own: a store can be moved. `created` is in epoch seconds.

    `importer` is None for a directory that is used in place.
    """

    path: str
    source: Source
    created: int
    files: dict[str, FileRecord]
    importer: int | None = None

    def holds(self, directory: Path) -> bool:
        """Every file is there, looks as recorded, and a current importer wrote it."""
        if self.importer not in (None, IMPORTER_VERSION):
            return False
        return all(file.describes(directory / name) for name, file in self.files.items())


def read_record(path: Path) -> Record | None:
    """None if there is none, or if it is not readable as one (an older or newer version wrote it)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".record-", delete=False) as file:
        try:
            file.write(msgspec.json.format(msgspec.json.encode(record), indent=2))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def hash_file(path: Path, advance: Callable[[int], None], *, in_place: bool) -> FileRecord:
    """SHA-256 of a file. `advance` is told the bytes done as they are done."""
    before = path.stat()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return FileRecord(digest.hexdigest(), before.st_size, before.st_mtime_ns if in_place else None)

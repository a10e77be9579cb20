"""What outlives a request: namespace generations, cache objects, later sessions. Small values under kind, tenant and name.

`Store` has two implementations: `MemoryStore`, which ends with the process, and `FileStore`, which survives it, however it
ends. Nothing here is asked for every record it has on the way of a request: that is by one name, or one tenant's list.

StoreError        the store cannot be read or written, or is damaged
└── Conflict      the record is not the version it was expected to be
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import quote, unquote

T = TypeVar("T")
Clock = Callable[[], float]

ABSENT = ""
"""The version to expect of a record that does not exist."""

SWEEP_INTERVAL = 600.0
"""Seconds between two looks for records whose time is over: until then they take room, and are not found."""


class StoreError(Exception):
    """`str(error)` is one line for an operator."""


class Conflict(StoreError):
    """Somebody else was faster: read again."""


@dataclass(frozen=True, slots=True)
class Record:
    """`version` changes with every `put` and never comes back, also not when a record is deleted and made anew."""

    name: str
    value: bytes
    version: str


class Store(Protocol):
    """Every method may raise StoreError. A change that was begun is carried out even if its caller is cancelled."""

    async def get(self, kind: str, tenant: str, name: str) -> Record | None: ...

    async def put(
        self,
        kind: str,
        tenant: str,
        name: str,
        value: bytes,
        *,
        ttl: float | None = None,
        expected: str | None = None,
    ) -> Record:
        """Write a record, to be forgotten after `ttl` seconds of wall time; None keeps it.

        `expected` is the version it has to have, ABSENT that there has to be none; None overwrites. Raises Conflict.
        """
        ...

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        """Whether there was one. Raises Conflict if it was not of the version `expected`."""
        ...

    async def list(self, kind: str, tenant: str) -> list[Record]:
        """A tenant's records of a kind, ordered by name."""
        ...

    async def close(self) -> None:
        """After everything that was begun. Nothing may be asked any more."""
        ...


class MemoryStore:
    """A store for as long as the process runs."""

    def __init__(self, *, clock: Clock = time.time) -> None:
        self._clock = clock
        self._records: dict[tuple[str, str], dict[str, tuple[Record, float | None]]] = {}
        self._swept = clock()

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        record, expires = self._records.get((kind, tenant), {}).get(name, (None, None))
        return None if _over(expires, self._clock()) else record

    async def put(
        self,
        kind: str,
        tenant: str,
        name: str,
        value: bytes,
        *,
        ttl: float | None = None,
        expected: str | None = None,
    ) -> Record:
        _check(await self.get(kind, tenant, name), expected)
        now = self._clock()
        self._sweep(now)
        record = Record(name, value, _new_version())
        self._records.setdefault((kind, tenant), {})[name] = (record, None if ttl is None else now + ttl)
        return record

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        found = await self.get(kind, tenant, name)
        _check(found, expected)
        records = self._records.get((kind, tenant), {})
        records.pop(name, None)
        if not records:
            self._records.pop((kind, tenant), None)
        return found is not None

    async def list(self, kind: str, tenant: str) -> list[Record]:
        now = self._clock()
        records = sorted(self._records.get((kind, tenant), {}).items())
        return [record for _, (record, expires) in records if not _over(expires, now)]

    async def close(self) -> None:
        self._records.clear()

    def _sweep(self, now: float) -> None:
        if now - self._swept < SWEEP_INTERVAL:
            return
        self._swept = now
        for key, records in list(self._records.items()):
            kept = {name: held for name, held in records.items() if not _over(held[1], now)}
            if kept:
                self._records[key] = kept
            else:
                del self._records[key]


class FileStore:
    """A store in a directory of its own: one file a record, replaced as a whole, on disk before `put` returns.

    One thread does all of it in order, so nothing blocks the event loop. One process at a time: `open` before the first
    use, which raises StoreError if another has it open.
    """

    def __init__(self, directory: Path, *, clock: Clock = time.time) -> None:
        self._files = _Files(directory, clock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def open(self) -> None:
        """Take the directory, made if it is not there, and tidy up what a killed process left half done."""
        await self._run(self._files.open)

    async def get(self, kind: str, tenant: str, name: str) -> Record | None:
        return await self._run(lambda: self._files.get((kind, tenant, name)))

    async def put(
        self,
        kind: str,
        tenant: str,
        name: str,
        value: bytes,
        *,
        ttl: float | None = None,
        expected: str | None = None,
    ) -> Record:
        return await self._run(lambda: self._files.put((kind, tenant, name), value, ttl, expected))

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        return await self._run(lambda: self._files.delete((kind, tenant, name), expected))

    async def list(self, kind: str, tenant: str) -> list[Record]:
        return await self._run(lambda: self._files.list(kind, tenant))

    async def close(self) -> None:
        await self._run(self._files.close)
        self._thread.shutdown(wait=False)  # it is idle

    async def _run(self, work: Callable[[], T]) -> T:
        def named() -> T:
            try:
                return work()
            except OSError as error:
                raise StoreError(f"{error.filename or self._files.directory}: {error.strerror}") from None

        # shielded: a cancelled future would take work that still waits for the thread out of its queue
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, named))


_Key = tuple[str, str, str]
"""Kind, tenant and name."""
_MAGIC = b"HWREC\0\0\1"
_HEADER = struct.Struct("<8s16sd32s")
"""Magic, version, expiry by the wall clock (0: never), SHA-256 of all that and the value, which follows."""
_TEMPORARY = ".new-"
_LONGEST = 255
"""Bytes of a file's name on the file systems there are."""


class _Files:
    """`directory`/kind/tenant/name, each of them spelled so that it cannot be mistaken for a path."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock
        self._lock: int | None = None
        self._swept = 0.0

    def open(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StoreError(f"{self.directory} is in use by another server") from None
        self._lock = lock
        for left in self.directory.glob(f"*/*/{_TEMPORARY}*"):
            left.unlink()
        self._sweep(self._clock())

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # and with it the lock
            self._lock = None

    def get(self, key: _Key) -> Record | None:
        return self._read(self._path(key), key[-1])

    def put(self, key: _Key, value: bytes, ttl: float | None, expected: str | None) -> Record:
        path, name = self._path(key), key[-1]
        _check(self._read(path, name), expected)
        now = self._clock()
        if now - self._swept >= SWEEP_INTERVAL:
            self._sweep(now)
        record = Record(name, value, _new_version())
        self._make(path.parent)
        _replace(path, _encode(record, 0.0 if ttl is None else now + ttl))
        return record

    def delete(self, key: _Key, expected: str | None) -> bool:
        path = self._path(key)
        found = self._read(path, key[-1])
        _check(found, expected)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            _sync(path.parent)
        return found is not None

    def list(self, kind: str, tenant: str) -> list[Record]:
        folder = self.directory / _spell(kind) / _spell(tenant)
        records = [self._read(path, unquote(path.name[1:])) for path in _children(folder)]
        return sorted((record for record in records if record is not None), key=lambda record: record.name)

    def _path(self, key: _Key) -> Path:
        return self.directory.joinpath(*map(_spell, key))

    def _make(self, folder: Path) -> None:
        for path in (folder.parent, folder):
            if not path.exists():
                path.mkdir(mode=0o700, exist_ok=True)
                _sync(path.parent)

    def _read(self, path: Path, name: str) -> Record | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        record, expires = _decode(content, name, path)
        return None if _over(expires or None, self._clock()) else record

    def _sweep(self, now: float) -> None:
        self._swept = now
        for path in self.directory.glob("@*/@*/@*"):
            with path.open("rb") as file:
                header = file.read(_HEADER.size)
            if len(header) == _HEADER.size and _over(_HEADER.unpack(header)[2] or None, now):
                path.unlink()


def _spell(part: str) -> str:
    """A file's name that is none of the system's: quote() leaves no `@` and no `/`, and `@..` is nobody's parent."""
    spelled = "@" + quote(part, safe="")
    if len(spelled) > _LONGEST:
        raise StoreError(f"a name of {len(part)} characters is too long to be kept in files")
    return spelled


def _children(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from (path for path in folder.iterdir() if path.name.startswith("@"))


def _encode(record: Record, expires: float) -> bytes:
    version = record.version.encode()
    return _HEADER.pack(_MAGIC, version, expires, _checksum(version, expires, record.value)) + record.value


def _decode(content: bytes, name: str, path: Path) -> tuple[Record, float]:
    if len(content) >= _HEADER.size:
        magic, version, expires, checksum = _HEADER.unpack_from(content)
        value = content[_HEADER.size :]
        if magic == _MAGIC and checksum == _checksum(version, expires, value):
            return Record(name, value, version.decode()), expires
    raise StoreError(f"{path} is damaged: remove it to do without")


def _checksum(version: bytes, expires: float, value: bytes) -> bytes:
    return hashlib.sha256(_MAGIC + version + struct.pack("<d", expires) + value).digest()


def _replace(path: Path, content: bytes) -> None:
    """The old content or the new one, whatever happens: renamed into place once it is on disk."""
    descriptor, made = tempfile.mkstemp(dir=path.parent, prefix=_TEMPORARY)  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        Path(made).replace(path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Names are on disk only when their directory is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(found: Record | None, expected: str | None) -> None:
    if expected is not None and expected != (ABSENT if found is None else found.version):
        raise Conflict("the record has changed" if found is not None else "there is no such record")


def _new_version() -> str:
    return secrets.token_hex(8)


def _over(expires: float | None, now: float) -> bool:
    return expires is not None and now >= expires

"""A store in a directory of its own, which survives the process, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote

from .store import SWEEP_INTERVAL, Clock, Record, StoreError, behind, check_version, is_over, new_version

T = TypeVar("T")


class FileStore:
    """One file a record, replaced as a whole, on disk before `put` returns.

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
        version: str | None = None,
    ) -> Record:
        return await self._run(lambda: self._files.put((kind, tenant, name), value, ttl, expected, version))

    async def delete(self, kind: str, tenant: str, name: str, *, expected: str | None = None) -> bool:
        return await self._run(lambda: self._files.delete((kind, tenant, name), expected))

    async def list(
        self,
        kind: str,
        tenant: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[Record]:
        return await self._run(lambda: self._files.list(kind, tenant, after, limit, reverse=reverse))

    async def close(self) -> None:
        await self._run(self._files.close)
        self._thread.shutdown(wait=False)  # it is idle

    async def _run(self, work: Callable[[], T]) -> T:
        def named() -> T:
            try:
                return work()
            except OSError as error:
                raise StoreError(f"{error.filename or self._files.directory}: {error.strerror}") from None

        done = asyncio.get_running_loop().run_in_executor(self._thread, named)
        done.add_done_callback(_looked_at)
        # shielded: a cancelled future would take work that still waits for the thread out of its queue
        return await asyncio.shield(done)


def _looked_at(done: asyncio.Future[T]) -> None:
    """How it went is the caller's to hear; who was cancelled wants to hear nothing."""
    if not done.cancelled():
        done.exception()


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

    def put(
        self, key: _Key, value: bytes, ttl: float | None, expected: str | None, version: str | None
    ) -> Record:
        path, name = self._path(key), key[-1]
        check_version(self._read(path, name), expected)
        now = self._clock()
        if now - self._swept >= SWEEP_INTERVAL:
            self._sweep(now)
        record = Record(name, value, version or new_version())
        self._make(path.parent)
        _replace(path, _encode(record, 0.0 if ttl is None else now + ttl))
        return record

    def delete(self, key: _Key, expected: str | None) -> bool:
        path = self._path(key)
        found = self._read(path, key[-1])
        check_version(found, expected)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            _sync(path.parent)
        return found is not None

    def list(
        self, kind: str, tenant: str, after: str | None, limit: int | None, *, reverse: bool
    ) -> list[Record]:
        folder = self.directory / _spell(kind) / _spell(tenant)
        paths = {unquote(path.name[1:]): path for path in _children(folder)}
        found = (self._read(paths[name], name) for name in behind(paths, after, reverse=reverse))
        return list(islice((record for record in found if record is not None), limit))

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
        return None if is_over(expires or None, self._clock()) else record

    def _sweep(self, now: float) -> None:
        self._swept = now
        for path in self.directory.glob("@*/@*/@*"):
            with path.open("rb") as file:
                header = file.read(_HEADER.size)
            if len(header) == _HEADER.size and is_over(_HEADER.unpack(header)[2] or None, now):
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

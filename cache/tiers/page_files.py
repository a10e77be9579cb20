"""The directory of the pages on disk: written, read and removed by any thread, in order after a kill at any moment.

    DIRECTORY/lock                         held by the one engine that uses the directory
    DIRECTORY/pages/KIND/ROOT/CHAIN        a page; all names in hex
    DIRECTORY/new/NUMBER                   a page that is being written, renamed when it is whole
    DIRECTORY/trash/NUMBER                 pages that were flushed; of no use to anybody

What stands in `new` and `trash` at the start was left by an engine that was killed, and goes. So does every file that is
not what its name says, when it is read: that is a miss, never an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .header import FileHeader, FoundPage, PageKind
from .page import PageMeta
from .page_file import (
    BadPageFile,
    aligned,
    check_header,
    checksum,
    read_header,
    read_page,
    write_page,
)

_HEADER = 1024
_TOKEN = 5
"""Bytes of a header at most, beside long names, and of each token in it (msgpack's largest uint32)."""


class DirectoryInUse(Exception):
    """Another engine has it."""


class PageFiles:
    """The pages of one kind. `file_bytes` is what one of them takes.

    `open` first. A page that is written has to be wanted until the very end: `wanted` is asked under the same lock that
    `drop_root` and `remove` take, so what was dropped meanwhile does not come back.
    """

    def __init__(self, directory: Path, kind: PageKind) -> None:
        self.kind = kind
        self.file_bytes = aligned(_HEADER + _TOKEN * kind.page_size) + aligned(kind.page_bytes)
        self._directory = directory
        self._pages = directory / "pages" / kind.digest
        self._new = directory / "new"
        self._trash = directory / "trash"
        self._numbers = itertools.count(1)
        self._rename = threading.Lock()
        self._lock_file: int | None = None
        self._denied = 0

    # ---- start and end -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the directory, and clear away what a killed engine left. Raises DirectoryInUse and OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_lock()
        for leftover in (self._new, self._trash):
            shutil.rmtree(leftover, ignore_errors=True)
            leftover.mkdir(mode=0o700)
        for directory in (self._pages.parent, self._pages):
            directory.mkdir(mode=0o700, exist_ok=True)

    def close(self) -> None:
        """Let others have the directory."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def scan(self) -> Iterator[FoundPage]:
        """Every page there is, its header read and checked, its bytes not. Files that are none are removed."""
        now = time.time()
        for root in _entries(self._pages):
            for entry in _entries(Path(root.path)):
                found = self._look_at(Path(entry.path), root.name, now)
                if found is not None:
                    yield found
            with contextlib.suppress(OSError):  # it is not empty
                Path(root.path).rmdir()

    def other_kinds(self) -> list[tuple[str, int]]:
        """Pages of other models in the same directory, by kind, with their bytes; what was used least recently first."""
        found: list[tuple[float, str, int]] = []
        for kind in _entries(self._directory / "pages"):
            if kind.name != self._pages.name:
                files = [
                    entry.stat() for root in _entries(Path(kind.path)) for entry in _entries(Path(root.path))
                ]
                newest = max((status.st_mtime for status in files), default=0.0)
                found.append((newest, kind.name, sum(status.st_size for status in files)))
        return [(name, size) for _, name, size in sorted(found)]

    def remove_kind(self, digest: str) -> None:
        self._throw_away(self._directory / "pages" / digest)

    # ---- pages -------------------------------------------------------------------------------------------------------

    def write(
        self,
        meta: PageMeta,
        payload: memoryview,
        *,
        wanted: Callable[[], bool],
        hits: int = 0,
    ) -> bool:
        """Write a page, and say whether it is there: not if it was not wanted any more. Raises OSError."""
        if not wanted():
            return False
        header = FileHeader(kind=self.kind, meta=meta, checksum=checksum(payload), hits=hits)
        made = self._new / str(next(self._numbers))
        try:
            self._strike()
            write_page(made, header, payload)
            with self._rename:
                if not wanted():
                    return False
                path = self._path(meta)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                made.rename(path)
                return True
        finally:
            made.unlink(missing_ok=True)

    def read(self, meta: PageMeta, into: memoryview) -> bool:
        """Fill `into` with a page's bytes; False if they cannot be had, and then the file is gone as well."""
        try:
            self._strike()
            descriptor = os.open(self._name(meta), os.O_RDONLY | os.O_CLOEXEC)
            try:
                read_page(descriptor, self.kind, meta, into)
            finally:
                os.close(descriptor)
        except (BadPageFile, OSError):
            self.remove(meta)
            return False
        return True

    def touch(self, meta: PageMeta) -> None:
        """It was used: that is remembered across a restart."""
        with contextlib.suppress(OSError):
            os.utime(self._name(meta))

    def deny(self, times: int) -> None:
        """Let the next `times` reads and writes fail. For failpoints and tests."""
        with self._rename:
            self._denied = times

    def _strike(self) -> None:
        if self._denied:
            with self._rename:
                if self._denied:
                    self._denied -= 1
                    raise OSError(errno.EIO, "a read or write of a page was denied by a failpoint")

    def remove(self, meta: PageMeta) -> None:
        """Whether it was there or not. What cannot be removed fails its check when it is read."""
        with self._rename, contextlib.suppress(OSError):
            self._path(meta).unlink(missing_ok=True)

    def drop_root(self, root: bytes) -> Callable[[], None]:
        """Take a root's pages out of reach at once. What is returned deletes them, whenever there is time for it."""
        directory = self._pages / root.hex()
        trash = self._trash / str(next(self._numbers))
        with self._rename:
            try:
                directory.rename(trash)
            except OSError:  # there is none, or the disk fails: what can be deleted is deleted all the same
                trash = directory
        return lambda: self._delete(trash)

    def _delete(self, directory: Path) -> None:
        descriptor = os.open(self._pages, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)  # not even a power failure undoes the renaming
        finally:
            os.close(descriptor)
        shutil.rmtree(directory, ignore_errors=True)

    def _path(self, meta: PageMeta) -> Path:
        return Path(self._name(meta))

    def _name(self, meta: PageMeta) -> str:
        return f"{self._pages}/{meta.root.hex()}/{meta.chain.hex()}"  # joining paths takes as long as opening the file

    def _look_at(self, path: Path, root: str, now: float) -> FoundPage | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                header, start = read_header(descriptor)
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            check_header(header, self.kind, path.name)
            if header.meta.root.hex() != root or status.st_size != start + self.kind.page_bytes:
                raise BadPageFile("misplaced or cut off")
        except (BadPageFile, OSError):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return FoundPage(header, max(now - status.st_mtime, 0.0))

    def _throw_away(self, directory: Path) -> None:
        trash = self._trash / str(next(self._numbers))
        with contextlib.suppress(FileNotFoundError):
            directory.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _take_lock(self) -> None:
        descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise DirectoryInUse(f"{self._directory} is used by another engine") from error
        self._lock_file = descriptor


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []

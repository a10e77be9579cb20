"""A file of lines that grows, is rotated by size, and never makes anybody wait.

Lines are written in the order they came, by a thread, each in one piece. What a full disk refuses is counted and gone; a
line that a crash tore off is cut away at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import glob
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from engine.errors import StartError

from ..log import faults

MOST_WAITING = 100_000
"""Lines that may wait for a slow disk: some 50 MB. More are dropped."""
_TAIL = 1 << 16
"""Bytes that are searched at once for the end of the last whole line."""


class LedgerFile:
    """`path` and up to `files - 1` older ones, `path.1` the youngest of them, none larger than `max_bytes` unless by a single
    line. `write` is the event loop's; everything else is the writer's."""

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        self.path = path
        self.dropped = 0
        """Lines that are lost: the disk refused them, or was too slow."""
        self._lines = _Lines(path, max_bytes, files)
        self._waiting: list[bytes] = []
        self._more = asyncio.Event()
        self._refused = False
        self._closing = False

    def write(self, line: bytes) -> None:
        """Without its end. Returns at once."""
        if len(self._waiting) >= MOST_WAITING:
            self._lose(1, "the disk is too slow")
            return
        self._waiting.append(line + b"\n")
        self._more.set()

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        """Takes the file; on the way out writes what waits. Raises StartError if it cannot be written or another server
        has it."""
        await asyncio.to_thread(self._lines.open)
        writer = asyncio.create_task(self._write(), name="ledger")
        try:
            yield
        finally:
            self._closing = True
            self._more.set()
            await writer
            await asyncio.to_thread(self._lines.close)

    async def _write(self) -> None:
        while self._waiting or not self._closing:
            await self._more.wait()
            self._more.clear()
            lines, self._waiting = self._waiting, []
            if lines:
                await self._append(lines)

    async def _append(self, lines: list[bytes]) -> None:
        written = await asyncio.to_thread(self._lines.append, lines)
        if written.problem is None:
            self._refused = False
        else:
            self._lose(len(lines) - written.lines, written.problem)

    def _lose(self, lines: int, problem: str) -> None:
        self.dropped += lines
        if not self._refused:
            self._refused = (
                True  # until something can be written again: a line of log for each would fill that disk too
            )
            faults.error("the ledger %s loses lines: %s", self.path, problem)


@dataclass(frozen=True, slots=True)
class _Written:
    """`problem` is why the lines after the first `lines` are not there."""

    lines: int
    problem: str | None = None


class _Lines:
    """The writer's side: blocks."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._lock: int | None = None

    def open(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take()
            self._mend()
            self._forget()
        except OSError as error:
            raise StartError(f"cannot write the ledger {self._path}: {error.strerror}") from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, lines: list[bytes]) -> _Written:
        done = 0
        try:
            while done < len(lines):
                room = self._room(len(lines[done]))
                written = self._append_piece(_piece(lines, done, room))
                done += written.lines
                if written.problem is not None:
                    return _Written(done, written.problem)
        except OSError as error:
            return _Written(done, str(error))
        return _Written(done)

    def _room(self, needed: int) -> int:
        """Bytes that may still be written to the file, at least those that are needed: goes on in a new one if it must."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:  # somebody has moved it away
            size = 0
        if size and size + needed > self._max_bytes:
            self._rotate()
            size = 0
        return max(self._max_bytes - size, needed)

    def _append_piece(self, piece: bytes) -> _Written:
        """All of it, or as many whole lines as the disk takes."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            begin = os.fstat(file).st_size
            taken = 0
            try:
                while taken < len(piece):
                    taken += os.write(file, piece[taken:])
            except OSError as error:
                whole = piece.rfind(b"\n", 0, taken) + 1
                os.ftruncate(file, begin + whole)
                return _Written(piece.count(b"\n", 0, whole), str(error))
        finally:
            os.close(file)
        return _Written(piece.count(b"\n"))

    def _rotate(self) -> None:
        """A crash in the middle leaves a gap in the numbers, which is none in the lines."""
        if self._files == 1:
            self._path.unlink()
        for number in range(self._files - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._numbered(number - 1).replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path

    def _take(self) -> None:
        lock = os.open(
            self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StartError(f"the ledger {self._path} is in use by another server") from None
        self._lock = lock

    def _mend(self) -> None:
        """Cut off what follows the last end of a line. Makes the file, so that it is known now if that cannot be."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            end = size = file.seek(0, os.SEEK_END)
            while end:
                begin = max(end - _TAIL, 0)
                file.seek(begin)
                found = file.read(end - begin).rfind(b"\n")
                if found >= 0:
                    end = begin + found + 1
                    break
                end = begin
            if end < size:
                file.truncate(end)

    def _forget(self) -> None:
        """Older files than are to be kept, where there were to be more before."""
        for path in self._path.parent.glob(f"{glob.escape(self._path.name)}.*"):
            number = path.name.removeprefix(f"{self._path.name}.")
            if number.isdecimal() and int(number) >= self._files:
                path.unlink()


def _piece(lines: list[bytes], first: int, room: int) -> bytes:
    """The lines from the first on that have room together, that one in any case."""
    end, size = first + 1, len(lines[first])
    while end < len(lines) and size + len(lines[end]) <= room:
        size += len(lines[end])
        end += 1
    return b"".join(lines[first:end])

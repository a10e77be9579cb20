"""A file of lines: in order, whole, bounded, and never anybody's trouble."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import StartError
from gateway.caching import ledger_file
from gateway.caching.ledger_file import LedgerFile


@asynccontextmanager
async def opened(path: Path, *, max_bytes: int = 1 << 20, files: int = 3) -> AsyncIterator[LedgerFile]:
    file = LedgerFile(path, max_bytes=max_bytes, files=files)
    context = file.context(web.Application())
    await anext(context)
    try:
        yield file
    finally:
        await anext(context, None)


async def settled(file: LedgerFile) -> None:
    """Everything that was handed over is written or lost: what the writer has taken by now it does in its next turn."""
    async with asyncio.timeout(5):
        while file._waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)


def lines_in(directory: Path, name: str = "ledger") -> list[bytes]:
    """Of all files, from the oldest on."""
    older = sorted(directory.glob(f"{name}.*"), key=lambda path: -int(path.suffix[1:]))
    return [
        line
        for path in [*older, directory / name]
        if path.exists()
        for line in path.read_bytes().splitlines()
    ]


async def read(directory: Path) -> list[bytes]:
    return await asyncio.to_thread(lines_in, directory)


async def test_lines_are_there_in_order_when_it_is_closed(tmp_path: Path) -> None:
    async with opened(tmp_path / "ledger") as file:
        for i in range(1000):
            file.write(b"%d" % i)
            if i % 100 == 0:
                await asyncio.sleep(0)
    assert await read(tmp_path) == [b"%d" % i for i in range(1000)]
    status = await asyncio.to_thread((tmp_path / "ledger").stat)
    assert status.st_mode & 0o777 == 0o600
    assert file.dropped == 0


@given(
    sizes=st.lists(st.integers(0, 60), max_size=60),
    batches=st.lists(st.integers(1, 20), min_size=1, max_size=10),
    max_bytes=st.integers(10, 200),
    files=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_files_stay_small_and_few_and_lose_only_the_oldest(
    sizes: list[int], batches: list[int], max_bytes: int, files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    writer = ledger_file._Lines(directory / "ledger", max_bytes, files)
    writer.open()
    lines = [b"%03d" % i + b"x" * size for i, size in enumerate(sizes)]
    rest, turn = lines, 0
    while rest:
        size = batches[turn % len(batches)]
        assert writer.append([line + b"\n" for line in rest[:size]]).lines == len(rest[:size])
        rest, turn = rest[size:], turn + 1
        found = [path for path in directory.iterdir() if not path.name.startswith(".")]
        assert len(found) <= files
        for path in found:
            content = path.read_bytes()
            assert len(content) <= max_bytes or content.count(b"\n") == 1
    writer.close()
    kept = lines_in(directory)
    assert kept == lines[len(lines) - len(kept) :]
    if sum(map(len, lines)) + len(lines) <= max_bytes:
        assert kept == lines


@pytest.mark.parametrize("tail", [b"torn", b"t" * 200_000, b"\0" * 70_000])
async def test_a_torn_line_is_cut_away_at_start(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "ledger"
    await asyncio.to_thread(path.write_bytes, b"one\ntwo\n" + tail)
    async with opened(path) as file:
        file.write(b"three")
    assert await read(tmp_path) == [b"one", b"two", b"three"]
    await asyncio.to_thread(path.write_bytes, tail)
    async with opened(path) as file:
        file.write(b"one")
    assert await read(tmp_path) == [b"one"]


async def test_files_beyond_the_number_are_removed(tmp_path: Path) -> None:
    for name in ("ledger.1", "ledger.2", "ledger.7", "ledger.x", "ledger2.9"):
        await asyncio.to_thread((tmp_path / name).write_bytes, b"")
    async with opened(tmp_path / "ledger", files=2):
        pass
    left = {path.name for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))}
    assert left == {"ledger", "ledger.1", "ledger.x", "ledger2.9", ".ledger.lock"}


async def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    async with opened(tmp_path / "ledger") as file:
        file.write(b"one")
        await settled(file)
        await asyncio.to_thread((tmp_path / "ledger").rename, tmp_path / "elsewhere")
        file.write(b"two")
    assert await read(tmp_path) == [b"two"]


async def test_a_full_disk_loses_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk takes a part of a line, then nothing, then all again."""
    room = 15  # two lines and a half
    write = os.write

    def scarce(file: int, data: bytes) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(file, data[:room])
        room -= taken
        return taken

    async with opened(tmp_path / "ledger") as file:
        monkeypatch.setattr(os, "write", scarce)
        for i in range(5):
            file.write(b"line%d" % i)
        await settled(file)
        file.write(b"line5")
        await settled(file)
        assert await read(tmp_path) == [b"line0", b"line1"]
        assert file.dropped == 4
        room = 1000
        file.write(b"line6")
        await settled(file)
        room = 0
        file.write(b"line7")
    assert await read(tmp_path) == [b"line0", b"line1", b"line6"]
    assert file.dropped == 5
    complaints = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(complaints) == 2, "one for each time it began"
    assert "No space left" in complaints[0].getMessage()


async def test_a_slow_disk_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would have to wait beyond the bound is lost; the writer's thread is the only one that waits."""
    monkeypatch.setattr(ledger_file, "MOST_WAITING", 10)
    stuck, write = threading.Event(), os.write

    def slow(file: int, data: bytes) -> int:
        stuck.wait(10)
        return write(file, data)

    async with opened(tmp_path / "ledger") as file:
        monkeypatch.setattr(os, "write", slow)
        file.write(b"first")
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        for i in range(15):
            file.write(b"%d" % i)
        assert time.perf_counter() - began < 0.5
        assert file.dropped == 5
        stuck.set()
    assert await read(tmp_path) == [b"first", *(b"%d" % i for i in range(10))]


@pytest.mark.parametrize("what", ["directory", "file"])
async def test_a_place_that_cannot_be_written_is_said_at_start(tmp_path: Path, what: str) -> None:
    if what == "directory":
        path = tmp_path / "ledger"
        await asyncio.to_thread(path.mkdir)
    else:
        await asyncio.to_thread((tmp_path / "file").write_bytes, b"")
        path = tmp_path / "file" / "ledger"
    with pytest.raises(StartError, match="cannot write the ledger"):
        async with opened(path):
            pass


async def test_two_servers_do_not_share_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "ledger"):
        with pytest.raises(StartError, match="in use by another server"):
            async with opened(tmp_path / "ledger"):
                pass


WRITER = """
import asyncio, sys
from pathlib import Path
from aiohttp import web
from gateway.caching.ledger_file import LedgerFile

async def main():
    file = LedgerFile(Path(sys.argv[1]), max_bytes=20_000, files=1000)
    context = file.context(web.Application())
    await anext(context)
    print("open", flush=True)
    i = 0
    while True:
        for _ in range(50):
            file.write(b"%d " % i + b"x" * 100)
            i += 1
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


async def test_a_kill_leaves_whole_lines_in_a_row(tmp_path: Path) -> None:
    writer = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", WRITER, str(tmp_path / "ledger")], stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    await asyncio.to_thread(writer.stdout.readline)
    await asyncio.to_thread(time.sleep, 0.3)
    writer.kill()
    await asyncio.to_thread(writer.communicate)
    async with opened(tmp_path / "ledger", files=1000):
        pass
    lines = await read(tmp_path)
    assert len(lines) > 200
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert {len(line.split()[1]) for line in lines} == {100}

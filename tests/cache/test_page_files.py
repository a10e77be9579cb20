"""Pages in files: what is damaged, foreign or half written is a miss, whoever was killed when."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.tiers.header import FileHeader, PageKind
from cache.tiers.page import PageMeta
from cache.tiers.page_file import BadPageFile, checksum, encode_front, read_header
from cache.tiers.page_files import DirectoryInUse, PageFiles
from tests.cache.tier_pages import path_of

KIND = PageKind(model_digest="m", dtype="float32", page_size=2, page_bytes=5000)


def always() -> bool:
    return True


def never() -> bool:
    return False


def payload_of(meta: PageMeta) -> bytes:
    """Bytes that prove whose they are."""
    return (meta.chain * (KIND.page_bytes // 32 + 1))[: KIND.page_bytes]


def write(files: PageFiles, *metas: PageMeta) -> None:
    for meta in metas:
        assert files.write(meta, memoryview(payload_of(meta)), wanted=always)


def read(files: PageFiles, meta: PageMeta) -> bytes | None:
    into = bytearray(KIND.page_bytes)
    return bytes(into) if files.read(meta, memoryview(into)) else None


def opened(directory: Path, kind: PageKind = KIND) -> PageFiles:
    files = PageFiles(directory, kind)
    files.open()
    return files


@pytest.fixture
def files(tmp_path: Path) -> PageFiles:
    return opened(tmp_path / "cache")


def page_path(files: PageFiles, meta: PageMeta) -> Path:
    (path,) = files._pages.glob(f"*/{meta.chain.hex()}")
    return path


def test_a_page_comes_back_as_it_was_written(files: PageFiles) -> None:
    metas = path_of([1, 2, 3, 4], tenant="t", namespace=b"n", adapter=b"a", group=b"g", tag="x", max_age=60.0)
    write(files, *metas)
    assert [read(files, meta) for meta in metas] == [payload_of(meta) for meta in metas]
    assert sorted((one.header.meta for one in files.scan()), key=lambda meta: meta.tokens) == metas


def test_a_header_may_be_longer_than_most(tmp_path: Path) -> None:
    files = opened(tmp_path, msgspec.structs.replace(KIND, page_size=3000))
    (meta,) = path_of(list(range(3000)), page_size=3000)
    write(files, meta)
    assert 2 * 4096 + KIND.page_bytes < page_path(files, meta).stat().st_size <= files.file_bytes
    assert read(files, meta) == payload_of(meta)


def test_nobody_else_can_read_it(files: PageFiles, tmp_path: Path) -> None:
    write(files, *path_of([1, 2]))
    for path in (tmp_path / "cache").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_file_takes_what_it_is_said_to_take(files: PageFiles) -> None:
    (meta,) = path_of([1, 2])
    write(files, meta)
    assert page_path(files, meta).stat().st_size <= files.file_bytes


def rewritten(header: FileHeader, payload: bytes) -> bytes:
    return encode_front(header) + payload


def header_of(data: bytes, tmp_path: Path) -> tuple[FileHeader, int]:
    path = tmp_path / "look"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return read_header(descriptor)
    finally:
        os.close(descriptor)


def replaced(data: bytes, tmp_path: Path, **changes: object) -> bytes:
    header, start = header_of(data, tmp_path)
    return rewritten(msgspec.structs.replace(header, **changes), data[start:])


(OTHER,) = path_of([7, 8])
DAMAGE: dict[str, Callable[[bytes, Path], bytes]] = {
    "empty": lambda data, tmp: b"",
    "cut in its front": lambda data, tmp: data[:10],
    "cut in its header": lambda data, tmp: data[:60],
    "cut in its payload": lambda data, tmp: data[:-1],
    "without a payload": lambda data, tmp: data[: header_of(data, tmp)[1]],
    "longer than it was": lambda data, tmp: data + b"\0",
    "a bit of the payload": lambda data, tmp: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "a bit of the header": lambda data, tmp: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    "the magic": lambda data, tmp: b"XXXX" + data[4:],
    "another version": lambda data, tmp: data[:4] + b"\x02" + data[5:],
    "a header of terabytes": lambda data, tmp: data[:8] + b"\xff\xff\xff\x7f" + data[12:],
    "a header that is no header": lambda data, tmp: (
        data[:8]
        + (4).to_bytes(4, "little")
        + zlib.crc32(b"\xa4junk"[:4]).to_bytes(4, "little")
        + b"\xa4junk"[:4]
        + data[20:]
    ),
    "another model": lambda data, tmp: replaced(
        data, tmp, kind=msgspec.structs.replace(KIND, model_digest="other")
    ),
    "another page": lambda data, tmp: replaced(data, tmp, meta=OTHER),
    "other tokens": lambda data, tmp: replaced(
        data, tmp, meta=msgspec.structs.replace(path_of([1, 2])[0], tokens=(1, 3))
    ),
    "another root": lambda data, tmp: replaced(data, tmp, meta=path_of([1, 2], root=b"x" * 32)[0]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_a_miss_and_the_file_goes(
    files: PageFiles, tmp_path: Path, damage: Callable[[bytes, Path], bytes]
) -> None:
    meta, kept = path_of([1, 2, 3, 4])
    write(files, meta, kept)
    path = page_path(files, meta)
    path.write_bytes(damage(path.read_bytes(), tmp_path))
    assert read(files, meta) is None
    assert not path.exists()
    assert read(files, kept) == payload_of(kept)


@pytest.mark.parametrize("damage", [d for name, d in DAMAGE.items() if name != "a bit of the payload"])
def test_a_scan_passes_over_what_is_no_page(
    files: PageFiles, tmp_path: Path, damage: Callable[[bytes, Path], bytes]
) -> None:
    meta, kept = path_of([1, 2, 3, 4])
    write(files, meta, kept)
    path = page_path(files, meta)
    path.write_bytes(damage(path.read_bytes(), tmp_path))
    assert [one.header.meta for one in files.scan()] == [kept]
    assert not path.exists()


@given(
    data=st.binary(min_size=1, max_size=60),
    at=st.integers(0, 59),
    flip=st.integers(1, 255),
)
def test_no_changed_byte_keeps_the_checksum(data: bytes, at: int, flip: int) -> None:
    at %= len(data)
    changed = data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]
    assert checksum(memoryview(data)) != checksum(memoryview(changed))


def test_a_checksum_is_the_sum_it_is_said_to_be() -> None:
    """The first factors by hand, so that files of one release are read by the next."""

    def factor(number: int) -> int:
        x = number * 0x9E3779B97F4A7C15 % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return (x ^ x >> 31) | 1

    data = bytes(range(7, 27))
    words = [int.from_bytes(data[at : at + 8], "little") for at in (0, 8, 16)]
    expected = sum(word * factor(number) for number, word in enumerate(words, 1)) % 2**64
    assert checksum(memoryview(data)) == expected
    swapped = data[8:16] + data[:8] + data[16:]
    assert checksum(memoryview(swapped)) != expected


def test_a_header_that_cannot_be_decoded_is_bad(tmp_path: Path) -> None:
    with pytest.raises(BadPageFile, match="cannot be read"):
        header_of(DAMAGE["a header that is no header"](b"HWKV\x01\0\0\0" + bytes(100), tmp_path), tmp_path)


def test_what_vanished_or_cannot_be_read_is_a_miss(files: PageFiles) -> None:
    gone, unreadable = path_of([1, 2, 3, 4])
    write(files, gone, unreadable)
    page_path(files, gone).unlink()
    path = page_path(files, unreadable)
    path.unlink()
    path.mkdir()
    assert read(files, gone) is None
    assert read(files, unreadable) is None


def test_nothing_comes_back_that_was_dropped_while_it_was_written(files: PageFiles) -> None:
    meta, other = path_of([1, 2, 3, 4])
    write(files, other)
    answers = iter([True, False])  # dropped between the beginning and the end
    assert not files.write(meta, memoryview(payload_of(meta)), wanted=lambda: next(answers))
    assert not files.write(meta, memoryview(payload_of(meta)), wanted=never)
    assert [one.header.meta for one in files.scan()] == [other]
    assert not list(files._new.iterdir())


def test_a_root_goes_at_once_and_no_other(files: PageFiles) -> None:
    mine, theirs = path_of([1, 2], root=b"a" * 32)[0], path_of([1, 2], root=b"b" * 32)[0]
    write(files, mine, theirs)
    delete = files.drop_root(mine.root)
    assert read(files, mine) is None
    assert read(files, theirs) == payload_of(theirs)
    assert len(list(files._trash.iterdir())) == 1
    delete()
    assert not list(files._trash.iterdir())
    files.drop_root(mine.root)()
    write(files, mine)
    assert read(files, mine) == payload_of(mine)


def test_a_start_clears_what_a_kill_left(tmp_path: Path) -> None:
    files = opened(tmp_path)
    (meta,) = path_of([1, 2])
    write(files, meta)
    files.drop_root(meta.root)
    (tmp_path / "new" / "77").write_bytes(b"half")
    files.close()
    files = opened(tmp_path)
    assert not list((tmp_path / "new").iterdir())
    assert not list((tmp_path / "trash").iterdir())
    assert list(files.scan()) == []


def test_one_engine_at_a_time(tmp_path: Path) -> None:
    files = opened(tmp_path)
    with pytest.raises(DirectoryInUse, match="another engine"):
        opened(tmp_path)
    files.close()
    opened(tmp_path)


def test_pages_of_another_model_are_kept_apart(tmp_path: Path) -> None:
    files = opened(tmp_path)
    (meta,) = path_of([1, 2])
    write(files, meta)
    files.close()
    other = opened(tmp_path, msgspec.structs.replace(KIND, model_digest="other"))
    assert list(other.scan()) == []
    assert read(other, meta) is None
    ((digest, size),) = other.other_kinds()
    assert digest == KIND.digest
    assert size > KIND.page_bytes
    other.remove_kind(digest)
    assert other.other_kinds() == []


def test_recency_outlives_the_process(files: PageFiles) -> None:
    old, used = path_of([1, 2, 3, 4])
    write(files, old, used)
    for meta in (old, used):
        os.utime(page_path(files, meta), (1, 1))
    files.touch(used)
    files.touch(OTHER)  # which is not there
    idle = {one.header.meta.chain: one.idle for one in files.scan()}
    assert idle[used.chain] < 60 < idle[old.chain]


WRITER = """
import itertools, sys
from pathlib import Path
from tests.cache.test_page_files import opened, path_of, write
files = opened(Path(sys.argv[1]))
for number in itertools.count():
    for meta in path_of([number, 1, number, 2], root=bytes([number % 3]) * 32):
        write(files, meta)
    if number % 7 == 6:
        files.drop_root(bytes([number % 3]) * 32)
    if number == 3:
        print("going", flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03])
def test_a_kill_while_writing_leaves_whole_pages_only(tmp_path: Path, delay: float) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"going\n"
            time.sleep(delay)
        finally:
            writer.kill()
    files = opened(tmp_path)
    found = [one.header.meta for one in files.scan()]
    assert found, "it was killed before it had written anything"
    assert all(read(files, meta) == payload_of(meta) for meta in found), "a torn page came through"
    assert not list((tmp_path / "new").iterdir())
    assert not list((tmp_path / "trash").iterdir())

"""Files of exported pages: what is written comes back, and nothing else is taken for one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cache.tiers.header import PageKind
from engine.page_archive import ArchiveHeader, BadArchive, Fill, open_archive, write_archive

KIND = PageKind(model_digest="a" * 64, dtype="float32", page_size=4, page_bytes=50)
HEADER = ArchiveHeader(kind=KIND, adapter=b"", tokens=list(range(10)))
PAGES = [bytes([number]) * 50 for number in range(3)]


def filler(data: bytes) -> Fill:
    def fill(into: memoryview) -> None:
        into[:] = data

    return fill


def write(path: Path, header: ArchiveHeader = HEADER) -> int:
    return write_archive(path, header, [filler(page) for page in PAGES])


def read(path: Path, kind: PageKind = KIND, adapter: bytes = b"") -> tuple[list[int], list[bytes]]:
    with open_archive(path, kind, adapter) as archive:
        return archive.header.tokens, [bytes(page) for page in archive.pages()]


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "pages"
    size = write(path)
    assert path.stat().st_size == size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(path) == (HEADER.tokens, PAGES)


def test_nothing_is_overwritten_or_written_through_a_link(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"precious")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for path in (there, link):
        with pytest.raises(FileExistsError):
            write(path)
    assert there.read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def fails(into: memoryview) -> None:
        raise OSError("gone")

    path = tmp_path / "pages"
    with pytest.raises(OSError, match="gone"):
        write_archive(path, HEADER, [filler(PAGES[0]), fails])
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_digest": "b" * 64}, "another model: a{16}, not b{16}"),
        ({"dtype": "bfloat16"}, "dtype float32, and those of this engine of bfloat16"),
        ({"page_size": 16}, "page_size 4, and"),
        ({"page_bytes": 60}, "page_bytes 50, and"),
        ({"layout": "other"}, "layout kv, and"),
    ],
)
def test_pages_of_another_kind_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write(tmp_path / "pages")
    with pytest.raises(BadArchive, match=message):
        read(tmp_path / "pages", msgspec.structs.replace(KIND, **change))


def test_pages_of_another_adapter_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "pages")
    with pytest.raises(BadArchive, match="another adapter"):
        read(tmp_path / "pages", adapter=b"lora")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "no file of exported pages"),
        (lambda data: b"GIF89a" + data, "no file of exported pages"),
        (lambda data: data[:4] + b"\x09" + data[5:], "another version"),
        (lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:], "header is damaged"),
        (lambda data: data[:20], "ends early"),
        (lambda data: data[:30] + bytes([data[30] ^ 4]) + data[31:], "header is damaged"),
        (lambda data: data[:-1], "bytes instead of"),
        (lambda data: data + b"x", "bytes instead of"),
        (lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:], "page 3 of the file is damaged"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
    path = tmp_path / "pages"
    write(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadArchive, match=message):
        read(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadArchive, match="no file"):
        read(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="symbolic links"):
        read(tmp_path / "link")
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nowhere")


def test_a_file_without_tokens_is_none(tmp_path: Path) -> None:
    write_archive(tmp_path / "pages", ArchiveHeader(kind=KIND, adapter=b"", tokens=[]), [])
    with pytest.raises(BadArchive, match="no tokens"):
        read(tmp_path / "pages")

"""Whether a file is another one than when it was last looked at, without reading it."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]


def stamp(path: Path) -> Stamp | None:
    """None if there is no such file. Taken before reading: what changes meanwhile is seen the next time. Blocks."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)

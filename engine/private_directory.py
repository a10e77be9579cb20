"""A directory that only this user can enter, for the life of this process."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "headwater-"


class PrivateDirectory:
    """Made with mode 0700 below the system's temporary directory, and locked: who can lock one has found a dead one.

    Making one removes what killed processes of this user left behind. A lock says so better than a process id would:
    it also holds between containers that share a temporary directory.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        while (made := _make()) is None:
            pass
        self.path, self._lock = made

    def close(self) -> None:
        """Raises OSError for what cannot be removed now; whoever comes next removes that."""
        try:
            shutil.rmtree(self.path)
        finally:
            os.close(self._lock)


def _make() -> tuple[Path, int] | None:
    """A directory and its lock; None if somebody's sweep came between the two."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if path.exists():
        return path, lock
    os.close(lock)
    return None


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or gone meanwhile
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # in use
        finally:
            os.close(lock)

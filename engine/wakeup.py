"""Wakes a thread that waits on file descriptors, from any other thread (eventfd(2))."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref


class Wakeup:
    """Readable from `set` until `clear`. `set` is for any thread, the rest for the one that waits."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()  # so that nobody writes to a number that is somebody else's file by now
        self._close = weakref.finalize(self, os.close, self._fd)

    def fileno(self) -> int:
        return self._fd

    def set(self) -> None:
        with self._lock:
            if self._close.alive:
                os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):  # nobody has set it
            os.eventfd_read(self._fd)

    def wait(self, timeout: float | None) -> None:
        """Until it is set or `timeout` seconds (None: for ever) have passed."""
        select.select([self._fd], [], [], timeout)

    def close(self) -> None:
        """Who sets it later does nothing."""
        with self._lock:
            self._close()

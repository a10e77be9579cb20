"""Has the kernel back memory before it is used: else the first request that needs it waits for that, page by page."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt

MADV_POPULATE_WRITE = 23  # madvise(2), Linux 5.14: whatever is there stays as it is
_AT_ONCE = 2 << 20  # whoever else maps memory waits for each
_PAGE = 4096


def prefault(arrays: Iterable[npt.NDArray[Any]]) -> None:
    """Begin that for contiguous arrays, on a thread of its own that keeps them alive. Where the kernel cannot, nothing is
    lost but time later."""
    threading.Thread(target=_prefault, args=(arrays,), name="prefault", daemon=True).start()


def _prefault(arrays: Iterable[npt.NDArray[Any]]) -> None:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for array in arrays:
        start, end = array.ctypes.data, array.ctypes.data + array.nbytes
        start -= start % _PAGE
        for at in range(start, end, _AT_ONCE):
            if madvise(at, min(_AT_ONCE, end - at), MADV_POPULATE_WRITE) != 0:
                return

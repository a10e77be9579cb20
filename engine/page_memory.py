"""The bytes of a model's KV pages, on the device and in slots of the host's memory: two ways of `batch.PageMemory`.

A page elsewhere than in the pool is its [layers, 2, K, S, D] in one piece; letters as in `kv_pool`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batch import PageLoad, PageMemory, PageSave
from .prefault import prefault

Runs = npt.NDArray[np.void]

ALIGNMENT = 4096
"""Where slots begin: the kernel copies a file to an address that is no multiple of 64 at half the speed."""

PREFAULTED = 128
"""Pages of a prefix that may be asked for right after the start."""


def page_memory(pages: Tensor) -> PageMemory:
    """Of a pool [layers, 2, pages, K, S, D]."""
    return DevicePages(pages) if pages.device.type == "cuda" else HostPages(pages)


class HostPages:
    """For a pool in the host's memory. Copies are numpy's, run by run of [K, S, D], on the calling thread: torch would wake
    its others for each page, which takes longer than the copying."""

    def __init__(self, pages: Tensor) -> None:
        layers, two, count = pages.shape[:3]
        run = pages[0, 0, 0].numel() * pages.itemsize
        flat = pages.view(layers * two, count, -1).view(torch.uint8).numpy()
        self._run = np.dtype((np.void, run))
        self._pages: Runs = flat.view(self._run)[..., 0]  # [layers * 2, pages]
        self._slots: Runs = np.empty((0, layers * two), dtype=self._run)  # [slots, layers * 2]
        self._bytes = memoryview(b"")
        self._page_bytes = layers * two * run

    def reserve(self, slots: int) -> None:
        size = slots * self._page_bytes
        room = np.empty(size + ALIGNMENT, dtype=np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        self._bytes = room[start : start + size].data
        self._slots = np.frombuffer(self._bytes, dtype=self._run).reshape(slots, -1)
        # What is given out first is first, of slots and of the pages that they will be loaded into.
        prefault(
            part[first : first + PREFAULTED]
            for first in range(0, slots, PREFAULTED)
            for part in (self._slots, *self._pages)
        )

    def save(self, saves: Iterable[PageSave]) -> None:
        for save in saves:
            self._slots[save.slot] = self._pages[:, save.page]

    def load(self, loads: Iterable[PageLoad]) -> None:
        for load in loads:
            self._pages[:, load.page] = self._slots[load.slot]

    def slot(self, slot: int) -> memoryview:
        return self._bytes[slot * self._page_bytes : (slot + 1) * self._page_bytes]

    def read(self, page: int, into: memoryview) -> None:
        np.frombuffer(into, dtype=self._run)[:] = self._pages[:, page]

    def write(self, page: int, data: memoryview) -> None:
        self._pages[:, page] = np.frombuffer(data, dtype=self._run)


class DevicePages:
    """For a pool on a CUDA device. The slots are page-locked, so that the device copies while the host does something else;
    all of it runs on the device's default stream, in order with the steps."""

    def __init__(self, pages: Tensor) -> None:
        self._pages = pages
        self._one = (*pages.shape[:2], *pages.shape[3:])
        self._page_bytes = pages[:, :, 0].numel() * pages.itemsize
        self._slots = torch.empty((0, *self._one), dtype=pages.dtype)
        self._bytes = memoryview(b"")

    def reserve(self, slots: int) -> None:
        try:
            self._slots = torch.empty((slots, *self._one), dtype=self._pages.dtype, pin_memory=True)
        except RuntimeError as error:
            raise MemoryError(str(error)) from error
        self._bytes = self._slots.view(-1).view(torch.uint8).numpy().data

    def save(self, saves: Iterable[PageSave]) -> None:
        for save in saves:
            self._slots[save.slot].copy_(self._pages[:, :, save.page], non_blocking=True)
        torch.cuda.current_stream(self._pages.device).synchronize()

    def load(self, loads: Iterable[PageLoad]) -> None:
        for load in loads:
            self._pages[:, :, load.page].copy_(self._slots[load.slot], non_blocking=True)

    def slot(self, slot: int) -> memoryview:
        return self._bytes[slot * self._page_bytes : (slot + 1) * self._page_bytes]

    def read(self, page: int, into: memoryview) -> None:
        self._piece(into).copy_(self._pages[:, :, page])

    def write(self, page: int, data: memoryview) -> None:
        self._pages[:, :, page].copy_(self._piece(data))

    def _piece(self, data: memoryview) -> Tensor:
        return torch.frombuffer(data, dtype=self._pages.dtype).view(self._one)

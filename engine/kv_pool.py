"""The tensors behind the pages. Which page belongs to whom is not known here: that is `cache.blocks`.

Letters as in `step_inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import PageCopy, PageLoad, PageSave
from .models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class LayerPages:
    """Keys (rotated) and values of one layer. One head's run of positions in a page is contiguous."""

    keys: Tensor  # [pages, K, S, D]
    values: Tensor  # [pages, K, S, D]


class KVPool:
    """All pages of all layers: one tensor [layers, 2, pages, K, S, D], never moved.

    What a page holds before it is written is undefined (clearing would touch all of the memory at start): attention
    reads a position only if it was written. Implements `batch.PageMemory`: a page elsewhere is its [layers, 2, K, S, D] in one
    piece.
    """

    def __init__(
        self, config: DecoderConfig, *, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.layers, 2, pages, config.kv_heads, page_size, config.head_dim)
        self._pages = torch.empty(shape, dtype=dtype, device=device)
        self._one = (config.layers, 2, *shape[3:])
        self._slots = torch.empty((0, *self._one), dtype=dtype)
        self._bytes = memoryview(b"")
        self._page_bytes = page_bytes(config, page_size=page_size, dtype=dtype)
        self.layers = tuple(LayerPages(layer[0], layer[1]) for layer in self._pages)

    def copy(self, copies: Iterable[PageCopy]) -> None:
        """Carry the copies out, in order."""
        for copy in copies:
            source = self._pages[:, :, copy.src, :, : copy.tokens]
            self._pages[:, :, copy.dst, :, : copy.tokens] = source

    def reserve(self, slots: int) -> None:
        # Page-locked, a slot is copied by the device itself, while the host does something else.
        pinned = self._pages.device.type == "cuda"
        try:
            self._slots = torch.empty(
                (slots, *self._one), dtype=self._pages.dtype, pin_memory=pinned
            )  # [slots, layers, 2, K, S, D]
        except RuntimeError as error:
            raise MemoryError(str(error)) from error
        self._bytes = self._slots.view(-1).view(torch.uint8).numpy().data

    def save(self, saves: Iterable[PageSave]) -> None:
        for save in saves:
            self._slots[save.slot].copy_(self._pages[:, :, save.page], non_blocking=True)
        if self._pages.device.type == "cuda":
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


def page_bytes(config: DecoderConfig, *, page_size: int, dtype: torch.dtype) -> int:
    """What one page costs over all layers."""
    return config.layers * 2 * config.kv_width * page_size * dtype.itemsize

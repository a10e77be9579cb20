"""The tensors behind the pages. Which page belongs to whom is not known here: that is `cache.blocks`.

Letters as in `step_inputs`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .batch import PageCopy
from .models.config import DecoderConfig
from .page_memory import page_memory

_LARGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class LayerPages:
    """Keys (rotated) and values of one layer. One head's run of positions in a page is contiguous."""

    keys: Tensor  # [pages, K, S, D]
    values: Tensor  # [pages, K, S, D]


class KVPool:
    """All pages of all layers: one tensor [layers, 2, pages, K, S, D], never moved.

    What a page holds before it is written is undefined (clearing would touch all of the memory at start): attention
    reads a position only if it was written.
    """

    def __init__(
        self, config: DecoderConfig, *, pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (config.layers, 2, pages, config.kv_heads, page_size, config.head_dim)
        self._pages = (
            _host_tensor(shape, dtype)
            if device.type == "cpu"
            else torch.empty(shape, dtype=dtype, device=device)
        )
        self.memory = page_memory(self._pages)
        self.layers = tuple(LayerPages(layer[0], layer[1]) for layer in self._pages)

    def copy(self, copies: Iterable[PageCopy]) -> None:
        """Carry the copies out, in order."""
        for copy in copies:
            source = self._pages[:, :, copy.src, :, : copy.tokens]
            self._pages[:, :, copy.dst, :, : copy.tokens] = source


def _host_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Like `torch.empty`, on memory that the kernel may give in large pages: else the first use of each page costs more than
    what is written to it. NumPy asks for them (madvise(2)) and torch does not."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _LARGE_PAGE, dtype=np.uint8)
    start = -memory.ctypes.data % _LARGE_PAGE
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(*shape)


def page_bytes(config: DecoderConfig, *, page_size: int, dtype: torch.dtype) -> int:
    """What one page costs over all layers."""
    return config.layers * 2 * config.kv_width * page_size * dtype.itemsize

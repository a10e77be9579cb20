"""How many KV pages to make, decided once at start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .config import EngineConfig
from .errors import StartError

if TYPE_CHECKING:
    import torch

_CPU_MOST = 4 * 2**30
_CPU_SHARE = 0.2
_CUDA_SHARE = 0.85
_HARD_SHARE = 0.8  # what one full-length sequence may take where the shares above are too small for it


def page_count(config: EngineConfig, *, page_bytes: int, max_model_len: int, device: torch.device) -> int:
    """`pages` if set, else what `kv_bytes` holds, else a share of the memory that is available after the weights.

    One sequence of `max_model_len` must fit: the automatic share is raised to that where memory allows. StartError says
    what to change where it does not, and where more is asked for than there is.
    """
    least = -(-max_model_len // config.page_size)
    available = available_memory(device)
    if config.pages is not None:
        pages = config.pages
    elif config.kv_bytes is not None:
        pages = config.kv_bytes // page_bytes
    else:
        pages = _automatic(least, page_bytes, available, device)
    if pages < least:
        raise StartError(
            f"{pages} KV pages of {config.page_size} tokens cannot hold one sequence of max_model_len {max_model_len}: "
            f"lower max_model_len to {pages * config.page_size} or raise the KV memory to {least * page_bytes} bytes"
        )
    check_affordable(pages, page_bytes=page_bytes, available=available)
    return pages


def check_affordable(pages: int, *, page_bytes: int, available: int) -> None:
    """Raises StartError if so many pages take more than the `available` bytes."""
    if pages * page_bytes > available:
        raise StartError(
            f"{pages} KV pages need {pages * page_bytes} bytes, but only {available} are available: "
            "lower kv_bytes or pages"
        )


def available_memory(device: torch.device) -> int:
    """Bytes that could be allocated on the device now, on Linux."""
    if device.type == "cuda":
        import torch  # noqa: PLC0415 - whoever has such a device has loaded it; the hash model does without

        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    return host_memory()


def host_memory() -> int:
    """Bytes that this machine could allocate now, on Linux."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise StartError("/proc/meminfo does not say how much memory is available: set kv_bytes or pages")


def _automatic(least: int, page_bytes: int, available: int, device: torch.device) -> int:
    if device.type == "cuda":
        budget = int(available * _CUDA_SHARE)
    else:
        budget = min(_CPU_MOST, int(available * _CPU_SHARE))
    return max(budget // page_bytes, min(least, int(available * _HARD_SHARE) // page_bytes))

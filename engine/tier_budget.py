"""How much the tiers below the device may hold, decided once at start."""

from __future__ import annotations

import shutil
from pathlib import Path

from cache.tiers.page_files import PageFiles

from .batch import RunnerInfo
from .config import EngineConfig
from .errors import StartError
from .kv_budget import host_memory

OTHERS_SHARE = 0.5
"""Pages of other models in the same directory may keep so much of its budget. What is over goes, the oldest model first."""


def host_slots(config: EngineConfig, info: RunnerInfo) -> int:
    """Pages that the host's memory keeps: what `host_bytes` holds. Raises StartError.

    Pages on disk are written and read by way of these slots: with a `cache_dir` and no `host_bytes` there are as many as one
    sequence of maximum length needs, or the device has.
    """
    if not config.host_bytes:
        longest = -(-info.max_model_len // info.page_size)
        return min(longest, info.pages) if config.cache_dir is not None else 0
    slots = config.host_bytes // info.page_bytes
    if not slots:
        raise StartError(f"host_bytes {config.host_bytes} hold no page of {info.page_bytes} bytes")
    available = host_memory()
    if slots * info.page_bytes > available:
        raise StartError(
            f"host_bytes {config.host_bytes} are more than the {available} bytes of memory that are available"
        )
    return slots


def disk_pages(config: EngineConfig, files: PageFiles, directory: Path, held: int) -> int:
    """Pages that the disk keeps: what `disk_bytes` hold, by default half of what is free. Raises StartError.

    `held` are the bytes of this model's pages that are there already. Pages of other models count as well.
    """
    others = files.other_kinds()
    theirs = sum(size for _, size in others)
    room = shutil.disk_usage(directory).free + held + theirs
    budget = room // 2 if config.disk_bytes is None else config.disk_bytes
    if budget > room:
        raise StartError(f"disk_bytes {budget} are more than the {room} bytes that {directory} has room for")
    while others and theirs > OTHERS_SHARE * budget:
        kind, size = others.pop(0)
        files.remove_kind(kind)
        theirs -= size
    pages = (budget - theirs) // files.file_bytes
    if pages < 1:
        raise StartError(f"disk_bytes {budget} hold no page file of {files.file_bytes} bytes")
    return pages

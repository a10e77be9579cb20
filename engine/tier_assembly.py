"""From a configuration to the tiers below the device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cache.lease import TenantLimits
from cache.tiers.disk import DiskTier
from cache.tiers.header import PageKind
from cache.tiers.host import HostTier
from cache.tiers.page_files import DirectoryInUse, PageFiles

from .batch import PageLoad, PageMemory, PageSave, RunnerInfo
from .config import EngineConfig
from .disk_traffic import DiskTraffic
from .errors import StartError
from .load_costs import LoadCosts, Recompute
from .lower_tiers import LowerTiers
from .tier_budget import disk_pages, host_slots

_log = logging.getLogger(__name__)

USUAL_DISK = 1e9
"""Bytes a second that a disk is taken to read before it has read anything."""
USUAL_OPEN = 2e-4
"""Seconds to open a file."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Tiers:
    """What is below the device, and who moves pages to disk and back, if there is one."""

    lower: LowerTiers
    files: PageFiles | None

    def traffic(self, memory: PageMemory, wake: Callable[[], None], clock: Clock) -> DiskTraffic | None:
        if self.files is None or self.lower.disk is None:
            return None
        return DiskTraffic(
            self.lower.host,
            self.lower.disk,
            self.files,
            costs=self.lower.costs,
            slot=memory.slot,
            wake=wake,
            clock=clock,
        )


def page_kind(info: RunnerInfo) -> PageKind:
    """What decides the bytes of this runner's pages: kernels that round otherwise make other bytes."""
    layout = f"kv/{info.attention}{'/deterministic' if info.deterministic else ''}"
    return PageKind(
        model_digest=info.model_digest,
        dtype=info.dtype,
        page_size=info.page_size,
        page_bytes=info.page_bytes,
        layout=layout,
    )


def assemble_tiers(
    config: EngineConfig,
    info: RunnerInfo,
    memory: PageMemory,
    *,
    limits: Callable[[str], TenantLimits],
    recompute: Recompute,
    clock: Clock,
) -> Tiers | None:
    """None if nothing is configured below the device. Before the runner has computed anything: its pages are written to.
    Raises StartError."""
    slots = host_slots(config, info)
    if not slots:
        return None
    try:
        memory.reserve(slots)
    except MemoryError as error:
        raise StartError(f"there is no memory for {slots} pages below the device: {error}") from error
    costs = LoadCosts(
        host_page=_measured_load(memory, min(slots, info.pages)),
        disk_page=USUAL_OPEN + info.page_bytes / USUAL_DISK,
        page_size=info.page_size,
        recompute=recompute,
    )

    host = HostTier(slots, limits=limits, clock=clock)
    if config.cache_dir is None:
        return Tiers(LowerTiers(host, page_size=info.page_size, costs=costs), None)
    files = PageFiles(Path(config.cache_dir), page_kind(info))
    disk = _open_disk(config, files, limits, clock)
    lower = LowerTiers(host, page_size=info.page_size, costs=costs, disk=disk)
    return Tiers(lower, files)


def _open_disk(
    config: EngineConfig, files: PageFiles, limits: Callable[[str], TenantLimits], clock: Clock
) -> DiskTier:
    directory = Path(config.cache_dir or "")
    try:
        files.open()
        began = time.monotonic()
        found = list(files.scan())
        capacity = disk_pages(config, files, directory, len(found) * files.file_bytes)
    except DirectoryInUse as error:
        raise StartError(f"cache_dir: {error}") from error
    except OSError as error:
        raise StartError(f"cache_dir {directory} cannot be used: {error.strerror}") from error
    disk = DiskTier(capacity, limits=limits, clock=clock, page_bytes=files.file_bytes)
    for meta in disk.restore(found):
        files.remove(meta)
    _log.info("%d pages on disk, found in %.2f s", disk.pages, time.monotonic() - began)
    return disk


def _measured_load(memory: PageMemory, pages: int) -> float:
    """Seconds to bring a page up from the host's memory: the best of a few, since memory is mapped when it is first used."""
    count = min(pages, 8)
    best = float("inf")
    for _ in range(3):
        memory.save([PageSave(page, page) for page in range(count)])
        began = time.perf_counter()
        memory.load([PageLoad(slot, slot) for slot in range(count)])
        memory.save([PageSave(0, 0)])  # on a device: waits until all of it is there
        best = min(best, (time.perf_counter() - began) / (count + 1))
    return best

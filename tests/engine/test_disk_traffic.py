"""Threads between slots and files: whatever is aborted, flushed or broken meanwhile, no slot leaks and no page is wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cache.flushing import takes_whole_roots
from cache.lease import FlushScope
from cache.tiers.disk import DiskTier
from cache.tiers.header import PageKind
from cache.tiers.host import HostTier
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta
from cache.tiers.page_files import PageFiles
from engine import disk_traffic
from engine.disk_traffic import DiskTraffic
from engine.load_costs import LoadCosts
from tests.cache.tier_pages import path_of
from tests.fakes import ManualClock

BYTES = 100
KIND = PageKind(model_digest="m", dtype="d", page_size=2, page_bytes=BYTES)


class GatedFiles(PageFiles):
    """Files that are read and written when the gate is open."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, KIND)
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def read(self, meta: PageMeta, into: memoryview) -> bool:
        self.gate.wait(10)
        return super().read(meta, into)

    def write(self, meta: PageMeta, payload: memoryview, **more: Any) -> bool:
        self.gate.wait(10)
        if self.broken:
            raise OSError("no space left on device")
        return super().write(meta, payload, **more)


class Machine:
    """Host, disk, files, traffic, and the slots' bytes."""

    def __init__(self, directory: Path, *, slots: int = 8, capacity: int = 8) -> None:
        self.clock = ManualClock()
        self.host = HostTier(slots, clock=self.clock)
        self.disk = DiskTier(capacity, clock=self.clock)
        self.files = GatedFiles(directory)
        self.files.open()
        self.memory = bytearray(slots * BYTES)
        self.costs = LoadCosts(host_page=1e-5, disk_page=1e-3, page_size=2)
        self.woken = threading.Event()
        self.wakes = 0
        self.traffic = DiskTraffic(
            self.host,
            self.disk,
            self.files,
            costs=self.costs,
            slot=self.slot,
            wake=self.wake,
            clock=self.clock,
        )

    def wake(self) -> None:
        self.wakes += 1
        self.woken.set()

    def slot(self, slot: int) -> memoryview:
        return memoryview(self.memory)[slot * BYTES : (slot + 1) * BYTES]

    def put(self, meta: PageMeta) -> TierPage:
        page = self.host.reserve(meta)
        assert page is not None
        self.slot(page.place)[:] = bytes_of(meta)
        self.host.fill(page)
        return page

    def spill(self, *metas: PageMeta) -> None:
        for meta in metas:
            self.traffic.spill(self.put(meta))
        self.settle()
        self.host.flush_roots(FlushScope())

    def flush(self, scope: FlushScope) -> int:
        if takes_whole_roots(scope):
            return self.traffic.flush_roots(scope)
        found = [page for page in self.disk.index.search(scope) if page is not None]
        return sum(self.traffic.drop_page(page) for page in found)

    def sources(self, *metas: PageMeta) -> list[TierPage]:
        found = [self.disk.find(meta.root, meta.chain) for meta in metas]
        assert None not in found
        return [page for page in found if page is not None]

    def settle(self, until: Any = None) -> list[str]:
        """Take what there is until nothing is on its way; who may be queued."""
        ready: list[str] = []
        due = time.monotonic() + 10
        while time.monotonic() < due:
            ready += [name for name, _ in self.traffic.take()]
            self.check()
            if not self.traffic._spills and not self.traffic._reads and not self.traffic._done:
                return ready
            self.woken.wait(0.01)
            self.woken.clear()
        raise AssertionError("the traffic does not end")

    def holds(self, *metas: PageMeta) -> bool:
        """Whether the host has exactly these bytes, ready to be loaded."""
        pages = [self.host.find(meta.root, meta.chain) for meta in metas]
        return all(page is not None and bytes(self.slot(page.place)) == bytes_of(page.meta) for page in pages)

    def check(self) -> None:
        self.host.check()
        self.disk.check()
        self.traffic.check()


def bytes_of(meta: PageMeta) -> bytes:
    return (meta.chain * 4)[:BYTES]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "cache")
    yield machine
    machine.files.gate.set()
    machine.traffic.close()


PATH = path_of([1, 2, 3, 4, 5, 6])


def test_a_page_goes_to_disk_and_comes_back_for_a_request(machine: Machine) -> None:
    machine.spill(*PATH)
    assert machine.disk.totals.stored == 3
    assert not machine.holds(*PATH)
    assert machine.traffic.fetch("r", machine.sources(*PATH), 0)
    assert machine.settle() == ["r"]
    assert machine.holds(*PATH)
    assert all(page.from_disk for page in machine.host.index)
    machine.traffic.drop("r")
    assert all(not page.pins for page in machine.host.index)


def test_the_engine_is_woken_when_the_last_page_is_there_and_not_before(machine: Machine) -> None:
    machine.spill(*PATH)
    machine.wakes = 0
    machine.traffic.fetch("r", machine.sources(*PATH), 0)
    assert machine.settle() == ["r"]
    machine.traffic.close()  # a second call would have come by now
    assert machine.wakes == 1


def test_what_was_fetched_stays_until_the_request_is_admitted(tmp_path: Path) -> None:
    machine = Machine(tmp_path, slots=2)
    machine.spill(PATH[0])
    machine.traffic.fetch("r", machine.sources(PATH[0]), 0)
    machine.settle()
    others = [machine.host.reserve(meta, hits=5) for meta in (path_of([8, 8])[0], path_of([9, 9])[0])]
    assert others[1] is None, "no slot but the one that was fetched"
    machine.traffic.drop("r")
    assert machine.host.reserve(path_of([9, 9])[0], hits=5) is not None
    machine.traffic.close()


def test_an_abort_while_reading_leaks_nothing(machine: Machine) -> None:
    machine.spill(*PATH)
    machine.files.gate.clear()
    machine.traffic.fetch("r", machine.sources(*PATH), 0)
    machine.traffic.drop("r")
    machine.check()
    machine.files.gate.set()
    assert machine.settle() == []
    assert all(not page.pins for page in machine.host.index)


def test_two_requests_share_a_read(machine: Machine) -> None:
    machine.spill(*PATH)
    machine.files.gate.clear()
    sources = machine.sources(*PATH)
    assert machine.traffic.fetch("a", sources, 0)
    assert machine.traffic.fetch("b", sources[:2], 0)
    assert len(machine.traffic._reads) == 3
    machine.traffic.drop("a")
    machine.files.gate.set()
    assert machine.settle() == ["b"]
    assert machine.holds(*PATH[:2])


def test_a_page_that_is_in_its_slot_is_not_read_again(machine: Machine) -> None:
    machine.spill(*PATH)
    sources = machine.sources(*PATH)
    machine.traffic.fetch("a", sources, 0)
    machine.settle()
    assert not machine.traffic.fetch("b", sources, 0), "nothing to wait for"
    machine.check()


def test_nobody_waits_longer_than_it_is_worth(machine: Machine) -> None:
    machine.spill(*PATH)
    machine.files.gate.clear()
    machine.traffic.fetch("r", machine.sources(*PATH), 0)
    assert machine.traffic.next_due is not None
    assert machine.traffic.take() == []
    due = machine.clock.now = machine.traffic.next_due
    assert machine.traffic.take() == [("r", due)]
    assert machine.traffic.next_due is None
    machine.traffic.drop("r")
    machine.files.gate.set()
    assert machine.settle() == []


def test_nothing_is_read_that_is_cheaper_to_compute(machine: Machine) -> None:
    machine.spill(*PATH)
    machine.costs._recompute = lambda before, positions: 1e-6
    assert not machine.traffic.fetch("r", machine.sources(*PATH), 0)
    machine.check()


def test_damage_on_disk_ends_the_run_there(machine: Machine) -> None:
    machine.spill(*PATH)
    file = next(machine.files._pages.glob(f"*/{PATH[1].chain.hex()}"))
    file.write_bytes(file.read_bytes()[:-1])
    machine.traffic.fetch("r", machine.sources(*PATH), 0)
    assert machine.settle() == ["r"]
    machine.traffic.drop("r")
    assert machine.holds(PATH[0])
    assert machine.host.find(PATH[1].root, PATH[1].chain) is None
    assert machine.disk.find(PATH[1].root, PATH[1].chain) is None
    assert machine.disk.totals.failed == 1
    assert not file.exists()
    machine.check()


def test_a_full_disk_costs_a_page_and_nothing_else(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.files.broken = True
    machine.traffic.spill(machine.put(PATH[0]))
    machine.traffic.spill(machine.put(PATH[1]))
    machine.settle()
    assert machine.disk.pages == 0
    assert machine.disk.totals.failed == 2
    assert [record.message for record in caplog.records] == [
        "a page could not be written to disk: no space left on device"
    ], "once"
    machine.files.broken = False
    machine.traffic.spill(machine.put(PATH[2]))
    machine.settle()
    assert machine.disk.pages == 1


def test_too_much_at_once_is_not_spilled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_traffic, "QUEUED_SPILLS", 2)
    machine.files.gate.clear()
    for meta in PATH:
        machine.traffic.spill(machine.put(meta))
    assert machine.traffic.skipped == 1
    machine.files.gate.set()
    machine.settle()
    assert machine.disk.pages == 2


def test_a_full_tier_gives_up_a_file_for_another(tmp_path: Path) -> None:
    machine = Machine(tmp_path, capacity=2)
    for number in (1, 2, 3):
        machine.spill(path_of([number, number])[0])
    assert machine.disk.totals.evicted == 1
    machine.traffic.close()
    assert len(list(machine.files.scan())) == 2


def test_an_end_drops_what_waits_to_be_written_but_removes_what_was_flushed(machine: Machine) -> None:
    machine.spill(*PATH[:2])
    machine.files.gate.clear()
    for meta in path_of([7, 7, 8, 8, 9, 9]):
        machine.traffic.spill(machine.put(meta))
    machine.flush(FlushScope(idle_for=0.0))
    machine.files.gate.set()
    machine.traffic.close()
    assert list(machine.files.scan()) == []


@pytest.mark.parametrize("scope", [FlushScope(), FlushScope(group=b"g")], ids=["root", "pages"])
def test_a_flush_stops_what_is_being_written(machine: Machine, scope: FlushScope) -> None:
    path = path_of([1, 2, 3, 4, 5, 6], group=b"g")
    machine.files.gate.clear()
    for meta in path:
        machine.traffic.spill(machine.put(meta))
    assert machine.flush(scope) == 3
    machine.files.gate.set()
    machine.settle()
    assert machine.disk.pages == 0
    machine.traffic.close()
    assert list(machine.files.scan()) == []


def test_a_flush_stops_what_is_being_read(machine: Machine) -> None:
    machine.spill(*PATH)
    machine.files.gate.clear()
    machine.traffic.fetch("r", machine.sources(*PATH), 0)
    machine.host.flush_roots(FlushScope())
    machine.flush(FlushScope())
    machine.files.gate.set()
    assert machine.settle() == ["r"]
    machine.traffic.drop("r")
    assert machine.host.pages == machine.disk.pages == 0
    machine.check()


def test_a_page_written_again_after_it_went_is_there(machine: Machine) -> None:
    machine.spill(PATH[0])
    machine.flush(FlushScope(idle_for=0.0))  # page by page: its file is removed later
    machine.spill(PATH[0])
    machine.traffic.fetch("r", machine.sources(PATH[0]), 0)
    machine.settle()
    assert machine.holds(PATH[0])


def test_the_next_start_finds_what_was_written(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.spill(*PATH)
    machine.traffic.close()
    machine = Machine(tmp_path)
    assert machine.disk.restore(machine.files.scan()) == []
    machine.traffic.fetch("r", machine.sources(*PATH), 0)
    assert machine.settle() == ["r"]
    assert machine.holds(*PATH)
    machine.traffic.close()

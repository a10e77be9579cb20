"""Pages on their way between the host's memory and disk, moved by threads while the engine makes its steps.

    spill   a page in a slot is written to a file; one thread does that, and what else changes files, in order
    fetch   the pages of a prefix are read into slots before their request is queued; a few threads do that

What a thread does is told to the engine's thread through `take`. A slot that is written or read is pinned, whoever flushes
or aborts meanwhile. A page that cannot be written is not on disk, and one that cannot be read never was: both are counted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from cache.lease import FlushScope
from cache.tiers.disk import DiskTier
from cache.tiers.host import HostTier
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta
from cache.tiers.page_files import PageFiles

from .load_costs import LoadCosts
from .throttled_log import ThrottledLog

_log = logging.getLogger(__name__)

READERS = 4
QUEUED_SPILLS = 256
"""Pages that may wait to be written. The next one is simply not."""

LONGEST_READ = 60.0
"""Seconds until a read that somebody has asked for is given up."""

Job = Callable[[], None]


@dataclass(slots=True, eq=False)
class _Read:
    """A page that is being read into a slot, and the requests that wait for it. Without any it is not begun: that is all
    that a thread looks at."""

    page: TierPage
    source: TierPage
    waiting: set[str] = field(default_factory=set)


class _Batch:
    """Reads that were begun together, for several threads, in the order in which they are of use."""

    def __init__(self, reads: Sequence[_Read]) -> None:
        self._left = iter(reads)
        self._unended = len(reads)
        self._lock = threading.Lock()

    def next(self) -> _Read | None:
        with self._lock:
            return next(self._left, None)

    def ended(self) -> bool:
        """One has; whether that was the last."""
        with self._lock:
            self._unended -= 1
            return not self._unended


@dataclass(slots=True, eq=False)
class _Fetch:
    """What a request waits for, until `due`, and the slots that stay its own until it is admitted or ends."""

    reads: set[_Read]
    claims: list[TierPage]
    began: float
    due: float
    pages: int = 0


class DiskTraffic:
    """For the engine's thread. `slot` gives the bytes of a slot, `wake` is called by threads when there is something to take.

    `clock` is the scheduler's.
    """

    def __init__(
        self,
        host: HostTier,
        disk: DiskTier,
        files: PageFiles,
        *,
        costs: LoadCosts,
        slot: Callable[[int], memoryview],
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._disk = disk
        self._files = files
        self._costs = costs
        self._slot = slot
        self._wake = wake
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="spill")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="fetch")
        self._done: deque[Job] = deque()  # for the engine's thread
        self._spills: set[Future[bool]] = set()
        self._reads: dict[TierPage, _Read] = {}  # by the slot's page
        self._fetches: dict[str, _Fetch] = {}
        self._ready: list[str] = []
        self.skipped = 0
        """Pages that were not written because too many waited."""
        self._log = ThrottledLog(_log, clock)

    # ---- down --------------------------------------------------------------------------------------------------------

    def spill(self, page: TierPage) -> None:
        """Write a page that is in its slot to disk, some time; unless it is there, or too much waits already."""
        meta = page.meta
        if self._disk.holds(meta.root, meta.chain):
            if page.leaves and self._disk.find(meta.root, meta.chain) is not None:
                self._host.drop(page)
            return
        if len(self._spills) >= QUEUED_SPILLS:
            self.skipped += 1
            page.lasting = False  # the next use asks again
            return
        target = self._reserve(meta, hits=page.hits, until=page.until)
        if target is None:
            return
        self._host.pin(page)
        payload = self._slot(page.place)
        future = self._writer.submit(
            self._files.write, meta, payload, wanted=lambda: target.wanted, hits=page.hits
        )
        self._spills.add(future)
        future.add_done_callback(lambda done: self._tell(partial(self._spilled, page, target, done)))

    def _reserve(self, meta: PageMeta, *, hits: int, until: float) -> TierPage | None:
        target, gone = self._disk.reserve(meta, hits=hits, until=until)
        if gone is not None:
            self._remove(gone.meta)
        return target

    def _spilled(self, page: TierPage, target: TierPage, done: Future[bool]) -> None:
        self._written(target, done)
        self._host.unpin(page)
        if page.leaves and target.filled:
            self._host.drop(page)

    def write(self, meta: PageMeta, payload: memoryview, *, hits: int, patience: float) -> None:
        """Write bytes that are nobody else's; while too much waits, wait for that, `patience` seconds at most."""
        if len(self._spills) >= QUEUED_SPILLS:
            self.drain(patience, left=QUEUED_SPILLS // 2)
        target = (
            None
            if self._disk.holds(meta.root, meta.chain)
            else self._reserve(meta, hits=hits, until=-math.inf)
        )
        if target is not None:
            future = self._writer.submit(
                self._files.write, meta, payload, wanted=lambda: target.wanted, hits=hits
            )
            self._spills.add(future)
            future.add_done_callback(lambda done: self._tell(partial(self._written, target, done)))

    def _written(self, target: TierPage, done: Future[bool]) -> None:
        self._spills.discard(done)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._log.warning("a page could not be written to disk: %s", error)
            self._disk.totals.failed += 1
        if not done.cancelled() and error is None and done.result():
            self._disk.settle(target)
        else:
            self._disk.drop(target)

    def _remove(self, meta: PageMeta) -> None:
        self._writer.submit(self._files.remove, meta)

    # ---- up ----------------------------------------------------------------------------------------------------------

    def fetch(self, request_id: str, found: list[TierPage], first: int, *, asked_for: bool = False) -> bool:
        """Read the pages `found` on disk, which begin at page `first` of a prompt, into slots. True if that is worth waiting
        for, or somebody has asked for it: `take` names the request when it has waited enough."""
        if not found:
            return False
        if not asked_for and not self._costs.disk_pays(first, len(found)):
            self._costs.passed_over()
            return False
        now = self._clock()
        patience = LONGEST_READ if asked_for else self._costs.wait_for_disk(first, len(found))
        fetch = _Fetch(set(), [], now, now + patience)
        begun: list[_Read] = []
        for source in found:
            page = self._claim(request_id, source, fetch, begun)
            if page is None:
                break  # no slot for it, and what comes after is of no use without it
            self._host.pin(page)
            fetch.claims.append(page)
        if not fetch.reads:
            self._unclaim(fetch)
            return False
        fetch.pages = len(fetch.reads)
        batch = _Batch(begun)
        for _ in range(min(READERS, len(begun))):
            self._readers.submit(self._read, batch)
        self._disk.index.use(found)
        self._fetches[request_id] = fetch
        return True

    def _claim(self, request_id: str, source: TierPage, fetch: _Fetch, begun: list[_Read]) -> TierPage | None:
        """The page that a slot has or will have: what is to be read for it anew is added to `begun`. None: no slot."""
        meta = source.meta
        page = self._host.index.get(meta.root, meta.chain)
        if page is None:
            page = self._host.reserve(meta, hits=source.hits, until=source.until)
            if page is None:
                return None
            page.from_disk = True
            page.lasting = True  # it is there already
            self._reads[page] = _Read(page, source)
            begun.append(self._reads[page])
        if not page.filled:
            read = self._reads.get(page)
            if read is None:
                return None  # it is on its way from the device, and nobody can say when it comes
            read.waiting.add(request_id)
            fetch.reads.add(read)
        return page

    def _read(self, batch: _Batch) -> None:
        """On a reader's thread. The engine's is woken once for all: it has other things to do."""
        mine: list[PageMeta] = []
        while (read := batch.next()) is not None:
            meta, slot = read.page.meta, self._slot(read.page.place)
            whole = self._files.read(meta, slot) if read.waiting else None
            self._done.append(partial(self._end, read, whole))
            mine.append(meta)
            if batch.ended():
                self._wake()
        for meta in mine:  # nobody waits for this
            self._files.touch(meta)

    def _end(self, read: _Read, whole: bool | None) -> None:
        """A page was read, or could not be, or (None) was not wanted any more."""
        page = read.page
        del self._reads[page]
        if whole:
            self._host.fill(page)
        else:
            self._host.abandon(page)
        if whole is False:
            self._disk.totals.failed += 1
            self._disk.drop(read.source)
        for request_id in read.waiting:
            fetch = self._fetches[request_id]
            fetch.reads.discard(read)
            if not fetch.reads:
                self._costs.learn_disk(self._clock() - fetch.began, fetch.pages, fetch.pages)
                self._ready.append(request_id)

    @property
    def next_due(self) -> float | None:
        """When somebody has waited enough, by the clock; None if nobody waits."""
        return min((fetch.due for fetch in self._fetches.values() if fetch.reads), default=None)

    def take(self) -> list[tuple[str, float]]:
        """The requests that have waited enough since the last time, and how long: what could be read for them is in their
        slots."""
        self._work()
        now = self._clock()
        for request_id, fetch in self._fetches.items():
            if fetch.reads and fetch.due <= now:
                self._costs.learn_disk(now - fetch.began, fetch.pages - len(fetch.reads), fetch.pages)
                self._ready.append(request_id)
                self._stop_waiting(request_id, fetch)
        ready, self._ready = self._ready, []
        return [(name, now - self._fetches[name].began) for name in ready if name in self._fetches]

    def _work(self) -> None:
        while self._done:
            self._done.popleft()()

    def read_now(self, meta: PageMeta, into: memoryview) -> bool:
        """On any thread: fill `into` with a page's bytes; False if they cannot be had."""
        return self._files.read(meta, into)

    def drop(self, request_id: str) -> None:
        """A request was admitted or has ended: its slots are like any others. Unknown ones are ignored."""
        fetch = self._fetches.pop(request_id, None)
        if fetch is not None:
            self._stop_waiting(request_id, fetch)
            self._unclaim(fetch)

    def _stop_waiting(self, request_id: str, fetch: _Fetch) -> None:
        for read in fetch.reads:
            read.waiting.discard(request_id)
        fetch.reads.clear()

    def _unclaim(self, fetch: _Fetch) -> None:
        for page in fetch.claims:
            self._host.unpin(page)

    # ---- flush, expiry, end ------------------------------------------------------------------------------------------

    def flush_roots(self, scope: FlushScope) -> int:
        """Nobody finds what is in these roots again, from now on; the files go in the background. How many pages it were."""
        roots = self._disk.flush_roots(scope)
        for root in roots:
            self._writer.submit(self._files.drop_root(root.key))
        return sum(len(root.pages) for root in roots)

    def drop_page(self, page: TierPage) -> bool:
        """The same for one page. False if it was gone already."""
        dropped = self._disk.drop(page)
        if dropped:
            self._remove(page.meta)
        return dropped

    def forget(self, pages: Iterable[TierPage]) -> None:
        """Pages were dropped from the tier: their files go."""
        for page in pages:
            self._remove(page.meta)

    def drain(self, seconds: float, *, left: int = 0) -> None:
        """Wait until no more than `left` pages wait to be written, but not longer than that."""
        due = time.monotonic() + seconds
        while len(self._spills) > left and time.monotonic() < due:
            time.sleep(0.002)
            self._work()

    def close(self) -> None:
        """Nothing is read or written any more, but what has begun ends, and files that have to go go."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        for spill in list(self._spills):
            spill.cancel()
        self._writer.shutdown(wait=True)
        self._files.close()

    def _tell(self, job: Job) -> None:
        """On any thread."""
        self._done.append(job)
        self._wake()

    def check(self) -> None:
        """Assert that every fetch and read knows the other."""
        for request_id, fetch in self._fetches.items():
            assert all(request_id in read.waiting for read in fetch.reads), (
                "a read does not know who waits for it"
            )
            assert all(page.pins for page in fetch.claims), "a claimed slot could be given away"
        for page, read in self._reads.items():
            assert read.page is page
            assert page.pins
            assert not page.filled
            for request_id in read.waiting:
                assert read in self._fetches[request_id].reads, "a read tells somebody who does not wait"

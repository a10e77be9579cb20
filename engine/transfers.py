"""Prompts' KV to files and back, by a thread, while the engine makes its steps.

A published page that is held is never written, so the thread reads what is exported from where it is; and it writes what is
imported into pages that nobody else knows of yet. The engine's thread holds and publishes them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from cache.accounts import PinsExhausted
from cache.cursor import Cursor
from cache.lease import EntrySpec
from cache.prefix_cache import PrefixCache
from cache.tiers.header import PageKind
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta

from .batch import PageMemory
from .lower_tiers import LowerTiers
from .page_archive import ArchiveHeader, BadArchive, Fill, open_archive, write_archive
from .request import ExportPages, FailureKind, ImportPages, TransferReport

_log = logging.getLogger(__name__)

AT_ONCE = 8
"""Transfers that wait or run. The next is refused for now."""

NOT_WANTED = "the cache was flushed meanwhile, or the entry dropped"

T = TypeVar("T")
Job = Callable[[], None]


class NotTransferred(Exception):
    """Why nothing was exported or imported, for whoever asked."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an engine's pages are: of which kind, named by which roots; its vocabulary, and tokens of a sequence at most."""

    kind: PageKind
    root_key: Callable[[bytes, bytes], bytes]
    vocab_size: int
    max_length: int


class Transfers:
    """For the engine's thread. `lent` counts the pages that are held for transfers, for the scheduler to know.

    `wake` is called by the thread when `take` has something. `tiers` are those below the device; `read_file` brings a page from
    disk, if there is one. `before_writing` is called when pages were allocated that are about to be written.
    """

    def __init__(
        self,
        cache: PrefixCache,
        memory: PageMemory,
        place: Place,
        *,
        lent: Counter[int],
        wake: Callable[[], None],
        tiers: LowerTiers,
        read_file: Callable[[PageMeta, memoryview], bool] | None,
        before_writing: Callable[[], object],
    ) -> None:
        self._cache = cache
        self._memory = memory
        self._place = place
        self._lent = lent
        self._wake = wake
        self._tiers = tiers
        self._read_file = read_file
        self._before_writing = before_writing
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="transfer")
        self._done: deque[Job] = deque()
        self._imports: WeakValueDictionary[str, Cursor] = (
            WeakValueDictionary()
        )  # by the entry they are to make
        self._reports: list[TransferReport] = []
        self._running = 0

    def export(self, ask: ExportPages) -> None:
        """Write what is cached of a prompt to a new file. Nothing cached is no error: there is no file then."""
        with self._answering(ask.query_id):
            self._check_room()
            self._start_export(ask)

    def take_in(self, ask: ImportPages) -> None:
        """Read a file into the cache, as an entry."""
        with self._answering(ask.query_id):
            self._check_room()
            if not self._cache.enabled:
                raise NotTransferred("bad_request", "this engine keeps no prefix cache")
            cursor = self._cursor(ask)
            self._imports[ask.entry_id] = cursor
            self._go(ask.query_id, partial(self._read_header, ask), partial(self._start_import, ask, cursor))

    def drop(self, entry_id: str) -> None:
        """Whoever wanted this import does not any more: it makes no entry."""
        cursor = self._imports.get(entry_id)
        if cursor is not None:
            cursor.limit = 0

    def take(self) -> list[TransferReport]:
        """What has come of them since the last time."""
        while self._done:
            self._done.popleft()()
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        """What has begun ends; what has not is not begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    # ---- export ------------------------------------------------------------------------------------------------------

    def _start_export(self, ask: ExportPages) -> None:
        root = self._place.root_key(ask.namespace, ask.adapter)
        tokens = [*ask.prompt, 0]  # a cache is asked for all but the last token
        match = self._cache.match(Cursor(root, counts=False), tokens)
        in_host, on_disk = self._tiers.continuation(root, match.chain, tokens, len(match.pages))
        whole = len(match.pages) + len(in_host) + len(on_disk)
        pages, count = match.pages, whole * self._place.kind.page_size
        if match.tail is not None and whole > len(pages):
            self._cache.release([match.tail])
        elif match.tail is not None:
            pages, count = [*pages, match.tail], count + match.tail_tokens
        if not count:
            self._reports.append(TransferReport(query_id=ask.query_id))
            return
        self._lent.update(pages)
        fills: list[Fill] = [partial(self._memory.read, page) for page in pages]
        fills += [partial(_copy, self._memory.slot(page.place)) for page in in_host]
        fills += [partial(self._from_disk, page.meta) for page in on_disk]
        self._tiers.hold(in_host)
        header = ArchiveHeader(kind=self._place.kind, adapter=ask.adapter, tokens=ask.prompt[:count])
        self._go(
            ask.query_id,
            partial(write_archive, Path(ask.path), header, fills),
            lambda size: self._answer(ask.query_id, count, size),
            partial(self._end_export, pages, in_host),
        )

    def _from_disk(self, meta: PageMeta, into: memoryview) -> None:
        """On the thread."""
        if self._read_file is None or not self._read_file(meta, into):
            raise NotTransferred("unavailable", "a page could not be read back from disk")

    def _end_export(self, pages: Sequence[int], in_host: Sequence[TierPage]) -> None:
        self._give_back(pages)
        self._tiers.let_go(in_host)

    # ---- import ------------------------------------------------------------------------------------------------------

    def _read_header(self, ask: ImportPages) -> ArchiveHeader:
        """On the thread."""
        with open_archive(Path(ask.path), self._place.kind, ask.adapter) as archive:
            return archive.header

    def _cursor(self, ask: ImportPages) -> Cursor:
        """Known to the cache from the moment that somebody asks: from there on a flush stops what it would write."""
        cursor = Cursor(
            self._place.root_key(ask.namespace, ask.adapter),
            tenant=ask.tenant,
            namespace=ask.namespace,
            adapter=ask.adapter,
        )
        self._cache.begin(cursor)
        return cursor

    def _start_import(self, ask: ImportPages, cursor: Cursor, header: ArchiveHeader) -> None:
        self._check_tokens(header.tokens)
        if not cursor.limit:
            raise NotTransferred("unavailable", NOT_WANTED)
        pinned = 0
        if ask.lease.pin == "hard":
            pinned = self._cache.reserve_pins(ask.tenant, len(header.tokens))
        pages = self._cache.allocate(header.pages, ask.tenant)
        if pages is None:
            self._cache.release_pins(ask.tenant, pinned)
            raise NotTransferred("unavailable", f"there is no room for {header.pages} pages now")
        self._lent.update(pages)
        self._before_writing()
        self._go(
            ask.query_id,
            partial(self._read_pages, ask, header, pages),
            lambda size: self._publish(ask, header, cursor, pages, size),
            partial(self._give_back, pages),
            lambda: self._cache.release_pins(ask.tenant, pinned),
        )

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        longest, vocabulary = self._place.max_length, self._place.vocab_size
        if len(tokens) > longest:
            raise BadArchive(f"its {len(tokens)} tokens are more than the {longest} that this engine takes")
        if not all(0 <= token < vocabulary for token in tokens):
            raise BadArchive(f"not all of its tokens are of a vocabulary of {vocabulary}")

    def _read_pages(self, ask: ImportPages, header: ArchiveHeader, pages: Sequence[int]) -> int:
        """On the thread. The bytes that were read."""
        with open_archive(Path(ask.path), self._place.kind, ask.adapter) as archive:
            if archive.header != header:
                raise BadArchive("the file was changed while it was read")
            for page, data in zip(pages, archive.pages(), strict=True):
                self._memory.write(page, data)
            return archive.size

    def _publish(
        self, ask: ImportPages, header: ArchiveHeader, cursor: Cursor, pages: Sequence[int], size: int
    ) -> None:
        tokens = header.tokens
        self._cache.publish_tail(cursor, tokens, pages, len(tokens))
        spec = EntrySpec(entry_id=ask.entry_id, tokens=len(tokens), lease=ask.lease)
        if not self._cache.put_entry(cursor, spec, tokens):
            raise NotTransferred("unavailable", NOT_WANTED)
        self._answer(ask.query_id, len(tokens), size)

    # ---- both --------------------------------------------------------------------------------------------------------

    def _check_room(self) -> None:
        if self._running >= AT_ONCE:
            raise NotTransferred("unavailable", f"{AT_ONCE} transfers are waiting already")

    def _go(
        self,
        query_id: int,
        work: Callable[[], T],
        then: Callable[[T], None],
        end: Job = lambda: None,
        first: Job = lambda: None,
    ) -> None:
        """`work` on the thread. Back on the engine's own comes `first`, whatever became of it, `then` if it was done, and in
        any case the `end`."""
        self._running += 1
        future = self._thread.submit(work)
        future.add_done_callback(
            lambda done: self._tell(partial(self._land, query_id, done, then, end, first))
        )

    def _land(self, query_id: int, done: Future[T], then: Callable[[T], None], end: Job, first: Job) -> None:
        self._running -= 1
        with self._answering(query_id):
            try:
                first()
                then(done.result())
            finally:
                end()

    def _tell(self, job: Job) -> None:
        """On any thread."""
        self._done.append(job)
        self._wake()

    def _give_back(self, pages: Sequence[int]) -> None:
        self._lent.subtract(pages)
        for page in pages:
            if not self._lent[page]:
                del self._lent[page]
        self._cache.release(pages)

    def _answer(self, query_id: int, tokens: int, size: int) -> None:
        self._reports.append(TransferReport(query_id=query_id, tokens=tokens, bytes=size))

    @contextmanager
    def _answering(self, query_id: int) -> Iterator[None]:
        """What goes wrong is the answer."""
        kind: FailureKind
        try:
            yield
            return
        except NotTransferred as error:
            kind, message = error.kind, str(error)
        except BadArchive as error:
            kind, message = "bad_request", str(error)
        except PinsExhausted as error:
            kind, message = "pins_exhausted", str(error)
        except OSError as error:
            # The path is the client's of this engine, not that of whoever sent the file: a full disk, say.
            kind, message = "unavailable", f"the file cannot be used: {error.strerror}"
        except Exception:  # noqa: BLE001 - our own bug; whoever asked hears of it, nobody else
            _log.exception("a transfer failed")
            kind, message = "engine_error", "the engine failed in this transfer"
        self._reports.append(TransferReport(query_id=query_id, kind=kind, error=message))


def _copy(slot: memoryview, into: memoryview) -> None:
    into[:] = slot

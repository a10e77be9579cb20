"""Everything that moves pages outside of steps: to and from disk and files, and to the tier that somebody asks for."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from functools import partial

from cache.cursor import Cursor
from cache.entries import EntryView
from cache.flushing import AT_A_TIME, takes_whole_roots
from cache.lease import CachePolicy, EntrySpec, FlushScope, Tier
from cache.node import Node
from cache.tiers.index import TierIndex, TierPage

from .batch import PageLoad, PageMemory, Plan
from .config import STOP_SECONDS
from .disk_traffic import DiskTraffic
from .request import ExportPages, GenerationRequest, ImportPages, TransferReport
from .scheduler import Scheduler
from .throttled_log import ThrottledLog
from .transfers import Place, Transfers

_log = logging.getLogger(__name__)

Below = dict[Tier, int]


class NotMoved(Exception):
    """Why an entry was not moved. The message may be shown to its owner."""


class PageMoves:
    """For the engine's thread, between steps. `traffic` is None without a disk.

    A request is *held* while pages of its prompt come from disk; `take` says when it has waited enough.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        memory: PageMemory,
        place: Place,
        traffic: DiskTraffic | None,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._tiers = scheduler.tiers
        self._memory = memory
        self._page_bytes = place.kind.page_bytes
        self._traffic = traffic
        self._transfers = Transfers(
            scheduler.cache,
            memory,
            place,
            lent=scheduler.lent,
            wake=wake,
            tiers=scheduler.tiers,
            read_file=None if traffic is None else traffic.read_now,
            before_writing=self.save_now,
        )
        self._promotions: dict[str, str] = {}  # the entry by the name that its fetch has
        self._log = ThrottledLog(_log, clock)

    # ---- with requests -----------------------------------------------------------------------------------------------

    def prefetch(self, request: GenerationRequest) -> bool:
        """Begin to read what a request needs from disk; True if it has to be held for that."""
        root_key = self._scheduler.root_of(request)
        disk = self._tiers.disk
        if self._traffic is None or disk is None or root_key is None or root_key not in disk.index.roots:
            return False
        in_host, on_disk, first = self._continuation(root_key, request.prompt)
        return self._traffic.fetch(request.request_id, on_disk, first + len(in_host))

    def _continuation(
        self, root_key: bytes, tokens: Sequence[int]
    ) -> tuple[list[TierPage], list[TierPage], int]:
        """What goes on in the host's memory and then on disk, and after how many pages on the device."""
        found = self._cache.look_up(root_key, tokens)
        first = found.whole // self._cache.page_size
        return *self._tiers.continuation(root_key, found.chain, tokens, first), first

    def take(self) -> list[tuple[str, float]]:
        """The requests that need not wait for the disk any more, and how long they have."""
        traffic = self._traffic
        if traffic is None:
            self._tiers.sweep()
            return []
        ready: list[tuple[str, float]] = []
        for name, waited in traffic.take():
            entry_id = self._promotions.pop(name, None)
            if entry_id is None:
                ready.append((name, waited))
            else:
                self._try_to_bring_up(entry_id)
                traffic.drop(name)
        for page in self._tiers.take_lasting():
            traffic.spill(page)
        traffic.forget(self._tiers.sweep())
        return ready

    def forget(self, request_id: str) -> None:
        """A request was admitted, or has ended."""
        if self._traffic is not None:
            self._traffic.drop(request_id)

    @property
    def next_due(self) -> float | None:
        """When somebody has waited enough for the disk, by the clock."""
        return None if self._traffic is None else self._traffic.next_due

    # ---- with steps --------------------------------------------------------------------------------------------------

    def save(self, plan: Plan) -> bool:
        """Carry out what a plan saves, before anything else of it; False if that failed."""
        if not plan.saves:
            return True
        try:
            self._memory.save(plan.saves)
        except Exception:  # noqa: BLE001 - pages that are not saved are computed again
            self._log.exception("pages could not be saved")
            return False
        return True

    def save_now(self) -> bool:
        """Save what waits for that without a plan, between steps; whether there was anything."""
        if not self._tiers.waiting:
            return False
        saves, _ = self._tiers.take()
        self._tiers.settle(saved=self.save(Plan(0, (), saves=saves)))
        return True

    # ---- files -------------------------------------------------------------------------------------------------------

    def transfer(self, ask: ExportPages | ImportPages) -> None:
        """Answered in one of the next reports."""
        if isinstance(ask, ExportPages):
            self._transfers.export(ask)
        else:
            self._transfers.take_in(ask)

    def drop_import(self, entry_id: str) -> None:
        """The entry that a file is to become is not wanted any more."""
        self._transfers.drop(entry_id)

    def take_reports(self) -> list[TransferReport]:
        return self._transfers.take()

    # ---- what is there -----------------------------------------------------------------------------------------------

    def look_up(self, root_key: bytes, chain: bytes, tokens: Sequence[int], whole: int) -> tuple[int, int]:
        """How many tokens after the first `whole`, the last page of which is named `chain`, the host has and then the disk."""
        size = self._cache.page_size
        in_host, on_disk = self._tiers.continuation(root_key, chain, tokens, whole // size)
        return len(in_host) * size, len(on_disk) * size

    def tokens_of(self, view: EntryView) -> tuple[int, int]:
        """How many tokens of an entry that are not on the device are in the host's memory, and how many only on disk."""
        size = self._cache.page_size
        path = [node for node in self._cache.path_of(view.entry_id) if len(node.key) == size]
        in_host = on_disk = 0
        disk = self._tiers.disk
        for begin, node in zip(range(0, view.tokens, size), path, strict=False):
            below = min(begin + size, view.tokens) - max(begin, view.device)  # it may end within a page
            if below <= 0:
                continue
            root_key = node.root.root_key
            if self._tiers.host.holds(root_key, node.chain):
                in_host += below
            elif disk is not None and disk.find(root_key, node.chain) is not None:
                on_disk += below
        return in_host, on_disk

    @property
    def budgets(self) -> Below:
        """Bytes that the tiers may hold."""
        host, disk = self._tiers.host, self._tiers.disk
        return {
            "host": host.slots * self._page_bytes,
            "disk": 0 if disk is None else disk.index.capacity * disk.page_bytes,
        }

    def bytes_of(self, tenant: str) -> Below:
        """What a tenant has below the device."""
        host, disk = self._tiers.host, self._tiers.disk
        return {
            "host": host.index.tenants[tenant] * self._page_bytes,
            "disk": 0 if disk is None else disk.index.tenants[tenant] * disk.page_bytes,
        }

    def tenants(self) -> set[str]:
        """Who has something below the device."""
        disk = self._tiers.disk
        return {*self._tiers.host.index.tenants, *(() if disk is None else disk.index.tenants)}

    def bytes_in(self, pages: Below) -> Below:
        """What so many pages of the lower tiers take there."""
        disk = self._tiers.disk
        each: Below = {"host": self._page_bytes, "disk": 0 if disk is None else disk.page_bytes}
        return {tier: count * each[tier] for tier, count in pages.items()}

    def loading(self, host: int, disk: int) -> float:
        """Seconds it takes to bring so many tokens up."""
        costs, size = self._tiers.costs, self._cache.page_size
        return (host + disk) // size * costs.host_page + disk // size * costs.disk_page

    def limits_changed(self) -> None:
        """What tenants may have in a tier is other than before."""
        self._tiers.host.index.limits_changed()
        if self._tiers.disk is not None:
            self._tiers.disk.index.limits_changed()

    # ---- flush -------------------------------------------------------------------------------------------------------

    def flush_in_parts(
        self, scope: FlushScope, nodes: Sequence[Node], path: Sequence[Node], *, dry_run: bool
    ) -> Generator[None, None, Below]:
        """Let nobody find in the lower tiers of a scope what fits it: by what pages carry, by the `nodes` that went with the
        device's flush, and of one entry's `path` what nobody else needs. Pages by tier.

        Others may use the tiers whenever it yields. After the device, and the host's memory before the disk: what is saved
        meanwhile is still looked at, and what was read meanwhile goes with the page that it was read from.
        """
        if takes_whole_roots(scope):
            return self._flush_roots(scope, dry_run=dry_run)
        gone: Below = {}
        for tier, index, drop in self._below(scope):
            chosen: set[TierPage] = set()
            pages = itertools.chain(index.search(scope), _named(index, nodes, path, chosen))
            for looked, page in enumerate(pages, 1):
                if page is not None and page not in chosen:
                    chosen.add(page)
                    if not dry_run:
                        drop(page)
                if not looked % AT_A_TIME:
                    yield
            gone[tier] = len(chosen)
        return gone

    def _below(self, scope: FlushScope) -> Iterator[tuple[Tier, TierIndex, Callable[[TierPage], object]]]:
        host, disk = self._tiers.host, self._tiers.disk
        if "host" in scope.tiers:
            yield "host", host.index, host.drop
        if "disk" in scope.tiers and disk is not None:
            yield "disk", disk.index, partial(self._drop_file, also_above="host" in scope.tiers)

    def _drop_file(self, page: TierPage, *, also_above: bool) -> None:
        assert self._traffic is not None
        self._traffic.drop_page(page)
        host = self._tiers.host
        if also_above and (copy := host.index.get(page.meta.root, page.meta.chain)) is not None:
            host.drop(copy)

    def _flush_roots(self, scope: FlushScope, *, dry_run: bool) -> Below:
        if dry_run:
            return {
                tier: sum(len(root.pages) for root in index.matching_roots(scope))
                for tier, index, _ in self._below(scope)
            }
        gone: Below = {}
        if "host" in scope.tiers:
            gone["host"] = self._tiers.host.flush_roots(scope)
        if "disk" in scope.tiers and self._traffic is not None:
            gone["disk"] = self._traffic.flush_roots(scope)
        return gone

    # ---- entries to where they are asked for -------------------------------------------------------------------------

    def move(self, entry_id: str, to: Tier) -> None:
        """Bring an entry up to the device, as soon as what of it is on disk is read; or take it down, where nobody else needs
        it above. Raises NotMoved, and PinsExhausted."""
        path = self._cache.path_of(entry_id)
        if not path or path[0].root.dead is not None:
            raise NotMoved("its pages were flushed")
        if to == "device":
            self._bring_up_when_read(entry_id, path)
        else:
            self._take_down(entry_id, path, to)

    def _bring_up_when_read(self, entry_id: str, path: Sequence[Node]) -> None:
        name = f"entry {entry_id}"
        if name in self._promotions:
            return  # it is on its way
        tokens = [*_tokens(path), 0]  # a cache is asked for all but the last token
        _, on_disk, first = self._continuation(path[0].root.root_key, tokens)
        if self._traffic is not None and self._traffic.fetch(name, on_disk, first, asked_for=True):
            self._promotions[name] = entry_id
        else:
            self._bring_up(entry_id)

    def _try_to_bring_up(self, entry_id: str) -> None:
        try:
            self._bring_up(entry_id)
        except Exception:  # noqa: BLE001 - nobody waits for it: who asks later sees that it is not there
            self._log.exception("an entry could not be brought up")

    def _bring_up(self, entry_id: str) -> None:
        path = self._cache.path_of(entry_id)
        view = self._cache.entry(entry_id)
        if view is None or path[0].root.dead is not None:
            return
        root, tip, tokens = path[0].root, path[-1], _tokens(path)[: view.tokens]
        cursor = Cursor(
            root.root_key,
            tenant=root.account.tenant,
            namespace=root.namespace,
            adapter=root.adapter,
            policy=CachePolicy(group=tip.group, lowest=tip.lowest, max_age=tip.max_age),
            counts=False,
        )
        asked = [*tokens, 0]
        match = self._cache.match(cursor, asked)
        pages = list(match.pages)
        try:
            below, _ = self._tiers.continuation(root.root_key, match.chain, asked, len(pages))
            self._tiers.hold(below)
            try:
                fresh = self._cache.allocate(len(below), view.tenant)
                if fresh is None:
                    raise NotMoved(f"there is no room for {len(below)} pages on the device now")
                pages += fresh
                self.save_now()  # what was evicted for them just now
                self._memory.load(
                    PageLoad(page.place, target) for page, target in zip(below, fresh, strict=True)
                )
            finally:
                self._tiers.let_go(below)
            whole = len(pages) * self._cache.page_size
            self._cache.publish(cursor, tokens, pages, whole)
            self._tiers.remember(cursor.node)
            standing = max(whole, whole + match.tail_tokens if not below else 0)
            if standing:
                spec = EntrySpec(entry_id=entry_id, tokens=min(standing, view.tokens), lease=view.lease)
                self._cache.put_entry(cursor, spec, tokens)
        finally:
            self._cache.release(pages if match.tail is None else [*pages, match.tail])

    def _take_down(self, entry_id: str, path: Sequence[Node], to: Tier) -> None:
        disk = self._tiers.disk
        if not self._tiers.host.slots or (to == "disk" and disk is None):
            raise NotMoved(f"there is no tier {to!r} in this engine")
        if any(_RANKS[node.lowest] < _RANKS[to] for node in path):
            raise NotMoved(f"some of its pages may not leave the tier {path[-1].lowest!r}")
        size = self._cache.page_size

        def kept(node: Node) -> bool:
            return len(node.key) < size or self._tiers.keep_node(node, lasts=to == "disk")

        self._cache.take_down(entry_id, kept)
        if to == "disk":
            for node in path:
                self._tiers.send_down(node)

    # ---- the end -----------------------------------------------------------------------------------------------------

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Write to disk what is worth keeping and not there yet, what matters most first, for so long at most."""
        traffic = self._traffic
        if traffic is None:
            return
        due = time.monotonic() + seconds
        self.save_now()
        for page in list(self._tiers.take_lasting()):
            traffic.spill(page)
        for node in self._worth_keeping():
            if time.monotonic() >= due:
                _log.warning("the engine stops without having written all of its cache to disk")
                break
            payload = memoryview(bytearray(self._page_bytes))
            self._memory.read(node.page, payload)
            meta = self._tiers.meta_of(node)
            traffic.write(meta, payload, hits=node.hits, patience=due - time.monotonic())
        traffic.drain(due - time.monotonic())

    def _worth_keeping(self) -> list[Node]:
        """Pages on the device that may be on disk and are not: leased ones first, then those that were used again. What is
        above a page matters as much as that."""
        now = self._cache.now()
        nodes = [node for node in self._cache.nodes() if not self._tiers.lasts(node)]
        worth: dict[Node, tuple[bool, bool, float]] = {}
        for node in reversed(nodes):  # children before their parents
            own = (self._tiers.until(node) > now, node.hits > 0, node.used)
            worth[node] = max(own, worth.get(node, own))
            worth[node.parent] = max(worth[node], worth.get(node.parent, worth[node]))
        return sorted(nodes, key=worth.__getitem__, reverse=True)

    def close(self) -> None:
        """What has begun ends, nothing more is begun."""
        self._transfers.close()
        if self._traffic is not None:
            self._traffic.close()


_RANKS: dict[Tier, int] = {"device": 0, "host": 1, "disk": 2}


def _tokens(path: Iterable[Node]) -> list[int]:
    return [token for node in path for token in node.key]


def _named(
    index: TierIndex, nodes: Sequence[Node], path: Sequence[Node], chosen: Set[TierPage]
) -> Iterator[TierPage | None]:
    """The pages of these nodes in a tier, and of a path that is not on the device any more its end, with all below them; and
    what is above that, as far as nothing goes on from it but what is `chosen` by then. None: nothing is there."""
    for node in (*nodes, *(node for node in path[-1:] if node.page < 0)):
        page = index.get(node.root.root_key, node.chain)
        if page is None:
            yield None
        else:
            yield from index.with_below(page)
    for node in reversed(path):
        page = index.get(node.root.root_key, node.chain)
        if page is None or page in chosen:
            continue
        if node.page >= 0 or not page.root.kids.get(node.chain, set()) <= chosen:
            return
        yield page

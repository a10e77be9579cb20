"""What the scheduler has of the tiers below the device: pages that go are kept there, a prefix that ends goes on there.

Pure bookkeeping, like the scheduler itself. The bytes are moved when a plan is carried out: the saves and loads planned
here since the last plan are those of the next one, and are settled with it.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from cache.entries import claim_of
from cache.lease import EvictionCause
from cache.node import SHARED, Node
from cache.tiers.disk import DiskTier
from cache.tiers.host import HostTier, TierTotals
from cache.tiers.index import TierIndex, TierPage
from cache.tiers.page import PageMeta, chains

from .batch import PageLoad, PageSave
from .load_costs import LoadCosts
from .request import TierCounters

HITS_TO_LAST = 2
"""What was used so often goes to disk as well."""

LEASE_TO_LAST = 1800.0
"""And so does what is leased for as many seconds."""

COPIED_AT_ONCE = 16
"""So many pages that stay on the device are saved with one plan at most: their turn comes, and steps stay short."""


class LowerTiers:
    """The host's slots, and which pages are on disk. For one thread, with one plan in flight.

    A page is saved once and pinned until the step that saves it is over; a page that is loaded is pinned until the step that
    loads it is over. If that step is lost, nobody knows what was saved: those slots are given up.
    """

    def __init__(
        self, host: HostTier, *, page_size: int, costs: LoadCosts, disk: DiskTier | None = None
    ) -> None:
        self.host = host
        self.disk = disk
        self.costs = costs
        self._page_size = page_size
        self._saves: list[tuple[TierPage, int]] = []  # with the page on the device
        self._loads: list[tuple[TierPage, int]] = []
        self._flight: tuple[list[tuple[TierPage, int]], list[tuple[TierPage, int]]] | None = None
        self._lasting: deque[TierPage] = deque()
        self._copies: dict[
            Node, str
        ] = {}  # pages to be saved that stay on the device, in order, with their tags

    # ---- down --------------------------------------------------------------------------------------------------------

    def keep(
        self, meta: PageMeta, page: int, *, hits: int = 0, until: float = -math.inf, lasts: bool = False
    ) -> bool:
        """A page leaves the device, or should be in more places than that: save it if there is a slot for it, and say whether
        it is kept. With `lasts` it goes on to disk.

        Its bytes must stay as they are until the next plan is carried out.
        """
        if meta.lowest == "device":
            return False
        if self.disk is not None and (below := self.disk.index.get(meta.root, meta.chain)) is not None:
            below.meta = meta  # its file keeps what it was written with
        known = self.host.index.get(meta.root, meta.chain)
        if known is not None:
            known.meta = meta  # who has used it may have changed since
            self.host.index.renew(known, hits=hits, until=until)
        else:
            known = self.host.reserve(meta, hits=hits, until=until)
            if known is None:
                return False
            self._saves.append((known, page))
        self._consider(known, lasts=lasts)
        return True

    def evicted(self, node: Node, cause: EvictionCause) -> None:
        """A page of the tree goes for want of room. For `PrefixCache.on_evict`."""
        self.keep_node(node)

    def keep_node(self, node: Node, *, lasts: bool = False, tag: str | None = None) -> bool:
        """The same for a page of the tree; whether it is kept. One that is not full is worth less than it costs."""
        if len(node.key) < self._page_size:
            return False
        meta = self.meta_of(node, tag)
        return self.keep(meta, node.page, hits=node.hits, until=self.until(node), lasts=lasts)

    def used(self, node: Node | None) -> None:
        """The path to a page of the tree was found by a request: what of it is used again and again is to last."""
        if self.disk is None:
            return
        while node is not None and node is not node.root and node.hits < HITS_TO_LAST:
            node = node.parent
        if node is not None:
            self.make_last(node)

    def make_last(self, node: Node) -> None:
        """Have the path to a page of the tree written to disk, while it stays on the device."""
        if self.disk is None:
            return
        path: dict[Node, str] = {}
        tag = self._tag_of(node)
        while node is not node.root:
            if not self.lasts(node):
                path[node] = tag
            node = node.parent
            if len(node.keys) > 1 or (node.holds is not None and self._tag_of(node) != tag):
                tag = ""  # others go on from here too
        self._copies |= dict(reversed(path.items()))

    def lasts(self, node: Node) -> bool:
        """Whether it is on disk, or on its way, or cannot be."""
        if len(node.key) < self._page_size:
            return True
        root = node.root.root_key
        if node.lowest != "disk" or (self.disk is not None and self.disk.holds(root, node.chain)):
            return True
        page = self.host.index.get(root, node.chain)
        return page is not None and page.lasting

    def _copy_some(self) -> None:
        """What is to last and stays where it is goes down a few pages at a time."""
        for node in list(itertools.islice(self._copies, COPIED_AT_ONCE)):
            tag = self._copies.pop(node)
            if node.page >= 0 and node.root.dead is None:
                self.keep_node(node, lasts=True, tag=tag)

    def meta_of(self, node: Node, tag: str | None = None) -> PageMeta:
        root = node.root
        return PageMeta(
            chain=node.chain,
            parent=node.parent.chain,
            root=root.root_key,
            tokens=node.key,
            tenant=root.account.tenant,
            namespace=root.namespace,
            adapter=root.adapter,
            group=node.group,
            tag=self._tag_of(node) if tag is None else tag,
            lowest=node.lowest,
            max_age=node.max_age,
        )

    def _tag_of(self, node: Node) -> str:
        """The tag of all entries that end here, or else of all that goes on from here; empty if that is not one."""
        tags = {entry.lease.tag for hold in node.holds or () for entry in hold.entries.values()}
        root = self.host.index.roots.get(node.root.root_key)
        if not tags and root is not None:
            tags = {page.meta.tag for page in root.kids.get(node.chain, ())}
        return tags.pop() if len(tags) == 1 else ""

    def until(self, node: Node) -> float:
        """Until when somebody was promised to find a page, or what was below it."""
        claim = claim_of(node)
        if claim is None:
            return node.promised
        return math.inf if claim.pinned else max(claim.until, node.promised)

    def send_down(self, node: Node) -> None:
        """A page that is to be on disk only: its slot is given up once it is there."""
        page = self.host.index.get(node.root.root_key, node.chain)
        if page is None or self.disk is None:
            return
        if self.disk.find(node.root.root_key, node.chain) is not None:
            self.host.drop(page)
        else:
            page.leaves = True
            self._consider(page, lasts=True)

    def _consider(self, page: TierPage, *, lasts: bool = False) -> None:
        """Have it written to disk as well, if it is worth that, or is to last anyway."""
        index = self.host.index
        if (
            self.disk is None
            or page.lasting
            or page.meta.lowest != "disk"
            or not (lasts or page.hits >= HITS_TO_LAST or page.until >= index.now() + LEASE_TO_LAST)
        ):
            return
        page.lasting = True
        if page.filled:
            self._lasting.append(page)

    def take_lasting(self) -> Iterator[TierPage]:
        """Pages whose bytes are in their slots, to be written to disk; each once."""
        while self._lasting:
            page = self._lasting.popleft()
            if page.wanted:
                yield page

    def sweep(self) -> list[TierPage]:
        """Drop what is too old to be used; those that have files are returned."""
        self.host.sweep()
        return [] if self.disk is None else self.disk.sweep()

    # ---- up ----------------------------------------------------------------------------------------------------------

    def find(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> list[TierPage]:
        """The pages from `first` on, after the chain `parent`, of all but the last token, that are worth loading."""
        found = self._in_host(root, parent, tokens, first)
        return found if self.costs.host_pays(first, len(found)) else []

    def look_up(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> tuple[int, int]:
        """How many pages the host's memory has from `first` on, and how many the disk after those."""
        in_host, on_disk = self.continuation(root, parent, tokens, first)
        return len(in_host), len(on_disk)

    def continuation(
        self, root: bytes, parent: bytes, tokens: Sequence[int], first: int
    ) -> tuple[list[TierPage], list[TierPage]]:
        """The pages themselves, worth loading or not."""
        found = self._in_host(root, parent, tokens, first)
        after = found[-1].meta.chain if found else parent
        return found, self.on_disk(root, after, tokens, first + len(found))

    def hold(self, pages: Iterable[TierPage]) -> None:
        """Somebody reads these slots, until `let_go`."""
        for page in pages:
            self.host.pin(page)

    def let_go(self, pages: Iterable[TierPage]) -> None:
        for page in pages:
            self.host.unpin(page)

    def on_disk(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> list[TierPage]:
        """The run of pages from `first` on that are on disk."""
        return [] if self.disk is None else self._run(self.disk, root, parent, tokens, first)

    def _in_host(self, root: bytes, parent: bytes, tokens: Sequence[int], first: int) -> list[TierPage]:
        return self._run(self.host, root, parent, tokens, first)

    def _run(
        self, tier: HostTier | DiskTier, root: bytes, parent: bytes, tokens: Sequence[int], first: int
    ) -> list[TierPage]:
        found: list[TierPage] = []
        if root not in tier.index.roots:
            return found
        for chain, key in chains(parent, tokens, self._page_size, first=first, limit=len(tokens) - 1):
            page = tier.find(root, chain)
            if page is None or page.meta.tokens != key:
                break
            found.append(page)
        return found

    def load(self, found: Sequence[TierPage], pages: Sequence[int]) -> int:
        """Have what was found loaded into these pages by the next plan; how many of it came from disk for this."""
        self.host.index.use(found)
        from_disk = 0
        for page, target in zip(found, pages, strict=True):
            self.host.pin(page)
            self._loads.append((page, target))
            from_disk += page.from_disk
            page.from_disk = False
            self._consider(page)
        return from_disk

    def loading(self, tokens: int) -> float:
        """Seconds that it takes to bring so many tokens' pages up."""
        return tokens // self._page_size * self.costs.host_page

    def remember(self, node: Node | None) -> None:
        """The path to a page is on the device again, and was used before as often as the tiers below know, and by whom."""
        while node is not None and node is not node.root:
            known = self.host.index.get(node.root.root_key, node.chain)
            if known is not None:
                node.hits = max(node.hits, known.hits)
                if known.meta.group != node.group:
                    node.group = SHARED
                    self._share(node)
            node = node.parent

    def _share(self, node: Node) -> None:
        """More than one group has used a page."""
        for index in (self.host.index, None if self.disk is None else self.disk.index):
            page = None if index is None else index.get(node.root.root_key, node.chain)
            if page is not None:
                page.meta = structs.replace(page.meta, group=SHARED)

    # ---- what is in them ---------------------------------------------------------------------------------------------

    def host_counters(self, page_bytes: int, hit_tokens: int) -> TierCounters:
        return _counters(self.host.index, self.host.totals, page_bytes, hit_tokens)

    def disk_counters(self, hit_tokens: int) -> TierCounters:
        if self.disk is None:
            return TierCounters()
        return _counters(self.disk.index, self.disk.totals, self.disk.page_bytes, hit_tokens)

    # ---- a step ------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Something is to be saved, with a plan or without one."""
        return bool(self._saves or self._copies)

    def take(self) -> tuple[tuple[PageSave, ...], tuple[PageLoad, ...]]:
        """What the next plan moves. `settle` when it is over."""
        assert self._flight is None, "the moves in flight have to be settled first"
        self._copy_some()
        saves, loads = self._flight = (self._saves, self._loads)
        self._saves, self._loads = [], []
        return (
            tuple(PageSave(page, kept.place) for kept, page in saves),
            tuple(PageLoad(kept.place, page) for kept, page in loads),
        )

    def settle(self, *, saved: bool) -> None:
        """The step is over. Without `saved` nobody knows what the slots hold that it was to fill."""
        assert self._flight is not None, "no moves are in flight"
        saves, loads = self._flight
        self._flight = None
        for page, _ in saves:
            if not saved:
                self.host.totals.failed += 1
                self.host.abandon(page)
                continue
            self.host.fill(page)
            if page.lasting and page.wanted:
                self._lasting.append(page)
        for page, _ in loads:
            self.host.unpin(page)

    def check(self) -> None:
        """Assert what holds for slots that are moved. Linear in the tier."""
        self.host.check()
        saves, loads = self._flight or ([], [])
        filling = [page.place for page, _ in (*saves, *self._saves)]
        loading = {page.place for page, _ in (*loads, *self._loads)}
        assert len(set(filling)) == len(filling), "two pages for one slot"
        assert not set(filling) & loading, "a slot is read before it is written"
        for page, _ in (*saves, *self._saves):
            assert page.pins, "a slot that is written could be given away"
            assert not page.filled
        for page, _ in (*loads, *self._loads):
            assert page.pins, "a slot that is read could be given away"
            assert page.filled


def no_tiers(page_size: int) -> LowerTiers:
    """What an engine has that keeps pages on its device alone."""
    costs = LoadCosts(host_page=0.0, disk_page=0.0, page_size=page_size)
    return LowerTiers(HostTier(0, clock=lambda: 0.0), page_size=page_size, costs=costs)


def _counters(index: TierIndex, totals: TierTotals, page_bytes: int, hit_tokens: int) -> TierCounters:
    return TierCounters(
        bytes=index.count * page_bytes,
        budget=index.capacity * page_bytes,
        hit_tokens=hit_tokens,
        stored=totals.stored,
        evicted=totals.evicted,
        failed=totals.failed,
    )

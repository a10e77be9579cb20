"""Which pages a tier holds, what goes first when it is full, and whose pages they are. No bytes, no files.

Pages go leaf by leaf, so that what is left of a path can always be found from its root: those used once before those used
again, those before the leased ones, each kind in the order of last use. A tenant above its quota pays first, and nobody is
pushed below its floor by another.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ..flushing import fits_root
from ..lease import FlushScope, TenantLimits
from .page import PageMeta


class Rank(enum.IntEnum):
    """How hard a page holds its place."""

    ONCE = 0
    AGAIN = 1
    LEASED = 2


@dataclass(slots=True, eq=False, repr=False)
class Root:
    """The pages of one root. `alive` until it is flushed; whatever still writes one of its pages then stops.

    `kids` are pages by the chain right above them, which may be in another tier. Other threads only read `alive`.
    """

    key: bytes
    tenant: str
    namespace: bytes
    adapter: bytes
    pages: dict[bytes, TierPage] = field(default_factory=dict)
    kids: dict[bytes, set[TierPage]] = field(default_factory=dict)
    alive: bool = True


@dataclass(slots=True, eq=False, repr=False)
class TierPage:
    """A page in a tier. `place` is what the tier keeps it at; it can be read once it is `filled`.

    `pins` count those who read or write it: it cannot go before they are done. `lasting`: it is to be written to disk too;
    `from_disk`: it came from there, and nobody has used it since; `leaves`: once it
    is there it is to be nowhere else. It was used at `used`, by the index's clock,
    `hits` times, and is leased until `until`. Out of the tier it is not `alive`, which is all that other threads look at.
    """

    meta: PageMeta
    root: Root
    used: float
    place: int = -1
    hits: int = 0
    until: float = -math.inf
    pins: int = 0
    filled: bool = False
    lasting: bool = False
    from_disk: bool = False
    leaves: bool = False
    alive: bool = True
    stamp: int = 0

    @property
    def wanted(self) -> bool:
        """Still worth writing. For any thread."""
        return self.alive and self.root.alive


_Entry = tuple[Rank, float, int, int, TierPage]  # rank, used, tie-break, stamp, page


class TierIndex:
    """At most `capacity` pages, for one thread. `clock` gives monotonic seconds; `limits` a tenant's part.

    What is taken out comes back from the call that did it: the caller owns the places.
    """

    def __init__(
        self, capacity: int, *, limits: Callable[[str], TenantLimits], clock: Callable[[], float]
    ) -> None:
        self.capacity = capacity
        self.count = 0
        self.roots: dict[bytes, Root] = {}
        self.tenants: Counter[str] = Counter()  # pages
        self.now = clock
        self._limits = limits
        self._over: set[str] = set()
        self._order: list[_Entry] = []
        self._orders: dict[str, list[_Entry]] = {}
        self._leases: list[tuple[float, int, TierPage]] = []  # heap by their ends
        self._ages: list[tuple[float, int, TierPage]] = []  # heap by when they will be too old, or later
        self._pushes = 0

    # ---- looking -----------------------------------------------------------------------------------------------------

    def get(self, root: bytes, chain: bytes) -> TierPage | None:
        found = self.roots.get(root)
        return None if found is None else found.pages.get(chain)

    def expired(self, page: TierPage) -> bool:
        """Nobody may use it any more."""
        age = page.meta.max_age
        return age is not None and self.now() - page.used > age

    def rank(self, page: TierPage) -> Rank:
        if page.until > self.now():
            return Rank.LEASED
        return Rank.AGAIN if page.hits else Rank.ONCE

    def __iter__(self) -> Iterator[TierPage]:
        for root in self.roots.values():
            yield from root.pages.values()

    def search(self, scope: FlushScope) -> Iterator[TierPage | None]:
        """The pages that fit a scope by what they carry, and all below those: looks through the roots that do. None stands for
        one that was looked at and stays. Others may change the tier in between, and whoever asks may drop what he gets. Entries
        are not known here."""
        if scope.entry_id is not None:
            return
        now = self.now()
        for root in self.matching_roots(scope):
            found: set[TierPage] = set()
            for page in list(root.pages.values()):
                if page in found or not page.wanted:
                    continue
                if (
                    scope.group in (None, page.meta.group)
                    and scope.tag in (None, page.meta.tag)
                    and (scope.idle_for is None or now - page.used >= scope.idle_for)
                ):
                    for each in self.with_below(page):
                        if each not in found:
                            found.add(each)
                            yield each
                else:
                    yield None

    def with_below(self, page: TierPage) -> Iterator[TierPage]:
        """A page and all that go on from it, itself first."""
        left = [page]
        while left:
            page = left.pop()
            if page.wanted:
                left += page.root.kids.get(page.meta.chain, ())
                yield page

    def matching_roots(self, scope: FlushScope) -> list[Root]:
        return [
            root
            for root in self.roots.values()
            if fits_root(scope, tenant=root.tenant, namespace=root.namespace, adapter=root.adapter)
        ]

    # ---- changing ----------------------------------------------------------------------------------------------------

    def add(
        self, meta: PageMeta, *, hits: int = 0, until: float = -math.inf, used: float | None = None
    ) -> TierPage:
        """A page that is not there yet. The caller made room first, and pins it until it is filled."""
        root = self.roots.get(meta.root)
        if root is None:
            root = self.roots[meta.root] = Root(meta.root, meta.tenant, meta.namespace, meta.adapter)
        page = TierPage(meta, root, self.now() if used is None else used, hits=hits, until=until, pins=1)
        assert meta.chain not in root.pages, "a page twice in a tier"
        root.pages[meta.chain] = page
        root.kids.setdefault(meta.parent, set()).add(page)
        self._count(root.tenant, 1)
        if until > self.now():
            self._lease(page)
        if meta.max_age is not None:
            self._pushes += 1
            heapq.heappush(self._ages, (page.used + meta.max_age, self._pushes, page))
        return page

    def use(self, pages: Iterable[TierPage]) -> None:
        """They were found once more, together."""
        now = self.now()
        for page in pages:
            page.used = now
            page.hits += 1
            self._place(page)

    def renew(self, page: TierPage, *, hits: int, until: float) -> None:
        """It was used in a tier above: so often by now, and leased until then."""
        page.used = self.now()
        page.hits = max(page.hits, hits)
        self.lease(page, until)
        self._place(page)

    def lease(self, page: TierPage, until: float) -> None:
        """At least until then; never shorter than before."""
        if until > page.until:
            page.until = until
            self._lease(page)
            self._place(page)

    def pin(self, page: TierPage) -> None:
        page.pins += 1
        page.stamp += 1  # it has no place in the order any more

    def unpin(self, page: TierPage) -> None:
        page.pins -= 1
        assert page.pins >= 0, "unpinned more often than pinned"
        self._place(page)

    def remove(self, page: TierPage) -> None:
        """Take it out, wherever in its path it stands. Who has it pinned goes on with what is no tier's page."""
        if not page.wanted:
            return
        root = page.root
        page.alive = False
        del root.pages[page.meta.chain]
        above = page.meta.parent
        root.kids[above].remove(page)
        if not root.kids[above]:
            del root.kids[above]
            if (parent := root.pages.get(above)) is not None:
                self._place(parent)
        if not root.pages:
            del self.roots[root.key]
        self._count(root.tenant, -1)

    def drop_root(self, root: Root) -> None:
        """All its pages are gone at once, however many: O(1)."""
        root.alive = False
        del self.roots[root.key]
        self._count(root.tenant, -len(root.pages))

    def too_old(self) -> list[TierPage]:
        """The pages that have come to their end since the last time. They are still there."""
        now = self.now()
        found: list[TierPage] = []
        while self._ages and self._ages[0][0] < now:
            _, _, page = heapq.heappop(self._ages)
            if not page.wanted:
                continue
            if self.expired(page):
                found.append(page)
            elif page.meta.max_age is not None:
                self._pushes += 1
                heapq.heappush(self._ages, (page.used + page.meta.max_age, self._pushes, page))
        return found

    def limits_changed(self) -> None:
        """What tenants may have is other than before: see who is above it now. Linear in the tenants."""
        self._over = {name for name, count in self.tenants.items() if count > self._quota(name)}

    # ---- what goes first ---------------------------------------------------------------------------------------------

    def victim(self, payer: str, rank: Rank) -> TierPage | None:
        """What goes next for a page of this rank of this tenant: a leaf of no higher rank that nobody reads; or None."""
        self._end_leases()
        if payer in self._over:
            return self._first(self._order_of(payer), payer, Rank.LEASED)
        for tenant in sorted(self._over):
            if (page := self._first(self._order_of(tenant), tenant, Rank.LEASED)) is not None:
                return page
        return self._first(self._order, payer, rank)

    def _order_of(self, tenant: str) -> list[_Entry]:
        """Empty for who has nothing that is whole and unread yet."""
        return self._orders.get(tenant, [])

    def _first(self, order: list[_Entry], payer: str, rank: Rank) -> TierPage | None:
        spared: list[_Entry] = []
        found: TierPage | None = None
        while order and found is None:
            entry = order[0]
            page = entry[4]
            if not self._current(entry):
                heapq.heappop(order)
            elif entry[0] > rank:
                break
            elif self._sheltered(page.root.tenant, payer):
                spared.append(heapq.heappop(order))
            else:
                found = page
        for entry in spared:
            heapq.heappush(order, entry)
        return found

    def _sheltered(self, tenant: str, payer: str) -> bool:
        return tenant != payer and self.tenants[tenant] <= int(self._limits(tenant).floor * self.capacity)

    def _current(self, entry: _Entry) -> bool:
        page = entry[4]
        return page.stamp == entry[3] and page.wanted

    def _place(self, page: TierPage) -> None:
        """Find its place in the order anew. What cannot go has none."""
        page.stamp += 1
        if page.pins or not page.filled or not page.wanted or page.root.kids.get(page.meta.chain):
            return
        self._pushes += 1
        entry = (self.rank(page), page.used, self._pushes, page.stamp, page)
        mine = self._orders.setdefault(page.root.tenant, [])
        for order in (self._order, mine):
            if len(order) > 64 + 2 * self.count:
                order[:] = [entry for entry in order if self._current(entry)]
                heapq.heapify(order)
            heapq.heappush(order, entry)

    def _lease(self, page: TierPage) -> None:
        if page.until < math.inf:
            if len(self._leases) > 64 + 2 * self.count:
                self._leases = [
                    entry for entry in self._leases if entry[2].wanted and entry[2].until == entry[0]
                ]
                heapq.heapify(self._leases)
            self._pushes += 1
            heapq.heappush(self._leases, (page.until, self._pushes, page))

    def _end_leases(self) -> None:
        now = self.now()
        while self._leases and self._leases[0][0] <= now:
            until, _, page = heapq.heappop(self._leases)
            if page.until == until:
                self._place(page)

    def _count(self, tenant: str, pages: int) -> None:
        self.count += pages
        self.tenants[tenant] += pages
        if not self.tenants[tenant]:
            del self.tenants[tenant]
            self._orders.pop(tenant, None)
        if self.tenants[tenant] > self._quota(tenant):
            self._over.add(tenant)
        else:
            self._over.discard(tenant)

    def _quota(self, tenant: str) -> int:
        return int(self._limits(tenant).quota * self.capacity)

    # ---- truth -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that every count is what it counts, and that all that can go can be found. Linear in the tier."""
        tenants: Counter[str] = Counter()
        current = {id(entry[4]) for entry in self._order if self._current(entry)}
        for key, root in self.roots.items():
            assert root.alive, "a flushed root is found"
            assert root.key == key
            assert root.pages, "an empty root"
            kids = [page for kids in root.kids.values() for page in kids]
            assert Counter(kids) == Counter(root.pages.values()), "a child that is none, or is missing"
            assert all(page.meta.parent == above for above, kids in root.kids.items() for page in kids)
            assert all(root.kids.values()), "a parent of nobody"
            tenants[root.tenant] += len(root.pages)
            for chain, page in root.pages.items():
                assert page.alive, "a removed page is found"
                assert page.root is root
                assert page.meta.chain == chain
                if page.filled and not page.pins and chain not in root.kids:
                    assert id(page) in current, "an idle leaf cannot go"
        assert tenants == self.tenants, "a tenant's count"
        assert self.count == sum(tenants.values()) <= self.capacity, "more pages than there is room for"
        over = {name for name, count in tenants.items() if count > self._quota(name)}
        assert over == self._over, "who is over its quota"

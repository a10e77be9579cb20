"""Whose pages stand in the tree: what each tenant has, may have, and has lost.

Every root has one owner, and pages are charged to the owner of their root. Limits are shares of all pages, resolved to
whole pages once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .lease import EvictionCause, TenantLimits


class PinsExhausted(Exception):
    """There is no room left for hard pins. The message names what is left and may be shown to the tenant."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of tenants by name, and of every other tenant."""

    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    others: TenantLimits = field(default_factory=TenantLimits)


@dataclass(slots=True, eq=False)
class Account:
    """One tenant's part of the tree, in pages.

    `pages` stand in its roots; of these `idle` are held by nobody else and not pinned, `pinned` lie on the path to a hard
    pin. `reserved` are promised to pins still to be made. `quota`, `floor` and `pins` are its limits, `granted` what of
    them nobody else can pin or be promised. `pins` is its share, or what was pinned when that became less.
    """

    tenant: str
    quota: int
    floor: int
    pins: int
    pin_share: int = 0
    granted: int = 0
    pages: int = 0
    idle: int = 0
    pinned: int = 0
    reserved: int = 0
    broken_leases: int = 0
    broken_pauses: int = 0
    evictions: Counter[EvictionCause] = field(default_factory=Counter)

    @property
    def committed(self) -> int:
        """Pages that pins and the floor keep from others, now or as soon as it wants them."""
        return max(self.granted, self.pinned + self.reserved)

    @property
    def spared(self) -> int:
        """How many of its idle pages others cannot have: those that would push it below its floor."""
        return max(0, min(self.idle, self.floor - (self.pages - self.idle)))


NOBODY = Account("", sys.maxsize, 0, 0)
"""Who owns a tree that nobody keeps accounts of."""


class Accounts:
    """All tenants that ever had a page, made as they come. `longest` pages are left free of pins and floors.

    Named tenants get what they are promised or the limits are refused: ValueError with one line. How many others will
    come nobody knows: they get floors and pins while there is room for them.
    """

    def __init__(self, limits: Limits, pages: int, longest: int = 0) -> None:
        self._limits = limits
        self._pages = pages
        self._longest = longest
        self._room = pages - longest  # for pins and floors
        self._by_tenant: dict[str, Account] = {}
        self.floored: list[Account] = []
        self.over: set[Account] = set()
        for tenant, share in limits.tenants.items():
            _check_shares(tenant, share)
        _check_shares("others", limits.others)
        for tenant in limits.tenants:
            self.of(tenant)
        promised = self._committed()
        if promised and promised > self._room:
            raise ValueError(
                f"pins and floors of the tenants take up to {promised} of {pages} pages, and a sequence of maximum "
                f"length needs {longest}: lower their shares, or give the cache more pages"
            )

    def __iter__(self) -> Iterator[Account]:
        return iter(self._by_tenant.values())

    def of(self, tenant: str) -> Account:
        account = self._by_tenant.get(tenant)
        if account is None:
            account = self._by_tenant[tenant] = Account(tenant, 0, 0, 0)
            self._limit(account)
            if account.floor:
                self.floored.append(account)
        return account

    def find(self, tenant: str) -> Account | None:
        return self._by_tenant.get(tenant)

    def limits_of(self, tenant: str) -> TenantLimits:
        return self._limits.tenants.get(tenant, self._limits.others)

    def change(self, limits: Limits) -> None:
        """From now on these. What a tenant has above its quota goes when room is needed, and what it has pinned above its share
        stays as long as it is pinned. Raises ValueError, and changes nothing, where too much is promised or pinned."""
        changed = Accounts(limits, self._pages, self._longest)
        for account in self:
            if account.tenant in limits.tenants:
                changed.of(account.tenant).pinned = account.pinned + account.reserved
        strangers = [account for account in self if account.tenant not in limits.tenants]
        pinned = sum(account.pinned + account.reserved for account in strangers)
        if pinned and changed._committed() + pinned > self._room:
            raise ValueError(
                f"the {pinned} pages that other tenants have pinned leave no room for what is promised to the named: unpin "
                "some, or lower their shares"
            )
        self._limits = limits
        for account in strangers:
            account.granted = 0
        for tenant in limits.tenants:
            self._limit(self.of(tenant))
        for account in strangers:
            self._limit(account)
        self.floored = [account for account in self if account.floor]
        self.over = {account for account in self if account.pages > account.quota}

    def _limit(self, account: Account) -> None:
        """Let it have what the limits say. Those that are not named get what is left."""
        limits = self.limits_of(account.tenant)
        quota, floor, pins = (int(share * self._pages) for share in (limits.quota, limits.floor, limits.pins))
        if account.tenant not in self._limits.tenants:
            floor = max(0, min(floor, self._room - self._committed() + account.committed))
            account.granted = floor
        else:
            account.granted = max(floor, pins)
        account.quota, account.floor, account.pin_share = quota, floor, pins
        account.pins = max(pins, account.pinned + account.reserved)

    # ---- pages -------------------------------------------------------------------------------------------------------

    def charge(self, account: Account, pages: int) -> None:
        """`pages` more of the tree are this tenant's; negative: fewer."""
        account.pages += pages
        if account.pages > account.quota:
            self.over.add(account)
        elif self.over:
            self.over.discard(account)

    def spared_from(self, asking: Account | None) -> int:
        """Idle pages that floors keep from this tenant."""
        return sum(account.spared for account in self.floored if account is not asking)

    def payers(self) -> list[Account]:
        """Who is above its quota and has something to give, the furthest above first."""
        if not self.over:
            return []
        payers = [account for account in self.over if account.idle]
        return sorted(payers, key=lambda account: (account.quota - account.pages, account.tenant))

    # ---- pins --------------------------------------------------------------------------------------------------------

    def reserve(self, account: Account, pages: int) -> None:
        """Promise room for pins. Raises PinsExhausted."""
        self.check_room(account, pages)
        account.reserved += pages

    def check_room(self, account: Account, pages: int) -> None:
        """Raises PinsExhausted if a tenant cannot pin so many pages more."""
        left = self.left(account)
        if pages > left:
            raise PinsExhausted(
                f"{pages} pages cannot be pinned: {left} are left of the {account.pin_share} this tenant may pin"
            )

    def unreserve(self, account: Account, pages: int) -> None:
        assert pages <= account.reserved, "more pins given back than reserved"
        account.reserved -= pages

    def left(self, account: Account) -> int:
        """How many more pages a tenant can pin: of its own share, and of what pins and floors can have together."""
        own = account.pin_share - account.pinned - account.reserved
        spare = account.committed - account.pinned - account.reserved
        return max(0, min(own, spare + self._room - self._committed()))

    def _committed(self) -> int:
        return sum(account.committed for account in self._by_tenant.values())


def _check_shares(tenant: str, limits: TenantLimits) -> None:
    for name in ("quota", "floor", "pins"):
        share: float = getattr(limits, name)
        if not 0 <= share <= 1:
            raise ValueError(f"{name} of {tenant} is a share from 0 to 1, not {share}")
    if limits.floor > limits.quota:
        raise ValueError(f"floor {limits.floor} of {tenant} is above its quota {limits.quota}")

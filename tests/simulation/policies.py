"""Random limits, policies, leases and scopes: what tenants may have, what requests ask for, what is flushed."""

from __future__ import annotations

import random
from collections.abc import Callable

from cache.accounts import Limits
from cache.lease import CachePolicy, EntrySpec, FlushScope, Lease, TenantLimits

TENANTS = ("a", "b")
GROUPS = (b"", b"", b"g", b"h")
TAGS = ("", "tag")


def draw_limits(draw: random.Random) -> Limits:
    """Often none, and now and then some that no cache could keep."""
    if draw.random() < 0.4:
        return Limits()
    others = TenantLimits(quota=draw.choice((1.0, 0.5)), pins=draw.choice((0.0, 0.2, 0.4)))
    tenants = {}
    for tenant in TENANTS:
        if draw.random() < 0.6:
            quota = draw.choice((1.0, 0.6, 0.3))
            floor = draw.choice((0.0, 0.1, 0.25))
            tenants[tenant] = TenantLimits(quota=quota, floor=floor, pins=draw.choice((0.0, 0.1, 0.3)))
    return Limits(tenants, others)


def draw_namespace(draw: random.Random, tenant: str) -> bytes:
    return tenant.encode() + draw.choice((b"x", b"x", b"x", b"y"))


def draw_policy(draw: random.Random, prompt: int, entry_id: Callable[[], str]) -> CachePolicy:
    """`entry_id` gives a new id, or one that was there before."""
    if draw.random() < 0.4:
        return CachePolicy(group=draw.choice(GROUPS))
    count = draw.choice((0, 0, 1, 2))
    ids = {entry_id() for _ in range(count)}
    return CachePolicy(
        read=draw.random() < 0.9,
        write=draw.random() < 0.9,
        write_tokens=draw.choice((None, None, None, draw.randrange(prompt + 8))),
        entries=tuple(
            EntrySpec(entry_id=name, tokens=draw.randrange(1, prompt + 1), lease=draw_lease(draw))
            for name in sorted(ids)
        ),
        group=draw.choice(GROUPS),
        max_age=draw.choice((None, None, None, 2.0, 30.0)),
        lowest=draw.choice(("device", "host", "disk")),
    )


def draw_lease(draw: random.Random, *, pause: bool = False) -> Lease:
    return Lease(
        ttl=draw.choice((0.0, 1.0, 5.0, 1e5)),
        pin="none" if pause else draw.choice(("none", "none", "soft", "hard")),
        priority=draw.randrange(101),
        tag=draw.choice(TAGS),
        pause=pause,
    )


def draw_scope(draw: random.Random, entry_id: str) -> FlushScope:
    """Of every kind, most of them narrow."""
    kind = draw.randrange(8)
    tenant = draw.choice(TENANTS)
    scopes = (
        FlushScope(),
        FlushScope(tenant=tenant),
        FlushScope(namespaces=(draw_namespace(draw, tenant),)),
        FlushScope(adapter=draw.choice((b"", b"lora"))),
        FlushScope(group=draw.choice(GROUPS[1:]), tenant=draw.choice((None, tenant))),
        FlushScope(tag="tag"),
        FlushScope(entry_id=entry_id),
        FlushScope(idle_for=draw.choice((0.0, 1.0, 10.0))),
    )
    return scopes[kind]

"""What is promised about cached pages, to whom, and the words for why pages went.

A *lease* is a promise not to evict before a time; an *entry* is a path in the tree that has one. Neither changes what a
request finds: the tree is matched token by token whoever leased what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Tier = Literal["device", "host", "disk"]
TIERS: tuple[Tier, ...] = ("device", "host", "disk")

Pin = Literal["none", "soft", "hard"]
"""`soft` pages go last of all that can go; `hard` ones never, but only up to the tenant's share for pins."""

EvictionCause = Literal["pressure", "quota", "expired", "flushed", "replaced", "lost", "demoted"]
"""Why cached pages went: room for others; their tenant's quota; their time was over; somebody flushed them; a longer page
took their place; a lower tier could not give back what it was given; somebody asked for them to be in a lower tier only."""

DEFAULT_PRIORITY = 50
HIGHEST_PRIORITY = 100


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`ttl` seconds at least after the last write or use, which renews it: a minimum, not an end. Among equals what has
    the lower `priority` (0 to 100) goes first. `tag` is the owner's own word for a group of entries. `pause` marks the
    short lease of a conversation that waits for its tools: nobody asked for it, so breaking it breaks no promise. Which tools,
    `kind` tells from others of the same tenant, and nothing else of them (0: unknown)."""

    ttl: float = 0.0
    pin: Pin = "none"
    priority: int = DEFAULT_PRIORITY
    tag: str = ""
    pause: bool = False
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """A conversation waits for tools of a kind and is leased `until` then, by the engine's clock."""

    kind: int
    until: float
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Claim:
    """What all the leases on a page promise together, by the engine's clock: it is kept at least `until`, and after that
    preferred to what nobody leased until `lapses`. `pinned` is a soft pin. `wait`
    is that of a conversation for its tools."""

    until: float
    lapses: float
    priority: int = DEFAULT_PRIORITY
    pinned: bool = False
    wait: Wait | None = None


class EntrySpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry to be made of the first `tokens` tokens of a prompt as soon as their KV exists.

    `entry_id` is unique in the life of an engine; an entry that has it already is renewed with this lease.
    """

    entry_id: str
    tokens: int
    lease: Lease


class CachePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one request may have of the cache, and what it leaves there.

    Without `read` nothing is found for it, without `write` nothing it computes is published. `write_tokens` bounds what is
    published to the first so many tokens of the prompt; None is all of it and the answer too. `group` is what the client
    grouped the request under (a digest of its `prompt_cache_key`; empty: none): pages that only one group has used can be
    flushed by it. `max_age` is when pages are gone at the latest, in seconds after they were last used. `lowest` is the
    lowest tier they may reach.
    """

    read: bool = True
    write: bool = True
    write_tokens: int | None = None
    entries: tuple[EntrySpec, ...] = ()
    group: bytes = b""
    max_age: float | None = None
    lowest: Tier = "disk"


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tenant's part of every tier, as shares from 0 to 1. Above `quota` its own pages go first; others cannot push it
    below `floor`; hard pins take up to `pins`."""

    quota: float = 1.0
    floor: float = 0.0
    pins: float = 0.2


class FlushScope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which cached pages: those that fit every field that is set. Nothing set is everything.

    `tenant` owns them; `namespaces` are roots of requests (see `GenerationRequest.namespace`); `adapter` None is any;
    `group` and `tag` name pages that only they hold: what others used too stays, and is counted as kept; `entry_id` is one
    entry's pages, as far as no other entry needs them; `idle_for` were not used for so many seconds.
    """

    tenant: str | None = None
    namespaces: tuple[bytes, ...] | None = None
    adapter: bytes | None = None
    group: bytes | None = None
    tag: str | None = None
    entry_id: str | None = None
    idle_for: float | None = None
    tiers: tuple[Tier, ...] = TIERS

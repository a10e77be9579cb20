"""A cache object as clients see it: what the gateway keeps of it, and how the engine's entry is now."""

from __future__ import annotations

import math
from typing import Literal

from cache.lease import EvictionCause, Tier
from engine.request import EntryState

from .lifetimes import spell_ttl
from .objects import CacheObject

Status = Literal["active", "warming", "cold", "broken", "expired", "flushed", "unknown"]
"""All of it is cached, but for a last page that is not full; the engine was started again, and it is about to be; nothing
is; part of it had to go before its time; it has ended, by time or by a flush; the engine cannot be asked."""


def status_of(found: CacheObject, entry: EntryState | None, now: float, page_size: int) -> Status:
    """How an object is, `entry` being all that the engine knows of it. Less than a page missing is none: the last one is
    seldom full, and only full ones go to lower tiers."""
    ending = found.ending(now)
    if ending is not None:
        return ending
    if entry is None:
        return "cold"
    cached = entry.device + entry.host + entry.disk
    if not cached:
        return "cold" if entry.cause is None else "broken"
    return "active" if entry.tokens - cached < page_size else "broken"


def wire(
    found: CacheObject,
    entry: EntryState | None,
    now: float,
    *,
    page_size: int,
    saved: float,
    asked: bool = True,
    warming: bool = False,
) -> dict[str, object]:
    """`saved` are seconds. `asked` is False where the engine could not be: then tiers and hits are null rather than 0. `warming`:
    somebody is to bring back what is missing."""
    ended = found.ending(now) is not None
    known = entry if not ended else None
    status = status_of(found, entry, now, page_size) if asked or ended else "unknown"
    if warming and status in ("cold", "broken"):
        status = "warming"
    return {
        "id": found.id,
        "object": "cache",
        "name": found.name,
        "model": found.model,
        "created_at": int(found.created_at),
        "updated_at": int(found.updated_at),
        "last_used_at": int(found.last_used_at),
        "expires_at": None if found.expires_at is None else math.ceil(found.expires_at),
        "ttl": None if found.ttl is None else spell_ttl(found.ttl),
        "pin": found.pin,
        "priority": found.priority,
        "tag": found.tag or None,
        "lowest": found.lowest,
        "tokens": found.tokens,
        "status": status,
        "cause": _cause(known, status),
        "tier": None if known is None else tier_of(known),
        "tiers": None if status == "unknown" else _tiers(known),
        "hits": None if status == "unknown" else 0 if known is None else known.hits,
        "saved_ms": round(saved * 1000, 3),
    }


def _cause(entry: EntryState | None, status: Status) -> EvictionCause | None:
    return entry.cause if entry is not None and status == "broken" else None


def tier_of(entry: EntryState) -> Tier | None:
    """Where it is: the lowest tier that some of it has to come from. None if nothing is cached."""
    return "disk" if entry.disk else "host" if entry.host else "device" if entry.device else None


def _tiers(entry: EntryState | None) -> dict[str, int]:
    if entry is None:
        return {"device": 0, "host": 0, "disk": 0}
    return {"device": entry.device, "host": entry.host, "disk": entry.disk}

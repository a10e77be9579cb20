"""What one request asks of the cache, whichever dialect it was asked in, bounded by what its tenant may.

Without a word about the cache a request finds what is there, leaves what it computes, and is promised nothing. A *lease*
comes with options, a breakpoint, or a `cache` object that says how long or how firmly.
"""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from msgspec import structs

from cache.lease import DEFAULT_PRIORITY, TIERS, CachePolicy, EntrySpec, Lease, Tier

from ..errors import ApiError, InvalidRequest
from ..tenants import TenantPolicy
from .fields import CacheFields, Mode, read_time
from .lifetimes import spell_ttl

Retention = Literal["in_memory", "24h"]

RETENTIONS: dict[Retention, tuple[float, Tier]] = {"in_memory": (3600.0, "host"), "24h": (86400.0, "disk")}
"""Seconds after their last use at which pages are gone at the latest, and the lowest tier they may go to."""

_WITHOUT: tuple[float | None, Tier] = (None, "disk")

TOOL_PAUSE = 120.0
"""Seconds for which a conversation that waits for its tools is kept, unless the request says how long."""


class Mark(NamedTuple):
    """An entry is to stand on the first `tokens` of the prompt. `ttl` None: as long as the request says."""

    tokens: int
    ttl: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAsk:
    """Times are seconds. `lease` is what entries get; None: none are made. `asked`: the request said anything of it."""

    asked: bool = False
    key: str | None = None
    salt: str | None = None
    mode: Mode = "implicit"
    lease: Lease | None = None
    pause: float = TOOL_PAUSE
    object_id: str | None = None
    opening: EntrySpec | None = None
    """That of the cache object which the prompt begins with."""
    prewarm: bool = False
    read: bool = True
    write: bool = True
    retention: Retention | None = None
    max_age: float | None = None
    lowest: Tier = "disk"
    implicit_mark: bool = True
    """In implicit mode an entry stands at the end of the latest message, too."""
    longest: float = float("inf")
    """The longest promise the tenant may be given."""

    @property
    def makes_entries(self) -> bool:
        return self.lease is not None and self.write

    def scoring(self) -> CacheAsk:
        """The same for a prompt whose log-probabilities are wanted: every position has to be computed."""
        return replace(self, read=False)

    def policy(self, prompt: Sequence[int], marks: Sequence[Mark], namespace: bytes) -> CachePolicy:
        """For the engine. In explicit mode nothing is written behind the last of the `marks`; a cache object has one at its
        end."""
        opening = () if self.opening is None else (self.opening,)
        ends = [each.tokens for each in (*marks, *opening)]
        end = max(ends, default=0) if self.mode == "explicit" else None
        write = self.write and end != 0
        return CachePolicy(
            read=self.read,
            write=write,
            write_tokens=end if write else None,
            entries=(*opening, *self._entries(prompt, marks, namespace)) if write else (),
            max_age=self.max_age,
            lowest=self.lowest,
        )

    def _entries(
        self, prompt: Sequence[int], marks: Sequence[Mark], namespace: bytes
    ) -> tuple[EntrySpec, ...]:
        if self.lease is None:
            return ()
        entries: dict[str, EntrySpec] = {}
        ids = memoryview(array("I", prompt))
        for mark in marks:
            lease = (
                self.lease if mark.ttl is None else structs.replace(self.lease, ttl=self._bounded(mark.ttl))
            )
            if mark.tokens:
                entry_id = entry_name(namespace, ids[: mark.tokens], lease)
                entries[entry_id] = EntrySpec(entry_id=entry_id, tokens=mark.tokens, lease=lease)
        return tuple(entries.values())

    def _bounded(self, ttl: float) -> float:
        return min(ttl, self.longest)

    def echo(self) -> dict[str, object]:
        """What was applied, in the words it is asked for with."""
        lease = self.lease or Lease()
        applied: dict[str, tuple[object, object]] = {  # and what is not worth saying
            "mode": (self.mode, None),
            "ttl": (None if self.lease is None else spell_ttl(lease.ttl), ""),
            "pin": (lease.pin, None),
            "priority": (lease.priority, DEFAULT_PRIORITY),
            "tag": (lease.tag, ""),
            "tool_pause_ttl": (spell_ttl(self.pause), spell_ttl(TOOL_PAUSE)),
            "retention": (self.retention, None),
            "lowest": (self.lowest, "disk"),
        }
        return {name: value for name, (value, usual) in applied.items() if value != usual}


AUTOMATIC = CacheAsk()
"""Nothing was asked."""


def read_ask(fields: CacheFields, policy: TenantPolicy, *, breakpoints: int = 0) -> CacheAsk:
    """What the fields of a request with so many breakpoints come down to. Raises InvalidRequest, and ApiError 409 for a
    pin that the tenant may not have."""
    if not breakpoints and not fields.asks_of_cache:
        return AUTOMATIC if policy.max_ttl >= TOOL_PAUSE else replace(AUTOMATIC, pause=policy.max_ttl)
    options, vendor = fields.options, fields.vendor
    retention = _retention(fields.prompt_cache_retention)
    max_age, reach = _WITHOUT if retention is None else RETENTIONS[retention]
    longest = min(policy.max_ttl, policy.max_ttl if max_age is None else max_age)
    read, write = vendor.bypass not in ("read", "all"), vendor.bypass not in ("write", "all")
    if options.mode == "explicit" and not breakpoints and vendor.id is None:
        read = write = False  # OpenAI's rule
    ask = CacheAsk(
        asked=True,
        key=fields.prompt_cache_key,
        salt=fields.cache_salt,
        mode=options.mode,
        lease=_lease(fields, policy, longest, breakpoints=breakpoints),
        pause=min(_pause(vendor.tool_pause_ttl), longest),
        object_id=vendor.id,
        prewarm=options.prewarm,
        read=read,
        write=write,
        retention=retention,
        max_age=max_age,
        lowest=min(reach, vendor.lowest or "disk", key=TIERS.index),
        longest=longest,
    )
    _check(ask)
    return ask


def entry_name(namespace: bytes, prefix: memoryview, lease: Lease) -> str:
    """The same for the same prefix with the same lease, so that asking again renews an entry; nobody outside the namespace
    can tell what it stands for."""
    terms = f"{lease.ttl:g} {lease.pin} {lease.priority} {lease.tag}".encode()
    spelled = len(terms).to_bytes(4, "little") + terms + prefix.tobytes()
    return f"entry_{hmac.digest(namespace, spelled, 'sha256')[:16].hex()}"


def _lease(fields: CacheFields, policy: TenantPolicy, longest: float, *, breakpoints: int) -> Lease | None:
    vendor = fields.vendor
    firm = (vendor.ttl, vendor.pin, vendor.priority, vendor.tag)
    if fields.prompt_cache_options is None and not breakpoints and all(value is None for value in firm):
        return None
    if vendor.pin == "hard" and not policy.hard_pins:
        raise ApiError(409, "This tenant may pin nothing hard.", param="cache.pin", code="pin_quota_exceeded")
    return Lease(
        ttl=min(_ttl(fields, policy.default_ttl), longest),
        pin=vendor.pin or "none",
        priority=DEFAULT_PRIORITY if vendor.priority is None else vendor.priority,
        tag=vendor.tag or "",
    )


def _ttl(fields: CacheFields, default: float) -> float:
    """Of the two places that may say it."""
    said = {
        read_time(ttl, at)
        for at, ttl in (("prompt_cache_options.ttl", fields.options.ttl), ("cache.ttl", fields.vendor.ttl))
        if ttl is not None
    }
    if len(said) > 1:
        raise InvalidRequest(
            "'prompt_cache_options.ttl' and 'cache.ttl' say different things.",
            param="cache.ttl",
            code="conflicting_parameters",
        )
    return next(iter(said), default)


def _pause(value: object) -> float:
    if value is None:
        return TOOL_PAUSE
    off = value == "0s" or (value == 0 and not isinstance(value, bool))
    return 0.0 if off else read_time(value, "cache.tool_pause_ttl")


def _retention(value: object) -> Retention | None:
    at = "prompt_cache_retention"
    if value is None:
        return None
    if value in ("in_memory", "in-memory"):
        return "in_memory"
    if value == "24h":
        return "24h"
    raise InvalidRequest(
        f"Invalid value for '{at}': expected 'in_memory' or '24h'.",
        param=at,
        code="invalid_value" if isinstance(value, str) else "invalid_type",
    )


def _check(ask: CacheAsk) -> None:
    """Raises InvalidRequest for what needs entries where none can be made."""
    if ask.write:
        return
    why = "nothing of this request is written to the cache"
    if ask.prewarm:
        raise InvalidRequest(
            f"'prompt_cache_options.prewarm' would do nothing: {why}.",
            param="prompt_cache_options.prewarm",
            code="conflicting_parameters",
        )
    if ask.lease is not None and ask.lease.pin != "none":
        raise InvalidRequest(
            f"'cache.pin' would do nothing: {why}.", param="cache.pin", code="conflicting_parameters"
        )

"""Leases on pages: who asked for them, when they were last renewed, and what became of them.

Leases that end at the same position of the same page are one *hold*: they are used, renewed and lost together, so that a
page that is found costs the same whoever many leased it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Literal

from .lease import Claim, EvictionCause, Lease, Wait
from .node import Entry, Hold, Node
from .radix import RadixTree

Status = Literal["held", "lapsed", "broken", "flushed", "demoted"]

_WANTED: frozenset[EvictionCause] = frozenset({"flushed", "expired", "demoted"})
"""What breaks no promise."""

CROWD = 64
"""So many leases may end at one position. The weakest gives way to one more: what it promised, others still do."""

REMEMBERED = 4096
"""So many entries that lost their pages can still be asked for."""

REMEMBERED_TOKENS = 1 << 20
"""What all of them may be worth: each keeps the path it had in memory, a kilobyte for a page. The last one stays in any case."""

_STRENGTH = {"none": 0, "soft": 1, "hard": 2}


@dataclass(frozen=True, slots=True)
class EntryView:
    """An entry as it is now. `device` of its `tokens` stand in the tree. `chains` name its whole pages, the first one first;
    `expires_in` is None for a pin. Seconds."""

    entry_id: str
    tenant: str
    tokens: int
    device: int
    chains: tuple[bytes, ...]
    lease: Lease
    status: Status
    expires_in: float | None
    hits: int
    idle: float
    cause: EvictionCause | None


@dataclass(frozen=True, slots=True)
class Losses:
    """Promises broken by the loss of a page; it should have been kept `until` then."""

    leases: int = 0
    pauses: int = 0
    until: float = -inf


class Entries:
    """All leases by id. `live` counts those whose page can be found."""

    __slots__ = ("_by_id", "_ended", "_ended_tokens", "live")

    def __init__(self) -> None:
        self._by_id: dict[str, Entry] = {}
        self._ended: deque[Entry] = deque()
        self._ended_tokens = 0
        self.live = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_id.values())

    def find(self, entry_id: str) -> Entry | None:
        return self._by_id.get(entry_id)

    def put(
        self,
        entry_id: str,
        node: Node,
        tokens: int,
        lease: Lease,
        now: float,
        *,
        hits: int = 0,
    ) -> Entry | None:
        """Lease a path that ends in `node`. There is no entry of this id, or it has no hold.

        Returns an entry that had to give way to it.
        """
        hold = _hold_at(node, tokens, now)
        weakest = min(hold.entries.values(), key=_strength) if len(hold.entries) >= CROWD else None
        if weakest is not None:
            self.lose(weakest, None)
        hold.used = now
        entry = Entry(entry_id, node.root.account, tokens, lease, node, hold, hits, hold.hits, now)
        hold.entries[entry_id] = self._by_id[entry_id] = entry
        node.root.entries += 1
        self.live += 1
        return weakest

    def lose(self, entry: Entry, cause: EvictionCause | None, *, broken: bool = False) -> None:
        """An entry has no hold any more. Without a cause it is forgotten, else remembered for a while."""
        hold = entry.hold
        assert hold is not None, "an entry loses its hold once"
        root = entry.node.root
        if root.dead is None:
            root.entries -= 1
            self.live -= 1
        entry.used = hold.used
        entry.hits += hold.hits - entry.before
        entry.hold = None
        del hold.entries[entry.entry_id]
        _drop_if_empty(hold)
        if cause is None:
            del self._by_id[entry.entry_id]
            return
        entry.broken = broken
        entry.cause = cause
        self._remember(entry)

    def forget(self, entry: Entry) -> None:
        """Know nothing more of an entry that has no hold."""
        assert entry.hold is None
        self._forget(entry)

    def _remember(self, entry: Entry) -> None:
        self._ended.append(entry)
        self._ended_tokens += entry.tokens
        while len(self._ended) > 1 and (
            len(self._ended) > REMEMBERED or self._ended_tokens > REMEMBERED_TOKENS
        ):
            oldest = self._ended.popleft()
            self._ended_tokens -= oldest.tokens
            self._forget(oldest)

    def _forget(self, entry: Entry) -> None:
        if self._by_id.get(entry.entry_id) is entry and entry.hold is None:
            del self._by_id[entry.entry_id]

    def lose_all(self, node: Node, cause: EvictionCause, now: float) -> Losses:
        """A page that has holds is lost."""
        leases = pauses = 0
        until = -inf
        for hold in list(node.holds or ()):
            for entry in list(hold.entries.values()):
                end = inf if entry.lease.pin != "none" else hold.used + entry.lease.ttl
                until = max(until, end)
                broken = now < end and cause not in _WANTED
                leases += broken
                self.lose(entry, cause, broken=broken)
            if hold.pause is not None:
                end = hold.used + hold.pause.ttl
                until = max(until, end)
                pauses += now < end and cause not in _WANTED
        node.holds = None
        node.claim = None
        return Losses(leases, pauses, until)


def view_of(entry: Entry, tree: RadixTree, now: float) -> EntryView:
    """An entry as it is. Linear in its path."""
    size = tree.page_size
    path = entry.node.path()
    if entry.is_live:
        device = entry.tokens
    else:
        tokens = [token for node in path for token in node.key][: entry.tokens]
        device = tree.walk(entry.node.root.root_key, tokens, len(tokens)).tokens(size)
    hold, lease = entry.hold, entry.lease
    used = entry.used if hold is None else hold.used
    expires_in = used + lease.ttl - now if lease.pin == "none" else None
    cause: EvictionCause | None = "flushed" if hold is not None and not entry.is_live else entry.cause
    return EntryView(
        entry_id=entry.entry_id,
        tenant=entry.account.tenant,
        tokens=entry.tokens,
        device=device,
        chains=tuple(node.chain for node in path if len(node.key) == size),
        lease=lease,
        status=_status(cause, expires_in, broken=entry.broken),
        expires_in=expires_in,
        hits=entry.hits + (0 if hold is None else hold.hits - entry.before),
        idle=max(0.0, now - used),
        cause=cause,
    )


def _status(cause: EvictionCause | None, expires_in: float | None, *, broken: bool) -> Status:
    match cause:
        case "flushed" | "demoted":
            return cause
    if broken:
        return "broken"
    return "lapsed" if cause is not None or (expires_in is not None and expires_in <= 0) else "held"


def pause(node: Node, lease: Lease, now: float) -> None:
    """Let the conversation that ends at the end of this page wait for its tools."""
    hold = _hold_at(node, node.start + len(node.key), now)
    hold.used = now
    hold.pause = lease


def renew(node: Node, covered: int, now: float, *, counts: bool) -> None:
    """The first `covered` tokens of the path to this page were used."""
    for hold in list(node.holds or ()):
        if hold.tokens <= covered:
            hold.used = now
            hold.hits += counts
            if counts and hold.pause is not None:
                hold.pause = None
                _drop_if_empty(hold)


def claim_of(node: Node) -> Claim | None:
    """What all the leases on a page promise together. After its time a lease is preferred for as long again."""
    until = lapses = -inf
    priority = -1
    pinned = False
    wait: Wait | None = None
    for hold in node.holds or ():
        for entry in hold.entries.values():
            lease = entry.lease
            pinned |= lease.pin != "none"
            priority = max(priority, lease.priority)
            until = max(until, hold.used + lease.ttl)
            lapses = max(lapses, hold.used + 2 * lease.ttl)
        if hold.pause is not None:
            end = hold.used + hold.pause.ttl
            until, lapses = max(until, end), max(lapses, end)
            priority = max(priority, hold.pause.priority)
            if wait is None or wait.until < end:
                wait = Wait(hold.pause.kind, end, hold.pause.priority)
    if until == -inf:
        return None
    return Claim(until, lapses, priority, pinned, wait)


def _hold_at(node: Node, tokens: int, now: float) -> Hold:
    if node.holds is None:
        node.holds = []
    for hold in node.holds:
        if hold.tokens == tokens:
            return hold
    hold = Hold(node, tokens, now, 0, {})
    node.holds.append(hold)
    return hold


def _drop_if_empty(hold: Hold) -> None:
    holds = hold.node.holds
    if not hold.entries and hold.pause is None and holds is not None and hold in holds:
        holds.remove(hold)
        if not holds:
            hold.node.holds = None
            hold.node.claim = None


def _strength(entry: Entry) -> tuple[int, float, int]:
    lease = entry.lease
    return _STRENGTH[lease.pin], lease.ttl, lease.priority

"""The scheduler's own view of what it runs: a request as a group of members, each a sequence, paid for by a tenant."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass, field

from cache.cursor import Cursor

from .account import Account
from .entries import PendingEntries
from .request import GenerationRequest, TokenLogprob
from .sequence import Sequence

NEVER = sys.maxsize
"""More positions than a sequence can have."""


@dataclass(slots=True, eq=False)
class Tenant:
    """`served` counts the positions computed for a tenant; the one with least is admitted first."""

    name: str
    served: int
    groups: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """One request and the sequences of it that have not ended. While it is `held` none of them is queued; `waited` seconds of
    that were for pages from disk."""

    request: GenerationRequest
    tenant: Tenant
    root_key: bytes | None
    arrival: float
    entries: PendingEntries | None = None
    account: Account = field(init=False)
    members: list[Member] = field(default_factory=list)
    held: bool = False
    waited: float = 0.0
    failed: bool = False

    def __post_init__(self) -> None:
        self.account = Account(prompt_len=len(self.request.prompt))


@dataclass(slots=True, eq=False, kw_only=True)
class Member(Sequence):
    """A sequence and what the scheduler has to know of it. Lower `uid` arrived earlier.

    `limit` is the length at which it ends. A follower waits with its `leader` until that one has computed `awaited`
    positions, which they share. `leading` is the mark by which followers find a leader. `copy_source` is a page held
    until the step that copies from it is over; `in_flight` is set while a step computes a row of this sequence.
    `found` positions were there when it was last admitted, `from_below` of them in lower tiers, `from_disk` of those on
    disk; `reached` were computed before it was last preempted. It has something to publish once `due` positions are computed.
    """

    group: Group
    cursor: Cursor
    limit: int
    preempted: bool = False
    in_flight: bool = False
    copy_source: int | None = None
    found: int = 0
    from_below: int = 0
    from_disk: int = 0
    reached: int = 0
    due: int = NEVER
    prompt_logprobs: list[TokenLogprob | None] | None = None
    leading: Hashable | None = None
    leader: Member | None = None
    awaited: int = 0
    followers: list[Member] = field(default_factory=list)
    overtaken: int = 0
    hint: int = 0
    hint_age: int = -1

    @property
    def reads_nothing(self) -> bool:
        """Log-probabilities of the prompt have to be computed, so what is cached of it is of no use."""
        return self.prompt_logprobs is not None

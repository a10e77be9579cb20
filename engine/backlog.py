"""How much may wait: places in the queue, taken before a prompt is tokenised and given back when its request starts.

The one bound on what a client has let in and the engine has not started. A place goes through three hands at most, and
whoever has it gives it back once: `reserve` hands it to a `with` block, `submit` moves a part of it to a request, and
that request's start, failure or abort ends it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from .errors import QueueFull
from .request import GenerationRequest

Rejection = Literal["tenant_queue", "queue_requests", "queue_tokens", "engine_behind"]
"""What was full: the tenant's own share, the queue by requests or by tokens, or the channel to the engine."""

SHORTEST_RETRY = 1.0
LONGEST_RETRY = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Of requests that wait, of their prompt tokens, and of the requests of one tenant."""

    requests: int = 256
    tokens: int = 1_000_000
    tenant_requests: int = 128


@dataclass(frozen=True, slots=True)
class QueueState:
    """What waits now, within which limits, and how often a request was turned away so far and why."""

    requests: int
    tokens: int
    limits: QueueLimits
    rejected: Mapping[Rejection, int]

    @property
    def full(self) -> bool:
        """Nobody's next request would be let in."""
        return self.requests >= self.limits.requests


class Place:
    """Room in the queue for `requests` of a tenant and `tokens` of their prompts. `with` gives back what is left of it."""

    __slots__ = ("_backlog", "requests", "tenant", "tokens")

    def __init__(self, backlog: Backlog, tenant: str, requests: int) -> None:
        self._backlog = backlog
        self.tenant = tenant
        self.requests = requests
        self.tokens = 0

    def weigh(self, tokens: int) -> None:
        """Say, once it is known, how many prompt tokens will wait here. Raises QueueFull."""
        self._backlog.weigh(self, tokens)

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._backlog.give_back(self)


class Backlog:
    """Owns the counts. For one event loop; `clock` is monotonic, in seconds."""

    def __init__(self, limits: QueueLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._requests = 0
        self._tokens = 0
        self._tenants: Counter[str] = Counter()
        self._submitted: dict[str, Place] = {}
        self._starts: deque[float] = deque(maxlen=64)
        self._rejected: Counter[Rejection] = Counter()

    def __contains__(self, request_id: str) -> bool:
        """Whether it was submitted and has not started."""
        return request_id in self._submitted

    @property
    def state(self) -> QueueState:
        return QueueState(self._requests, self._tokens, self._limits, dict(self._rejected))

    def reserve(self, tenant: str, requests: int) -> Place:
        """A place, to be left by `with`. Raises QueueFull."""
        limits = self._limits
        if self._tenants[tenant] + requests > limits.tenant_requests:
            raise self.refusal(
                "tenant_queue", f"Too many requests of this key are waiting (limit {limits.tenant_requests})."
            )
        if self._requests + requests > limits.requests:
            raise self.refusal("queue_requests", f"Too many requests are waiting (limit {limits.requests}).")
        self._requests += requests
        self._tenants[tenant] += requests
        return Place(self, tenant, requests)

    def weigh(self, place: Place, tokens: int) -> None:
        """Raises QueueFull. A prompt longer than the bound on tokens is let in when no other waits."""
        if self._tokens and self._tokens + tokens > self._limits.tokens:
            raise self.refusal(
                "queue_tokens", f"Too many prompt tokens are waiting (limit {self._limits.tokens})."
            )
        self._tokens += tokens
        place.tokens += tokens

    def submit(self, request: GenerationRequest, place: Place) -> None:
        """The request's share of the place is the request's from now on, and no longer the place's."""
        tokens = len(request.prompt)
        assert request.request_id not in self._submitted, "an id is never used twice"
        assert place.tenant == request.tenant, "a place is its tenant's own"
        assert place.requests >= 1, "more requests than were reserved"
        assert place.tokens >= tokens, "more tokens than were weighed"
        share = Place(self, place.tenant, 1)
        share.tokens = tokens
        place.requests -= 1
        place.tokens -= tokens
        self._submitted[request.request_id] = share

    def start(self, request_id: str) -> None:
        """The request left the queue for the engine. Once it has, or if it is unknown, nothing happens."""
        share = self._submitted.pop(request_id, None)
        if share is not None:
            self._starts.append(self._clock())
            self.give_back(share)

    def remove(self, request_id: str) -> None:
        """The request ended. If it had started before, or is unknown, nothing happens."""
        share = self._submitted.pop(request_id, None)
        if share is not None:
            self.give_back(share)

    def clear(self) -> None:
        """All submitted requests ended. Places that no request has taken over yet stay as they are."""
        for request_id in list(self._submitted):
            self.remove(request_id)

    def give_back(self, place: Place) -> None:
        """What is left of a place; nothing the second time."""
        self._requests -= place.requests
        self._tokens -= place.tokens
        self._tenants[place.tenant] -= place.requests
        if not self._tenants[place.tenant]:
            del self._tenants[place.tenant]
        place.requests = place.tokens = 0
        if not self._requests:
            self._starts.clear()  # they tell the pace only for as long as there is somebody to start

    def refusal(self, reason: Rejection, message: str) -> QueueFull:
        """Count a rejection; the error to raise for it."""
        self._rejected[reason] += 1
        return QueueFull(message, retry_after=self.retry_after(), tenant=reason == "tenant_queue")

    def retry_after(self) -> float:
        """Seconds in which the queue would empty at the pace of the latest starts."""
        if not self._starts:
            return SHORTEST_RETRY
        pace = len(self._starts) / max(self._clock() - self._starts[0], 1e-3)
        return min(max(self._requests / pace, SHORTEST_RETRY), LONGEST_RETRY)

    def check(self) -> None:
        """Invariants, for tests: nothing negative, and the parts are no more than the whole."""
        shares = self._submitted.values()
        assert sum(self._tenants.values()) == self._requests >= sum(share.requests for share in shares)
        assert self._tokens >= sum(share.tokens for share in shares)
        assert min(self._tenants.values(), default=1) > 0

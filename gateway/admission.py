"""How much may wait: a place in the queue is taken before a prompt is even tokenised.

Counts requests that were let in and have not started yet, by all callers and by each. The engine has limits of its own;
these are decided first, in microseconds, and know tenants.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from .config import Limits
from .errors import Overloaded


class Place:
    """A request's place in the queue: `tokens` of prompt and `requests` of it, until it starts or ends."""

    __slots__ = ("_admission", "requests", "tenant", "tokens")

    def __init__(self, admission: Admission, tenant: str, requests: int) -> None:
        self._admission = admission
        self.tenant = tenant
        self.requests = requests
        self.tokens = 0

    def weigh(self, tokens: int) -> None:
        """Say how many prompt tokens will wait. Raises Overloaded if that is more than the queue may hold."""
        self._admission.weigh(self, tokens)

    def release(self, requests: int, tokens: int) -> None:
        """This part has started. Releasing more than is held does nothing."""
        self._admission.release(self, min(requests, self.requests), min(tokens, self.tokens))

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release(self.requests, self.tokens)


class Admission:
    """Owns the counts. Rejections are counted by reason for the metrics."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_tenant: Counter[str] = Counter()
        self.requests = 0
        self.tokens = 0
        self.rejected: Counter[str] = Counter()

    def enter(self, tenant: str, requests: int) -> Place:
        """Take a place, to be left by `with`. Raises Overloaded: 429 for the tenant's own limit, 503 for everyone's."""
        limits = self._limits
        if self._by_tenant[tenant] + requests > limits.max_tenant_queued:
            self.rejected["tenant_queue"] += 1
            raise Overloaded(
                f"Too many requests of this key are waiting (limit {limits.max_tenant_queued}).",
                status=429,
                code="rate_limit_exceeded",
            )
        if self.requests + requests > limits.max_queued_requests:
            self.rejected["queue_requests"] += 1
            raise Overloaded(f"Too many requests are waiting (limit {limits.max_queued_requests}).")
        self.requests += requests
        self._by_tenant[tenant] += requests
        return Place(self, tenant, requests)

    def weigh(self, place: Place, tokens: int) -> None:
        # A prompt of any allowed length may wait in an empty queue.
        if self.tokens and self.tokens + tokens > self._limits.max_queued_tokens:
            self.rejected["queue_tokens"] += 1
            raise Overloaded(
                f"Too many prompt tokens are waiting (limit {self._limits.max_queued_tokens}).",
            )
        self.tokens += tokens
        place.tokens += tokens

    def release(self, place: Place, requests: int, tokens: int) -> None:
        place.requests -= requests
        place.tokens -= tokens
        self.requests -= requests
        self.tokens -= tokens
        self._by_tenant[place.tenant] -= requests
        if self._by_tenant[place.tenant] <= 0:
            del self._by_tenant[place.tenant]

    def check(self) -> None:
        """Invariants, for tests: nothing negative, tenants sum to the whole."""
        if min(self.requests, self.tokens) < 0 or sum(self._by_tenant.values()) != self.requests:
            raise AssertionError(f"queue counts disagree: {self.requests}, {self.tokens}, {self._by_tenant}")

"""What a client has submitted and the engine has not yet started, kept within bounds."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from .errors import QueueFull
from .request import GenerationRequest

SHORTEST_RETRY = 1.0
LONGEST_RETRY = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """Of requests that wait, of their prompt tokens, and of the requests of one tenant."""

    requests: int = 256
    tokens: int = 1_000_000
    tenant_requests: int = 128


class Backlog:
    """Owned by one event loop. Times are the caller's monotonic clock."""

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        self._requests: dict[str, GenerationRequest] = {}
        self._tokens = 0
        self._tenants: Counter[str] = Counter()
        self._started: deque[float] = deque(maxlen=64)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def tokens(self) -> int:
        return self._tokens

    def check_room(self, request: GenerationRequest, now: float) -> None:
        """Raises QueueFull. A prompt longer than the bound on tokens is let in when nothing else waits."""
        if self._tenants[request.tenant] >= self.limits.tenant_requests:
            raise QueueFull(
                f"{self.limits.tenant_requests} requests of this key are waiting already",
                retry_after=self.retry_after(now),
                tenant=True,
            )
        if len(self._requests) >= self.limits.requests:
            raise QueueFull(
                f"{len(self._requests)} requests are waiting already", retry_after=self.retry_after(now)
            )
        if self._requests and self._tokens + len(request.prompt) > self.limits.tokens:
            raise QueueFull(
                f"{self._tokens} prompt tokens are waiting already", retry_after=self.retry_after(now)
            )

    def add(self, request: GenerationRequest) -> None:
        self._requests[request.request_id] = request
        self._tokens += len(request.prompt)
        self._tenants[request.tenant] += 1

    def start(self, request_id: str, now: float) -> None:
        if self.remove(request_id):
            self._started.append(now)

    def remove(self, request_id: str) -> bool:
        """Whether it was waiting."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._tokens -= len(request.prompt)
        self._tenants[request.tenant] -= 1
        if not self._tenants[request.tenant]:
            del self._tenants[request.tenant]
        return True

    def clear(self) -> None:
        self._requests.clear()
        self._tenants.clear()
        self._tokens = 0

    def retry_after(self, now: float) -> float:
        """Seconds in which the queue would empty at the pace of the latest starts."""
        if not self._started:
            return SHORTEST_RETRY
        pace = len(self._started) / max(now - self._started[0], 1e-3)
        return min(max(len(self._requests) / pace, SHORTEST_RETRY), LONGEST_RETRY)

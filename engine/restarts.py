"""How soon an engine that ended is started again, and when no more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """At once after the first crash within `window` seconds, then after 1, 2, 4 … `longest` seconds.

    More than `limit` crashes within the window are too many: whatever is wrong, starting again does not help.
    """

    window: float = 600.0
    limit: int = 5
    longest: float = 60.0


class Restarts:
    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._crashes: deque[float] = deque()
        self._refusals = 0
        self.total = 0
        """Deaths of either kind."""

    def crashed(self, now: float) -> float | None:
        """Note a crash; seconds to wait before the next start, None to give up."""
        self.total += 1
        self._refusals = 0
        self._crashes.append(now)
        while self._crashes[0] < now - self._policy.window:
            self._crashes.popleft()
        recent = len(self._crashes)
        if recent > self._policy.limit:
            return None
        return 0.0 if recent == 1 else min(2.0 ** (recent - 2), self._policy.longest)

    def refused(self) -> float:
        """Note a start that an engine declined though an earlier one had served; seconds to wait before the next.

        What it lacks (a disk, memory) may come back at any time, so these are never too many, nor are they crashes.
        """
        self.total += 1
        self._refusals += 1
        return min(2.0 ** min(self._refusals - 1, 30), self._policy.longest)

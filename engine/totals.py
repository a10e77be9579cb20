"""What an engine has done since it started, counted as it happens; and the same counted anew."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from .request import STEP_SIZES, EngineCounters


@dataclass(slots=True)
class Totals:
    """The scheduler's running sums. Everything here is O(1) to update and to read."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    looked_up_tokens: int = 0
    host_tokens: int = 0
    disk_tokens: int = 0
    saved: float = 0.0
    loading: float = 0.0
    followers: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    failed_checks: int = 0
    step_sizes: list[int] = field(default_factory=lambda: [0] * (len(STEP_SIZES) + 1))

    def started(
        self, prompt: int, cached: int, in_host: int, on_disk: int, *, saved: float, loading: float
    ) -> None:
        """A request was admitted; of its prompt so many tokens were cached, and of those so many below the device."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.host_tokens += in_host
        self.disk_tokens += on_disk
        self.saved += saved
        self.loading += loading

    def computed(self, tokens: int) -> None:
        """A step that computed this many tokens is over."""
        self.computed_tokens += tokens
        self.step_sizes[bisect_left(STEP_SIZES, tokens)] += 1


@dataclass(frozen=True, slots=True)
class Census:
    """The state counted anew from the structures themselves. `pages_held` are outside the tree: with the free ones and
    the tree's they make up the pool."""

    counters: EngineCounters
    pages_held: int
    tree_nodes: int
    tree_tokens: int
    namespaces: int

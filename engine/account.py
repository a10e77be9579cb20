"""What one request took from the engine and left in its cache, counted as it happens."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.tombstones import Gone

from .request import Evicted, PromptCached, RequestEnded


@dataclass(slots=True, eq=False, kw_only=True)
class Account:
    """Of `prompt_len` tokens of a prompt `cached` were found when the request was admitted; of the rest `written` are new in
    the cache, each counted once, however often they had to be computed. Once the prompt is `complete` both stand: what shares
    a page with the beginning of the answer is counted then, though it is published with that page. Only a failure undoes it.

    `landing` choices have ended while a step computes them: the account cannot be closed before that step is over.
    """

    prompt_len: int
    started: bool = False
    complete: bool = False
    cached: int = 0
    written: int = 0
    computed: int = 0
    generated: int = 0
    saved: float = 0.0
    entries: list[str] = field(default_factory=list)
    landing: int = 0
    _reach: int = 0  # so far tokens of the prompt are counted, as cached or as written
    _ahead: int = 0  # of `written`, those that are still to be published

    def start(self, cached: int, saved: float) -> None:
        """The request is admitted. What later choices and later attempts find is not counted."""
        self.started = True
        self.cached = self._reach = cached
        self.saved = saved

    def wrote(self, start: int, end: int) -> None:
        """All up to `end` is published; of that, from `start` on by this request, and known by nobody before."""
        if end >= self.prompt_len:
            self._ahead = 0
        first, last = max(start, self._reach), min(end, self.prompt_len)
        if first < last and not self.complete:
            self.written += last - first
            self._reach = last

    def complete_prompt(self, request_id: str, ahead: int) -> PromptCached:
        """The prompt is computed; the last `ahead` tokens of it are going to be new in the cache with their page."""
        self._ahead = min(ahead, self.prompt_len - self._reach)
        self.written += self._ahead
        self.complete = True
        return PromptCached(request_id, self.written, tuple(self.entries))

    def close(self, request_id: str, *, failed: bool = False) -> RequestEnded:
        """What a request that failed had not published by then, it never will."""
        return RequestEnded(
            request_id=request_id,
            started=self.started,
            cached=self.cached,
            written=self.written - self._ahead if failed else self.written,
            computed=self.computed,
            generated=self.generated,
            saved=self.saved,
            entries=tuple(self.entries),
        )


def never_queued(request_id: str) -> RequestEnded:
    """The account of a request that was refused."""
    return Account(prompt_len=0).close(request_id)


def evicted(gone: Gone | None) -> Evicted | None:
    """What became of the page that would have come next in a prefix, as clients are told."""
    return None if gone is None else Evicted(gone.cause, gone.age, gone.broken)

"""The usage ledger: one JSON line for every request that reached the engine, however it ended.

It is for whoever divides the costs: what a client was told in `usage`, and what the engine accounted for, also for those who
left before they were told. A `prompt_cache_key` is written as a digest, since clients put the names of users and
conversations into it: whoever knows a key can tell which lines are its own.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import msgspec

from engine.request import RequestEnded

from ..desk import Submission
from .ledger_file import LedgerFile
from .settled import Status, settle


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """`time` is the end of the request, in seconds since the epoch; other times are seconds.

    `request_id` is the one in `x-request-id`; the prompts of one request have a line each, told apart by `id`. `key` is the
    id of the key in the key file. `finish` has an item for each choice. The prompt's tokens are `cached` or computed, of the
    cached ones some came from the lower tiers; `written` are new in the cache. `completion_tokens` are those of `usage`, and
    for a request without one those that were generated. `computed_tokens` is all the engine did for it, None if the engine
    died before it could tell. `status`: `ok`, every choice came to its end; `aborted`, the client left; `failed`, and `error` is
    the code of the error it was given.
    """

    time: float
    id: str
    request_id: str
    tenant: str
    key: str | None
    model: str
    endpoint: str
    status: Status
    error: str | None
    finish: tuple[str | None, ...]
    prompt_tokens: int
    cached_tokens: int
    cached_host_tokens: int
    cached_disk_tokens: int
    written_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    computed_tokens: int | None
    saved_seconds: float
    queued_seconds: float | None
    seconds: float
    prompt_cache_key: str | None
    cache_id: str | None


class Ledger:
    """A listener of the desk's."""

    def __init__(self, file: LedgerFile, model: str, *, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._model = model
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode

    @property
    def dropped(self) -> int:
        """Lines that could not be written."""
        return self._file.dropped

    def submitted(self, submission: Submission) -> None:
        """It has its line when it has ended."""

    def started(self, submission: Submission) -> None:
        """Likewise."""

    def ended(self, submission: Submission, account: RequestEnded | None) -> None:
        self._file.write(self._encode(self.line(submission, account)))

    def line(self, submission: Submission, account: RequestEnded | None) -> Line:
        caller, job, generation = submission.caller, submission.job, submission.generation
        usage, start, settled = generation.usage, generation.start, settle(generation, account)
        return Line(
            time=round(self._clock(), 3),
            id=generation.request.request_id,
            request_id=caller.request_id,
            tenant=caller.tenant.id,
            key=caller.tenant.key or None,
            model=self._model,
            endpoint=caller.route,
            status=settled.status,
            error=settled.error,
            finish=tuple(choice.finish for choice in generation.choices),
            prompt_tokens=usage.prompt,
            cached_tokens=settled.cached,
            cached_host_tokens=settled.host,
            cached_disk_tokens=settled.disk,
            written_tokens=settled.written,
            completion_tokens=settled.completion,
            reasoning_tokens=usage.reasoning or 0,
            computed_tokens=None if account is None else account.computed,
            saved_seconds=round(settled.saved, 6),
            queued_seconds=None if start is None else round(start.queued, 6),
            seconds=round(time.perf_counter() - generation.timing.submitted, 6),
            prompt_cache_key=None if job.cache_key is None else key_label(job.cache_key),
            cache_id=job.cache_id,
        )


def key_label(key: str) -> str:
    """The first 16 digits of the key's SHA-256: `printf %s KEY | sha256sum`."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:16]

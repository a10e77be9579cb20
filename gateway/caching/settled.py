"""A request when all is said: one set of numbers for the ledger, the statistics and the metrics."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from engine.request import RequestEnded

from ..errors import as_api_error
from ..generation import Generation

Status = Literal["ok", "aborted", "failed"]
"""Every choice came to its end; the client left; something else ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """`error` is the code of the error that a client of a failed request was given.

    Tokens of the prompt are `computed`, or were found on the `device`, in the `host`'s memory or on `disk`; if it never
    started they are nothing of these. `written` of them are new in the cache. `completion` is what the client was told in
    `usage`, or what was generated for one that was told nothing. `saved` is device time in seconds, never negative.
    """

    status: Status
    error: str | None
    computed: int
    device: int
    host: int
    disk: int
    written: int
    completion: int
    saved: float

    @property
    def cached(self) -> int:
        return self.device + self.host + self.disk


def settle(generation: Generation, account: RequestEnded | None) -> Settled:
    """By the engine's account, or what was heard of it before if the engine died without giving one."""
    usage, start = generation.usage, generation.start
    status, error = _outcome(generation)
    if account is None:
        started, cached, written = start is not None, usage.cached, usage.written
        completion, saved = usage.completion, 0.0 if start is None else start.saved
    else:
        started, cached, written = account.started, account.cached, account.written
        completion, saved = usage.completion, account.saved
        if status != "ok":
            completion = max(completion, account.generated)
    host, disk = (0, 0) if start is None else (start.host_tokens, start.disk_tokens)
    return Settled(
        status=status,
        error=error,
        computed=usage.prompt - cached if started else 0,
        device=max(cached - host - disk, 0),
        host=host,
        disk=disk,
        written=written,
        completion=completion,
        saved=max(saved, 0.0),
    )


def _outcome(generation: Generation) -> tuple[Status, str | None]:
    if all(choice.finish is not None for choice in generation.choices):
        return "ok", None
    error = generation.error
    if error is None or isinstance(error, ConnectionError | asyncio.CancelledError):
        return "aborted", None
    answer = as_api_error(error)
    return "failed", "internal_error" if answer is None else answer.code

"""What there is to tell clients, collected until it is taken."""

from __future__ import annotations

from dataclasses import dataclass

from .group import Group
from .request import PromptCached, RequestEnded, RequestFailed, RequestStarted, SequenceDelta


@dataclass(frozen=True, slots=True)
class Events:
    """What there is to tell clients since the last time, each kind in order of happening.

    Of one request: that it started comes before that its prompt is cached, then deltas or a failure, then its account.
    """

    deltas: tuple[SequenceDelta, ...]
    started: tuple[RequestStarted, ...]
    failed: tuple[RequestFailed, ...]
    cached: tuple[PromptCached, ...]
    ended: tuple[RequestEnded, ...]


class Outbox:
    """Whoever makes something happen puts it in here. `over` are requests of which nothing more is to come: their accounts are
    closed when the rest is taken."""

    __slots__ = ("cached", "deltas", "ended", "failed", "over", "started")

    def __init__(self) -> None:
        self.deltas: list[SequenceDelta] = []
        self.started: list[RequestStarted] = []
        self.failed: list[RequestFailed] = []
        self.cached: list[PromptCached] = []
        self.ended: list[RequestEnded] = []
        self.over: list[Group] = []

    def take(self) -> Events:
        for group in self.over:
            self.ended.append(group.account.close(group.request.request_id, failed=group.failed))
        events = Events(
            tuple(self.deltas), tuple(self.started), tuple(self.failed), tuple(self.cached), tuple(self.ended)
        )
        for told in (self.deltas, self.started, self.failed, self.cached, self.ended, self.over):
            told.clear()
        return events

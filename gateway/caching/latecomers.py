"""Entries that requests have made for a cache object whose end they did not hear of: they had begun with it before."""

from __future__ import annotations

from engine.request import RequestEnded

from ..desk import Submission


class Latecomers:
    """A listener of the desk's. Whoever watches the objects takes what there is, and lets the engine forget the entries of
    those that have ended: nobody else would, and with a hard pin they would stay."""

    def __init__(self) -> None:
        self._entries: set[str] = set()

    def submitted(self, submission: Submission) -> None:
        """It has made nothing yet."""

    def started(self, submission: Submission) -> None:
        """Likewise."""

    def ended(self, submission: Submission, account: RequestEnded | None) -> None:
        name = submission.job.cache_id
        if name is not None and account is not None and name in account.entries:
            self._entries.add(name)

    def take(self) -> set[str]:
        """Ids of the objects that requests have made entries of since the last time."""
        taken, self._entries = self._entries, set()
        return taken

"""Whether bringing pages up from a lower tier is cheaper than computing them again."""

from __future__ import annotations

import math
from collections.abc import Callable

_LEARNS = 0.2  # the weight of what was measured last
_FORGETS = 0.1
"""A disk that was slow once is not asked again, and so nothing better is learned of it: each time it is passed over for that, it
is thought of a little more as it was at the start."""
PATIENCE = 3.0
"""A read from disk may take so many times what is expected of it before nobody waits any more."""
SLACK = 0.05
"""And so many seconds longer: a disk that was idle has to wake up."""
WORTH_WAITING = 0.5
"""And in any case for this part of the time that computing takes: what is lost then by a disk that never answers is no more."""
LONGEST_WAIT = 5.0
"""Seconds."""

Recompute = Callable[[int, int], float]
"""Seconds to compute so many positions (second) that so many others (first) come before."""


def always_dear(before: int, positions: int) -> float:
    """What computing costs as long as nobody knows: loading is always cheaper."""
    return math.inf


class LoadCosts:
    """Seconds a page. `host_page` is measured at the start, `disk_page` learned with every read."""

    def __init__(
        self, *, host_page: float, disk_page: float, page_size: int, recompute: Recompute = always_dear
    ) -> None:
        self.host_page = host_page
        self.disk_page = disk_page
        self._first_disk_page = disk_page
        self._page_size = page_size
        self._recompute = recompute

    def recompute(self, first: int, pages: int) -> float:
        """Seconds to compute the pages from `first` on again."""
        return self._recompute(first * self._page_size, pages * self._page_size)

    def host_pays(self, first: int, pages: int) -> bool:
        return pages > 0 and pages * self.host_page < self.recompute(first, pages)

    def disk_pays(self, first: int, pages: int) -> bool:
        """From disk a page goes through the host's memory."""
        return pages > 0 and pages * (self.disk_page + self.host_page) < self.recompute(first, pages)

    def wait_for_disk(self, first: int, pages: int) -> float:
        """How long to wait for a read at most: no longer than computing takes."""
        usual = PATIENCE * pages * self.disk_page + SLACK
        computing = self.recompute(first, pages)
        worth = WORTH_WAITING * computing if computing < math.inf else 0.0
        return min(max(usual, worth), computing, LONGEST_WAIT)

    def learn_disk(self, seconds: float, read: int, asked: int) -> None:
        """Somebody waited so many seconds for the pages that were `read` of those that were `asked` for. If there are none, all
        that is known is that these take longer."""
        page = seconds / (read or asked)
        if read or page > self.disk_page:
            self.disk_page += _LEARNS * (page - self.disk_page)

    def passed_over(self) -> None:
        """Pages on disk were not read, since computing them looked cheaper."""
        if self.disk_page > self._first_disk_page:
            self.disk_page += _FORGETS * (self._first_disk_page - self.disk_page)

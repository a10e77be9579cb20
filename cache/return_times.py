"""When pages are used again, by how long they have not been: learned from what happened, and made into what is worth keeping."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, pairwise
from math import inf
from operator import mul
from typing import NamedTuple

STEPS = tuple(0.5 * 2.0**i for i in range(13))
"""Where each step of age ends, in seconds; one more has no end."""

_LENGTHS = [STEPS[0], *(b - a for a, b in pairwise(STEPS)), STEPS[-1]]

_NEARLY_ALL = 0.9


def step_of(used: float, now: float) -> int:
    """Which step of age it has reached at `now`: one that ends later than now, even where sums are rounded."""
    step = bisect_right(STEPS, now - used)
    return step + 1 if step < len(STEPS) and used + STEPS[step] <= now else step


class ReturnTimes:
    """How the ends of paths of one kind fared: at each step of age, how many were used again and how many grew older.

    Where little was seen, a kind is taken to be `like` another, of which it is a part: whatever is counted here is counted
    there, too. The one that is like no other is taken to be used again with equal chance in each doubling of its age; that
    makes for the order of least recent use. Counts are halved now and then, so that what was learned long ago fades.
    """

    __slots__ = ("_like", "_passed", "_returned", "_seen")
    _FADE = 4096
    _WEIGHT = 8.0  # so many observations is worth what is assumed
    _USUAL = 0.2

    def __init__(self, like: ReturnTimes | None = None) -> None:
        self._like = like
        self._returned = [0.0] * len(_LENGTHS)
        self._passed = [0.0] * len(_LENGTHS)
        self._seen = 0

    def used(self, step: int) -> None:
        """One was used again, having reached this step."""
        self._returned[step] += 1
        self._seen += 1
        if self._seen >= self._FADE:
            self._seen = 0
            self._returned = [count / 2 for count in self._returned]
            self._passed = [count / 2 for count in self._passed]
        if self._like is not None:
            self._like.used(step)

    def passed(self, step: int) -> None:
        """One was not used in this step."""
        self._passed[step] += 1
        if self._like is not None:
            self._like.passed(step)

    def chances(self) -> list[float]:
        """For each step, the chance of whoever reaches it to be used in it: never 0 and never 1."""
        weight = self._WEIGHT
        if self._like is not None:
            usual = self._like.chances()
        else:
            returned = sum(self._returned)
            usual = [(returned + weight * self._USUAL) / (returned + sum(self._passed) + weight)] * len(
                _LENGTHS
            )
        return [
            (used + weight * chance) / (used + passed + weight)
            for used, passed, chance in zip(self._returned, self._passed, usual, strict=True)
        ]

    def rates(self) -> list[float]:
        """For each step: the uses per second of keeping what has just reached it, until the best time to give up."""
        return rates(self.chances())

    def due(self) -> float:
        """The age, in seconds, by which nine in ten have come back of those that do."""
        left = [1.0, *accumulate((1 - chance for chance in self.chances()), mul)]
        late = left[-1] + (1 - left[-1]) * (1 - _NEARLY_ALL)
        return next((end for end, share in zip(STEPS, left[1:], strict=False) if share <= late), inf)


class _Stretch(NamedTuple):
    """Some steps on end: the uses and the seconds that may be expected in them, and the chance to leave them unused."""

    uses: float
    seconds: float
    unused: float

    def then(self, other: _Stretch) -> _Stretch:
        return _Stretch(
            self.uses + self.unused * other.uses,
            self.seconds + self.unused * other.seconds,
            self.unused * other.unused,
        )

    @property
    def rate(self) -> float:
        return self.uses / self.seconds


def rates(chances: list[float]) -> list[float]:
    """The index of Gittins (1979) of every step: the largest ratio, over all later steps to give up after, of the chance to
    be used by then to the time that it is kept. Each is found by going on for as long as what follows is better. Linear."""
    found: list[float] = []
    later: list[_Stretch] = []  # the next one is the last, and the worst begins furthest ahead
    for chance, seconds in zip(reversed(chances), reversed(_LENGTHS), strict=True):
        stretch = _Stretch(chance, (1 - chance / 2) * seconds, 1 - chance)
        while later and later[-1].rate >= stretch.rate:
            stretch = stretch.then(later.pop())
        later.append(stretch)
        found.append(stretch.rate)
    return found[::-1]

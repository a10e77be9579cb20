"""What steps cost on this machine, learned from those that were measured: seconds that a prompt takes, and that a hit saves.

A step costs `a * new tokens + b * new tokens * their context + c`: the work of each token, its attention to all before it,
and what every step costs, whatever is in it. The three are fitted by least squares of the *relative* error: short steps count
as much as long ones, and one that the machine slept through hardly at all. Steps that computed prompts and steps that
generated have a memory each, so that hours of generating do not wash away what prompts cost. No coefficient is negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

from .batch import Plan

MEMORY = 0.99
"""What a measured step weighs after another of its kind. About a hundred steps are remembered."""

EVERY = 16
"""Of steps that only generate, one of so many is looked at: they are alike, and looking costs."""

REFIT = 12
"""After so many measured steps they are fitted anew, and sooner while little is known."""

_SCALES = (256.0, 256.0 * 1024.0, 1.0)  # so that the columns of the equations are of one size

Features = tuple[float, float, float]


@dataclass(slots=True)
class _Sums:
    """Running normal equations of one kind of step: sums of `w·x·xᵀ`, `w·x·y` and `w·y²`, weighted by `w = 1/y²`."""

    products: list[list[float]] = field(default_factory=lambda: [[0.0] * 3 for _ in range(3)])
    moments: list[float] = field(default_factory=lambda: [0.0] * 3)
    squares: float = 0.0
    count: int = 0

    def add(self, features: Features, seconds: float) -> None:
        relative = [feature / seconds for feature in features]
        for i, first in enumerate(relative):
            self.moments[i] = MEMORY * self.moments[i] + first
            row = self.products[i]
            for j, second in enumerate(relative):
                row[j] = MEMORY * row[j] + first * second
        self.squares = MEMORY * self.squares + 1.0
        self.count += 1


class Calibration:
    """For one engine. `max_step_tokens` is how much of a prompt one step computes at most."""

    def __init__(self, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens
        self._prompts = _Sums()
        self._generating = _Sums()
        self._skipped = 0
        self._unfitted = 0
        self._fit: Features = (0.0, 0.0, 0.0)

    def measured(self, plan: Plan, seconds: float) -> None:
        """A step took so long. One that failed says nothing."""
        generates = plan.tokens == len(plan.rows)
        if generates:
            self._skipped += 1
            if self._skipped % EVERY != 1:
                return
        if seconds <= 0:
            return
        sums = self._generating if generates else self._prompts
        sums.add(_features(plan), seconds)
        self._unfitted += 1

    def seconds(self, tokens: int, cached: int = 0) -> float:
        """To compute a prompt of `tokens` by itself, the first `cached` of them being there. 0 while nothing is known."""
        new = tokens - cached
        steps = -(-new // self._max_step_tokens)
        a, b, c = self._coefficients()
        return a * new + b * new * (cached + new / 2) + c * steps

    def saved(self, tokens: int, cached: int, loading: float = 0.0) -> float:
        """What it saves to find `cached` tokens of a prompt, less the seconds it took to bring them up. Never negative."""
        if not cached:
            return 0.0
        return max(self.seconds(tokens) - self.seconds(tokens, cached) - loading, 0.0)

    def _coefficients(self) -> Features:
        """`a`, `b` and `c` in seconds."""
        known = self._prompts.count + self._generating.count - self._unfitted
        if self._unfitted > min(known // REFIT, REFIT):
            self._unfitted = 0
            fit = _least_squares(self._prompts, self._generating)
            self._fit = (fit[0] / _SCALES[0], fit[1] / _SCALES[1], fit[2] / _SCALES[2])
        return self._fit


def _features(plan: Plan) -> Features:
    tokens = 0
    attended = 0.0
    for row in plan.rows:
        tokens += row.count
        attended += row.count * (row.start + row.count / 2)
    return tokens / _SCALES[0], attended / _SCALES[1], 1.0


def _least_squares(*kinds: _Sums) -> list[float]:
    """The non-negative coefficients with the least error. With three of them every choice of those above zero can be tried."""
    products = [[sum(kind.products[i][j] for kind in kinds) for j in range(3)] for i in range(3)]
    moments = [sum(kind.moments[i] for kind in kinds) for i in range(3)]
    best, least = [0.0] * 3, sum(kind.squares for kind in kinds)
    for size in (1, 2, 3):
        for chosen in combinations(range(3), size):
            part = _solve([[products[i][j] for j in chosen] for i in chosen], [moments[i] for i in chosen])
            if part is None or min(part) < 0:
                continue
            # At the solution of the normal equations the error is what the moments leave of the squares.
            error = sum(kind.squares for kind in kinds) - sum(
                k * moments[i] for k, i in zip(part, chosen, strict=True)
            )
            if error < least:
                best, least = [0.0] * 3, error
                for k, i in zip(part, chosen, strict=True):
                    best[i] = k
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss's elimination; None if the equations do not determine a solution."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for i in range(size):
        pivot = max(range(i, size), key=lambda j: abs(rows[j][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) <= 1e-9 * matrix[i][i]:
            return None
        for j in range(size):
            if j != i:
                factor = rows[j][i] / rows[i][i]
                rows[j] = [below - factor * above for below, above in zip(rows[j], rows[i], strict=True)]
    return [rows[i][-1] / rows[i][i] for i in range(size)]

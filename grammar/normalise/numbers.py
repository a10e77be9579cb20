"""One alternative for numbers: an interval, perhaps of multiples, or a few values. Exact arithmetic throughout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from .states import Loss

_MOST_LISTED = 64


@dataclass(frozen=True, slots=True)
class NumberShape:
    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    integers: bool = False
    step: Fraction | None = None
    values: tuple[Fraction, ...] | None = None
    losses: frozenset[Loss] = frozenset()

    def contains(self, value: Fraction) -> bool:
        if self.low is not None and (value < self.low or (self.low_open and value == self.low)):
            return False
        if self.high is not None and (value > self.high or (self.high_open and value == self.high)):
            return False
        if self.integers and value.denominator != 1:
            return False
        if self.values is not None and value not in self.values:
            return False
        return self.step is None or (value / self.step).denominator == 1

    def meet(self, other: NumberShape) -> NumberShape | None:
        """What is in both; None if that is nothing."""
        losses = self.losses | other.losses
        if self.values is not None or other.values is not None:
            listed, rest = (self, other) if self.values is not None else (other, self)
            assert listed.values is not None
            kept = tuple(value for value in listed.values if rest.contains(value))
            return NumberShape(values=kept, losses=losses) if kept else None
        low, low_open = _lower(self, other)
        high, high_open = _upper(self, other)
        steps = [step for step in (self.step, other.step) if step is not None]
        met = NumberShape(
            low,
            high,
            low_open,
            high_open,
            self.integers or other.integers,
            _common(*steps) if len(steps) == 2 else steps[0] if steps else None,
            None,
            losses,
        )
        return met.settled()

    def settled(self) -> NumberShape | None:
        """The same with bounds that are members where there are such; short intervals of multiples as their values."""
        step = self.step
        if self.integers:
            step = Fraction(1) if step is None else _common(step, Fraction(1))
        low, high, low_open, high_open = self.low, self.high, self.low_open, self.high_open
        if step is not None:
            if low is not None:
                least = math.ceil(low / step)
                low, low_open = (least + (low_open and least * step == low)) * step, False
            if high is not None:
                most = math.floor(high / step)
                high, high_open = (most - (high_open and most * step == high)) * step, False
        if low is not None and high is not None:
            if low > high or (low == high and (low_open or high_open)):
                return None
            if low == high:
                return NumberShape(values=(low,), losses=self.losses)
            if step is not None and step != 1 and (high - low) / step < _MOST_LISTED:
                count = int((high - low) / step) + 1
                return NumberShape(
                    values=tuple(low + index * step for index in range(count)), losses=self.losses
                )
        integers = step is not None and step.denominator == 1
        return NumberShape(
            low, high, low_open, high_open, integers, None if step == 1 else step, None, self.losses
        )

    def lossy(self, loss: Loss) -> NumberShape:
        return replace(self, losses=self.losses | {loss})


def _lower(one: NumberShape, other: NumberShape) -> tuple[Fraction | None, bool]:
    """The stricter lower bound, and whether it is out itself."""
    if one.low is None or other.low is None or one.low != other.low:
        first = other.low is None or (one.low is not None and one.low > other.low)
        return (one.low, one.low_open) if first else (other.low, other.low_open)
    return one.low, one.low_open or other.low_open


def _upper(one: NumberShape, other: NumberShape) -> tuple[Fraction | None, bool]:
    if one.high is None or other.high is None or one.high != other.high:
        first = other.high is None or (one.high is not None and one.high < other.high)
        return (one.high, one.high_open) if first else (other.high, other.high_open)
    return one.high, one.high_open or other.high_open


def _common(one: Fraction, other: Fraction) -> Fraction:
    """The least common multiple."""
    denominator = math.lcm(one.denominator, other.denominator)
    return Fraction(math.lcm(int(one * denominator), int(other * denominator)), denominator)

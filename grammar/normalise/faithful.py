"""Numbers that engines keep exactly: they compare in binary floating point and count steps one by one."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from .numbers import NumberShape

_LARGEST = 1 << 53
_SMALLEST = Fraction(1, 10**30)
_LARGEST_INT64 = (1 << 63) - 1
_MOST_DECIMALS = 9
_MOST_STEPS = 100_000


def number(value: Fraction) -> bool:
    """Whether the decimal text of the nearest double is the number itself."""
    if abs(value) > _LARGEST or 0 < abs(value) < _SMALLEST:
        return False
    return Fraction(Decimal(repr(float(value)))) == value


def decimals(step: Fraction) -> int | None:
    """How many decimals a step has; None if an engine would count in other steps."""
    if step > _MOST_STEPS:
        return None
    scaled, places = float(step), 0
    while not scaled.is_integer():
        scaled, places = scaled * 10, places + 1
        if places > _MOST_DECIMALS:
            return None
    exactly = step * 10**places
    return places if exactly == scaled and scaled <= _MOST_STEPS else None


def kept(shape: NumberShape) -> NumberShape:
    """The shape itself if engines keep it, else one that accepts more and that they keep."""
    if shape.values is not None:
        if all(number(value) for value in shape.values):
            return shape
        whole = all(value.denominator == 1 for value in shape.values)
        return NumberShape(integers=whole, losses=shape.losses)
    low = shape.low if shape.low is None or number(shape.low) else None
    high = shape.high if shape.high is None or number(shape.high) or _int64(shape) else None
    step = shape.step if shape.step is None or decimals(shape.step) is not None else None
    return NumberShape(low, high, shape.low_open, shape.high_open, shape.integers, step, None, shape.losses)


def _int64(shape: NumberShape) -> bool:
    return shape.integers and shape.high == _LARGEST_INT64 and not shape.high_open

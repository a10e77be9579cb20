"""One alternative for strings: patterns and a length, or a few values (with the patterns they could not be tried on)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import automaton, formats
from . import expression as rx
from .expression import Expression, TooLarge
from .states import Loss


@dataclass(frozen=True, slots=True)
class StringShape:
    patterns: tuple[Expression, ...] = ()
    low: int = 0
    high: int | None = None
    values: tuple[str, ...] | None = None
    losses: frozenset[Loss] = frozenset()

    def meet(self, other: StringShape) -> StringShape | None:
        losses = self.losses | other.losses
        patterns = tuple(dict.fromkeys(self.patterns + other.patterns))
        low = max(self.low, other.low)
        highs = [high for high in (self.high, other.high) if high is not None]
        high = min(highs, default=None)
        if high is not None and low > high:
            return None
        if self.values is None and other.values is None:
            return StringShape(patterns, low, high, None, losses)
        if self.values is None or other.values is None:
            values = self.values or other.values or ()
        else:
            allowed = set(other.values)
            values = tuple(value for value in self.values if value in allowed)
        kept, undecided = _kept(values, patterns, low, high)
        return StringShape(undecided, values=kept, losses=losses) if kept else None

    def accepts(self, text: str) -> bool:
        """Raises TooLarge."""
        if self.values is not None and text not in self.values:
            return False
        if len(text) < self.low or (self.high is not None and len(text) > self.high):
            return False
        return all(automaton.matches(pattern, text) for pattern in self.patterns)

    def expression(self) -> Expression:
        """The same strings as one expression."""
        parts = list(self.patterns)
        if self.values is not None:
            parts.append(rx.any_of(self.values))
        if self.low or self.high is not None:
            parts.append(rx.repeat(rx.ANY_CHARACTER, self.low, self.high))
        return rx.both(parts)

    def empty(self) -> bool:
        """Whether it is known that there is no such string, formats taken as wide as they are."""
        return replace(self, patterns=tuple(map(formats.wider, self.patterns))).unwritable()

    def unwritable(self) -> bool:
        """Whether it is known that there is none with its formats in the form that decoding keeps."""
        if self.values is not None or not self.patterns:
            return False
        try:
            return automaton.is_empty(self.expression())
        except TooLarge:
            return False

    def settled(self) -> StringShape:
        """With only those of the listed values that fit the patterns, if any do."""
        if self.values is None or not self.patterns:
            return self
        try:
            fitting = tuple(value for value in self.values if self.accepts(value))
        except TooLarge:
            return self
        return StringShape(values=fitting, losses=self.losses) if fitting else self

    def lossy(self, loss: Loss) -> StringShape:
        return replace(self, losses=self.losses | {loss})


def _kept(
    values: tuple[str, ...], patterns: tuple[Expression, ...], low: int, high: int | None
) -> tuple[tuple[str, ...], tuple[Expression, ...]]:
    """The values that may fit, and the patterns for which that could not be decided of all of them."""
    kept = [value for value in values if len(value) >= low and (high is None or len(value) <= high)]
    undecided = []
    for pattern in patterns:
        try:
            wide = formats.wider(pattern)
            kept = [value for value in kept if automaton.matches(wide, value)]
            if wide != pattern and not all(automaton.matches(pattern, value) for value in kept):
                undecided.append(pattern)
        except TooLarge:
            undecided.append(pattern)
    return tuple(kept), tuple(undecided)

"""Grammars that were refused lately: asking again costs nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from .errors import BadGrammar


class Refusals:
    """The `most` newest, each for some seconds: what was refused under load may do later. For one thread."""

    def __init__(self, *, seconds: float, most: int, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._errors: OrderedDict[bytes, tuple[BadGrammar, float]] = OrderedDict()

    def get(self, key: bytes) -> BadGrammar | None:
        """An error of its own for each who asks: raising one changes it."""
        error, until = self._errors.get(key, (None, 0.0))
        if error is None:
            return None
        if self._clock() >= until:
            del self._errors[key]
            return None
        return type(error)(str(error), path=error.path, keyword=error.keyword)

    def put(self, key: bytes, error: BadGrammar) -> None:
        self._errors[key] = (error, self._clock() + self._seconds)
        self._errors.move_to_end(key)
        while len(self._errors) > self._most:
            self._errors.popitem(last=False)

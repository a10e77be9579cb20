"""`cache_control`: breakpoints on blocks, and the one that a request has as a whole.

The rules are Anthropic's: at most four, the whole request's included; those that last for an hour come before those that
last for five minutes; the whole request's stands on the last block, which must not have another lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ValidationError

from ..caching.boundaries import Breakpoint
from ..errors import InvalidRequest
from ..openai.fields import wrong_type
from .request import CacheControl

MOST = 4
SECONDS = {"5m": 300.0, "1h": 3600.0}


class Place(NamedTuple):
    """A block: where its text is in the conversation, and its path in the request."""

    message: int
    part: int
    at: str


@dataclass(slots=True)
class CacheMarks:
    """Collects the blocks of a request in their order: tools, system, messages."""

    breakpoints: list[Breakpoint] = field(default_factory=list)
    _paths: list[str] = field(default_factory=list)
    _last: Place | None = None

    def block(self, place: Place, control: object) -> None:
        """A block that may be marked, and its `cache_control`. Raises InvalidRequest."""
        self._last = place
        if control is None:
            return
        at = f"{place.at}.cache_control"
        if not isinstance(control, dict):
            raise wrong_type(at, "an object", control)
        try:
            read = CacheControl.model_validate(control)
        except ValidationError:
            raise InvalidRequest(
                f"{at}: expected type 'ephemeral', and a ttl of '5m' or '1h'.", param=at
            ) from None
        self._add(place, read, at)

    def finish(self, whole: CacheControl | None) -> None:
        """All blocks are there. Raises InvalidRequest."""
        if whole is not None and self._last is not None:
            at = self._last
            same = [mark for mark in self.breakpoints if (mark.message, mark.part) == (at.message, at.part)]
            if not same:
                self._add(at, whole, "cache_control")
            elif same[0].ttl != SECONDS[whole.ttl]:
                raise InvalidRequest(
                    f"cache_control: the last block ({at.at}) has a cache_control with another ttl.",
                    param="cache_control",
                )
        shorter = ""
        for mark, path in zip(self.breakpoints, self._paths, strict=True):
            if mark.ttl == SECONDS["1h"] and shorter:
                raise InvalidRequest(
                    f"{path}.ttl: a block with a ttl of '1h' must not come after one with '5m' ({shorter}).",
                    param=path,
                )
            shorter = shorter or (path if mark.ttl == SECONDS["5m"] else "")

    def _add(self, place: Place, control: CacheControl, path: str) -> None:
        if len(self.breakpoints) == MOST:
            raise InvalidRequest(
                f"A maximum of {MOST} blocks with cache_control may be provided. Found {MOST + 1}.",
                param=path,
            )
        self.breakpoints.append(Breakpoint(place.message, place.part, SECONDS[control.ttl]))
        self._paths.append(path)

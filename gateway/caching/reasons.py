"""Why a prompt was found in the cache as far as it was: the word for it, and where it left what was cached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.request import GenerationRequest, RequestStarted


@dataclass(frozen=True, slots=True)
class Finding:
    """`reason` is one of a fixed set of words. `divergence` says where the prompt and the one it was compared with part."""

    reason: str
    divergence: Mapping[str, object] | None = None


def plain_finding(request: GenerationRequest, start: RequestStarted) -> Finding:
    """What can be said without knowing any other request."""
    if not request.cache.read:
        return Finding("bypass")
    if start.cached_tokens == len(request.prompt) - 1:  # the last is always computed
        return Finding("hit")
    if start.evicted is not None:
        return Finding("evicted")
    return Finding("partial_hit" if start.cached_tokens else "cold")

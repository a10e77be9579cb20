"""What a client is told of the cache: the header `x-cache`, and the object `x_cache`.

Built from what the engine said at the start of each request and once its prompt was computed; before that it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from ..generation import Generation
from .ask import CacheAsk
from .reasons import Finding, plain_finding

HEADER = "x-cache"
DETAILS_HEADER = "x-cache-details"
"""Of a request: `1` asks for `x_cache` though no field of the request is about the cache."""


def tells_cache(request: web.Request, ask: CacheAsk) -> bool:
    """Whether the answer is to say what came of the cache."""
    return ask.asked or request.headers.get(DETAILS_HEADER) == "1"


def cache_details(told: CacheAsk | None, generations: Sequence[Generation]) -> dict[str, object]:
    """`x_cache` for an answer or a chunk, or nothing."""
    return {} if told is None else {"x_cache": details(told, generations)}


def header(generations: Sequence[Generation]) -> str:
    """`hit=1984;write=16;reason=partial_hit`; without what was written while a prompt is still computed, `pending` while
    one has not been looked up."""
    finding = common_finding(generations)
    if finding is None or any(generation.start is None for generation in generations):
        return "pending"
    words = {"hit": sum(generation.usage.cached for generation in generations)}
    if all(generation.stored is not None for generation in generations):
        words["write"] = sum(generation.usage.written for generation in generations)
    return ";".join(f"{name}={value}" for name, value in {**words, "reason": finding.reason}.items())


def details(ask: CacheAsk, generations: Sequence[Generation]) -> dict[str, object]:
    """The object `x_cache`: what was found, left and applied, over all prompts of a request. Times are milliseconds."""
    starts = [generation.start for generation in generations if generation.start is not None]
    stored = [generation.stored for generation in generations if generation.stored is not None]
    found = sum(start.cached_tokens for start in starts)
    host, disk = sum(start.host_tokens for start in starts), sum(start.disk_tokens for start in starts)
    finding = common_finding(generations)
    told: dict[str, object] = {
        "hit_tokens": {"device": found - host - disk, "host": host, "disk": disk},
        "matched_tokens": found,
        "write_tokens": sum(each.written for each in stored),
        "entry_ids": [entry for each in stored for entry in each.entries],
        "reason": None if finding is None else finding.reason,
        "saved_ms": _milliseconds(sum(start.saved for start in starts)),
        "loading_ms": _milliseconds(sum(start.loading for start in starts)),
        **ask.echo(),
        **_tokenization(generations),
    }
    if finding is not None and finding.divergence is not None:
        told["first_divergence"] = finding.divergence
    return told


def _tokenization(generations: Sequence[Generation]) -> dict[str, object]:
    """Whether a conversation went on with the ids it had; nothing where that was not to be."""
    known = [generation.known for generation in generations if generation.known is not None]
    if not known:
        return {}
    return {"tokenization": "spliced" if any(known) else "canonical", "known_tokens": sum(known)}


def common_finding(generations: Sequence[Generation]) -> Finding | None:
    """Of several prompts that of the first one that is no hit: one miss is what somebody asks about."""
    findings = [finding for generation in generations if (finding := finding_of(generation)) is not None]
    return next((each for each in findings if each.reason != "hit"), findings[0] if findings else None)


def finding_of(generation: Generation) -> Finding | None:
    """What was found out about it, else what is plain; None before it has started."""
    if generation.finding is not None or generation.start is None:
        return generation.finding
    return plain_finding(generation.request, generation.start)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)

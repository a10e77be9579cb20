"""An explanation on the wire. Text is shown to nobody but the tenant whose records both are."""

from __future__ import annotations

import hashlib

from ..tokenizer import Tokenizer
from .changes import Place
from .diagnosis import Diagnosis
from .records import Record
from .sentences import sentence
from .telling import Telling

BEFORE, AFTER = 24, 40
"""Characters shown before and behind a place."""


def wire(
    record: Record, baseline: Record | None, diagnosis: Diagnosis, tokenizer: Tokenizer, *, given: bool
) -> dict[str, object]:
    """`given`: the caller chose what to compare with. The record of a dry run has no id."""
    now = Telling(record, tokenizer)
    start = record.start
    hit = record.hit
    host, disk = (0, 0) if start is None else (start.host_tokens, start.disk_tokens)
    return {
        "object": "cache.explanation",
        "response_id": record.response_id or None,
        "baseline_id": None if baseline is None else baseline.response_id,
        "baseline": None if baseline is None else ("given" if given else "chosen"),
        "model": record.model,
        "created": int(record.created),
        "reason": diagnosis.reason,
        "detail": dict(diagnosis.detail),
        "summary": sentence(diagnosis, hit, record.tokens),
        "prompt_tokens": record.tokens,
        "hit_tokens": hit,
        "hit_tokens_by_tier": {"device": hit - host - disk, "host": host, "disk": disk},
        "cache_missed_tokens": record.tokens - hit,
        "common_tokens": diagnosis.common,
        "reusable_tokens": diagnosis.reusable,
        "cached_until": None if hit >= record.tokens - 1 else _position(now, hit),
        "first_divergence": None
        if diagnosis.place is None or baseline is None
        else _divergence(now, Telling(baseline, tokenizer), diagnosis, diagnosis.place),
    }


def _position(now: Telling, token: int) -> dict[str, object]:
    """What stands at a token of the prompt."""
    at = now.tokens.char_at(token)
    span = now.segments.at(at)
    return {
        "token": token,
        "message": None if span is None or span.kind == "tool" else span.message,
        "char": at,
        "preview": now.text[at : at + AFTER],
    }


def _divergence(now: Telling, was: Telling, diagnosis: Diagnosis, place: Place) -> dict[str, object]:
    expected, got = was.whole[place.at :], now.text[place.at :]
    return {
        "segment": place.segment,
        "message": place.message,
        "role": _role(now, was, place.message),
        "part": place.part,
        "token": diagnosis.common,
        "char": place.char,
        "prompt_char": place.at,
        "cache_missed_tokens": now.record.tokens - diagnosis.common,
        "expected_hash": _hash(expected if place.was is None else place.was),
        "got_hash": _hash(got if place.now is None else place.now),
        "expected_preview": was.whole[max(place.at - BEFORE, 0) : place.at + AFTER],
        "got_preview": now.text[max(place.at - BEFORE, 0) : place.at + AFTER],
    }


def _role(now: Telling, was: Telling, message: int | None) -> str | None:
    if message is None:
        return None
    found = now.message(message) or was.message(message)
    return None if found is None else found["role"]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

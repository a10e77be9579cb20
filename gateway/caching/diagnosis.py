"""Why a prompt was found in the cache as far as it was, and no further: one record held against another.

Two things can go wrong, and they are told apart. What the other request had left in the cache may be *lost* to this one:
evicted, flushed, expired, gone with its engine, never written, or behind another namespace. Or the two prompts *part*, and
then something has *changed*, which is for `changes` to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..tokenizer import Tokenizer
from .changes import Change, Place, Reason, find_change
from .common import common_tokens
from .records import Record

__all__ = ["NOTHING", "Comparison", "Diagnosis", "compare", "conclude"]

_Cause = tuple[Reason, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`common` tokens are the same in both, of which `reusable` were what the other had left and this one could use.
    `place` is where they part, None if they do not or it has nothing to do with it."""

    reason: Reason
    detail: Mapping[str, object] = field(default_factory=dict)
    common: int = 0
    reusable: int = 0
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What can be said of two prompts before it is known what was found of the newer. `settled`: the older request had ended,
    so this does not change any more."""

    baseline: Record | None
    common: int
    change: Change | None
    settled: bool


NOTHING = Comparison(None, 0, None, settled=True)


def compare(
    record: Record,
    baseline: Record,
    tokenizer: Tokenizer,
    *,
    common: int | None = None,
    guessed: bool = False,
    shallow: bool = False,
) -> Comparison:
    """Pure. `baseline` is an older one of the same tenant. If it was only `guessed` that they have to do with each other, a
    change is a change only if more than their beginnings says so. `shallow` leaves changes alone: then the time does not
    grow with their texts. `common` is how many tokens `baseline.whole` begins with the same, for who knows it."""
    if common is None:
        common = common_tokens(record.ids, baseline.whole)
    settled = baseline.ended is not None
    common = min(common, baseline.known)
    parted = common < min(record.tokens, baseline.known)
    if not parted or shallow:
        return Comparison(baseline, common, None, settled)
    change = find_change(record, baseline, common, tokenizer, guessed=guessed)
    return Comparison(baseline, common, change, settled)


def conclude(record: Record, comparison: Comparison, *, page_size: int) -> Diagnosis:
    """Pure. `record` was admitted."""
    baseline, common, change = comparison.baseline, comparison.common, comparison.change
    if baseline is None:
        return Diagnosis(*_unexplained(record, page_size))
    usable = min(common, record.tokens - 1)
    reason, detail = _reason(record, baseline, change, usable, page_size)
    place = None if change is None else change.place
    return Diagnosis(reason, detail, common, min(usable, baseline.left), place)


def _reason(record: Record, baseline: Record, change: Change | None, usable: int, page_size: int) -> _Cause:
    found = _found(record) or _gone(record) or _lost(record, baseline, usable, page_size)
    if found is not None:
        return found
    return _unexplained(record, page_size) if change is None else (change.reason, change.detail)


def _lost(record: Record, baseline: Record, usable: int, page_size: int) -> _Cause | None:
    """Why what the two have in common was not found, if it was not. The rest of a page is no loss: it need not be kept."""
    missing = usable - record.hit
    if missing >= page_size or (missing > 0 and not record.hit):
        elsewhere = _elsewhere(record, baseline)
        if elsewhere is not None:
            return elsewhere
    if missing < page_size:
        return None
    unwritten = baseline.left < usable and baseline.left - record.hit < page_size
    return _never_there(record, baseline, unwritten=unwritten)


def _unexplained(record: Record, page_size: int) -> _Cause:
    """What the record says by itself."""
    if record.unseen and record.hit < page_size:
        return _found(record) or _gone(record) or ("restarted", {})
    return _found(record) or _gone(record) or ("partial_hit" if record.hit else "cold", {})


def _found(record: Record) -> _Cause | None:
    """All there could be, or nothing that was looked for."""
    if not record.policy.read:
        return "bypass", {"why": "read"}
    return ("hit", {}) if record.hit >= record.tokens - 1 else None


def _gone(record: Record) -> _Cause | None:
    """The engine remembers the page that would have come next."""
    evicted = None if record.start is None else record.start.evicted
    if evicted is None or evicted.cause == "replaced":
        return None
    detail: dict[str, object] = {"age": round(evicted.age, 3), "broken": evicted.broken}
    if evicted.cause == "expired":
        return "expired", detail
    if evicted.cause == "flushed":
        return "flushed", {"scope": "pages", **detail}
    return "evicted", {"cause": evicted.cause, **detail}


def _elsewhere(record: Record, baseline: Record) -> _Cause | None:
    """The one could not find what the other had left."""
    if record.model_digest != baseline.model_digest:
        return "model_changed", {"from": baseline.model, "to": record.model}
    if record.adapter != baseline.adapter:
        return "adapter_changed", {}
    if record.namespace != baseline.namespace:
        return _other_namespace(record, baseline)
    return ("restarted", {}) if record.instance != baseline.instance else None


def _other_namespace(record: Record, baseline: Record) -> _Cause:
    if record.generation != baseline.generation:
        return "flushed", {"scope": "tenant"}
    if record.salt != baseline.salt:
        return "namespace_changed", {"by": "cache_salt"}
    if record.key != baseline.key:
        return "prompt_cache_key_changed", {}
    return "namespace_changed", {"by": "server"}


def _never_there(record: Record, baseline: Record, *, unwritten: bool) -> _Cause:
    """The other left it too late, or not at all; else it is gone and nobody knows why."""
    if unwritten and (not baseline.policy.write or baseline.policy.write_tokens is not None):
        return "bypass", {"why": "baseline_write", "written": baseline.left}
    if baseline.ended is None or (record.started is not None and baseline.ended > record.started):
        return "in_flight", {}
    if unwritten:
        return "evicted", {"cause": None, "baseline": "unfinished", "written": baseline.left}
    return "evicted", {"cause": None}

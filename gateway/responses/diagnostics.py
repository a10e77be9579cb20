"""`prompt_cache_diagnostics` of a response: why it did not find all that another response had left in the cache.

In OpenAI's words, of which there are few: they say what a client changed. What a server lost (evicted, flushed, expired), or
what has no word there, is `unavailable`; /v1/caches/explain has words for all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ..caching.diagnoser import Diagnoser
from ..caching.diagnosis import Diagnosis
from ..caching.explain import INLINE_TOKENS
from ..caching.records import Record
from ..text_threads import TextThreads

Diagnostics = dict[str, Any]

NOT_FOUND: Diagnostics = {"type": "comparison_response_not_found"}
UNAVAILABLE: Diagnostics = {"type": "unavailable"}
HIT: Diagnostics = {"type": "cache_hit"}

_REASONS: Mapping[str, str] = {
    "model_changed": "model_changed",
    "adapter_changed": "model_changed",
    "prompt_cache_key_changed": "prompt_cache_key_changed",
    "tools_changed": "tools_changed",
    "system_changed": "input_changed",
    "message_edited": "input_changed",
    "reasoning_dropped": "input_changed",
    "template_rewrote_history": "input_changed",
    "template_kwargs_changed": "input_changed",
    "retokenized": "input_changed",
    "history_truncated": "context_compacted",
    "volatile_pattern": "input_changed",
}
"""The text's form changes no prompt here, so it is never a reason; and there is one tier of service, one verbosity."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    diagnoser: Diagnoser
    threads: TextThreads

    async def diagnostics(self, tenant: str, response_id: str, compared_id: str) -> Diagnostics:
        """Of a response that has been admitted. Never raises for what is not known, and never of another tenant's."""
        baseline = self.diagnoser.records.find(tenant, compared_id)
        record = self.diagnoser.records.find(tenant, response_id)
        if baseline is None or baseline is record:
            return NOT_FOUND if self.diagnoser.records.on else UNAVAILABLE
        if record is None or record.start is None:
            return UNAVAILABLE

        def work() -> Diagnostics:
            return told(record, baseline, self.diagnoser.diagnose(record, baseline))

        return work() if record.tokens <= INLINE_TOKENS else await self.threads.run(work)


def told(record: Record, baseline: Record, diagnosis: Diagnosis) -> Diagnostics:
    """Pure."""
    if diagnosis.reason in ("hit", "partial_hit"):
        return HIT
    reason = _REASONS.get(diagnosis.reason)
    if reason is None:
        return UNAVAILABLE
    if diagnosis.reason == "template_kwargs_changed" and _effort(record) != _effort(baseline):
        reason = "reasoning_effort_changed"
    return {
        "type": "cache_miss",
        "reason": reason,
        "cache_missed_tokens": record.tokens - min(diagnosis.common, record.tokens),
        "comparison_reusable_tokens": diagnosis.reusable,
    }


def _effort(record: Record) -> object:
    return orjson.loads(record.variables).get("reasoning_effort")

"""Diagnoses for a server: finds what to compare a record with, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable

from ..tokenizer import Tokenizer
from .common import common_tokens
from .diagnosis import NOTHING, Comparison, Diagnosis, compare, conclude
from .records import Record, Records

INLINE_TOKENS = 32_768
"""For longer prompts what changed is left for somebody to ask: telling takes more than the event loop has time for."""


class Diagnoser:
    def __init__(self, records: Records, tokenizer: Tokenizer, page_size: Callable[[], int]) -> None:
        """`page_size` is the engine's, asked for when a request has been admitted."""
        self.records = records
        self._tokenizer = tokenizer
        self._page_size = page_size

    def compare(self, record: Record) -> Comparison:
        """With the best of the tenant's other records. Some ten microseconds if their prompts go on alike or have nothing to
        do with each other, some hundred if something has changed."""
        baseline, common = self._best(record)
        if baseline is None:
            return NOTHING
        shallow = record.tokens > INLINE_TOKENS
        return compare(record, baseline, self._tokenizer, common=common, guessed=True, shallow=shallow)

    def reason(self, record: Record, comparison: Comparison | None = None) -> Diagnosis:
        """`comparison` is one made before the request was admitted. It is made again if others have gone on since."""
        if comparison is None or not comparison.settled or record.hit > comparison.common:
            comparison = self.compare(record)
        return conclude(record, comparison, page_size=self._page_size())

    def baseline(self, record: Record) -> Record | None:
        """The older record it has most in common with. One of the same `prompt_cache_key` is preferred if it has half as
        much in common."""
        return self._best(record)[0]

    def diagnose(self, record: Record, baseline: Record | None, *, guessed: bool = False) -> Diagnosis:
        """In full, however long that takes."""
        comparison = (
            NOTHING if baseline is None else compare(record, baseline, self._tokenizer, guessed=guessed)
        )
        return conclude(record, comparison, page_size=self._page_size())

    def _best(self, record: Record) -> tuple[Record | None, int]:
        """And how many tokens they have in common."""
        best, most = None, -1
        own, own_most = None, -1
        for other in self.records.alike(record):
            mine = record.key is not None and other.key == record.key
            if not _more(record, other, own_most if mine else most):
                continue
            common = common_tokens(record.ids, other.whole)
            if common > most:
                best, most = other, common
            if mine and common > own_most:
                own, own_most = other, common
        return (own, own_most) if own is not None and 2 * own_most >= most else (best, most)


def _more(record: Record, other: Record, common: int) -> bool:
    """Whether they may have more than so many tokens in common: said at the price of one comparison."""
    end = 4 * (common + 1)
    whole = other.ids if end <= len(other.ids) else other.whole
    return record.ids[:end] == whole[:end]

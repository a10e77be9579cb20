"""Sequences and plans for tests that drive a runner without a scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.batch import NO_MASKS, Masks, PageCopy, Plan, PlannedRow, RowResult, Runner
from engine.request import GenerationRequest, SamplingParams
from engine.sequence import Sequence


def make_sequence(
    uid: int, tokens: Iterable[int], pages: Iterable[int] = (), *, index: int = 0, **sampling: Any
) -> Sequence:
    """A running sequence that holds only its prompt. Sampling is greedy unless told otherwise."""
    prompt = list(tokens)
    params = SamplingParams(**{"max_tokens": 64, "temperature": 0.0, **sampling})
    request = GenerationRequest(request_id=f"r{uid}", prompt=prompt, sampling=params)
    return Sequence(
        uid=uid,
        request=request,
        index=index,
        tokens=list(prompt),
        prompt_len=len(prompt),
        arrival=0.0,
        pages=list(pages),
    )


def row_of(sequence: Sequence, count: int | None = None) -> PlannedRow:
    """The next `count` positions of a sequence, all by default; samples if they reach its end."""
    start = sequence.computed
    count = len(sequence.tokens) - start if count is None else count
    return PlannedRow(sequence, start, count, sample=start + count == len(sequence.tokens))


def run_rows(
    runner: Runner,
    *rows: PlannedRow,
    copies: tuple[PageCopy, ...] = (),
    retired: tuple[int, ...] = (),
    masks: Masks = NO_MASKS,
) -> tuple[RowResult, ...]:
    """One step, committed as a scheduler would: positions count as computed and sampled tokens are appended."""
    result = runner.run(Plan(0, rows, copies, retired), masks)
    for row, outcome in zip(rows, result.rows, strict=True):
        row.sequence.computed += row.count
        if outcome.token is not None:
            row.sequence.tokens.append(outcome.token)
    return result.rows

"""What compiling grammars may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileLimits:
    """Times are seconds of wall clock, sizes bytes.

    `deadline` is for one trial; `patience` for waiting and trial together. `memory` is what a worker may take besides
    what it shares with the others, `mask` what one mask of a trial may take of a CPU. `workers` grammars are compiled at
    once, `queue` more may wait. `kept` bounds the compiled grammars that are kept.
    """

    deadline: float = 2.0
    patience: float = 3.0
    mask: float = 0.25
    memory: int = 256 * 2**20
    workers: int = 2
    queue: int = 64
    kept: int = 64 * 2**20

"""The running state of one answer. The scheduler owns it; a runner only reads it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .request import GenerationRequest


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens[:prompt_len]` is the prompt, the rest was generated; KV exists for `tokens[:computed]`.

    `pages[i]` holds positions `i * page_size` up to the next page's first. `uid` is unique in the life of an engine and
    names the sequence to the runner's own per-sequence state.
    """

    uid: int
    request: GenerationRequest
    index: int
    tokens: list[int]
    prompt_len: int
    arrival: float
    status: Status = Status.WAITING
    computed: int = 0
    pages: list[int] = field(default_factory=list)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len

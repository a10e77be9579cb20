"""A plan for one step, what came of it, and the protocols of whoever carries it out and of what is allowed to come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from .request import FailureKind, TokenLogprob
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the KV of the first `tokens` positions of page `src` to page `dst`, before any row is computed."""

    src: int
    dst: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PageSave:
    """Keep what is in `page` in `slot` of the host's memory."""

    page: int
    slot: int


@dataclass(frozen=True, slots=True)
class PageLoad:
    """Bring what is in `slot` of the host's memory to `page`."""

    slot: int
    page: int


class PlannedRow(msgspec.Struct, frozen=True):
    """Compute `count >= 1` positions of a sequence from `start` on, reading KV of everything before them.

    The page table `sequence.pages` covers `start + count` positions. `sample` asks for a token after the last of them,
    which then is the sequence's newest known token.
    """

    sequence: Sequence
    start: int
    count: int
    sample: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. `retired` names sequences (by uid) that ended or lost their pages since the last plan.

    What a runner keeps for those goes before it looks at the rows: a sequence that was preempted comes back under its
    uid with all its tokens and other pages, and its runner state is built anew from them.

    The order is: `saves`, once, by whoever has the plan carried out, since the pages they read are about to be written;
    then, each time the step or a part of it is run, `loads`, `copies` and the rows. So a page may be saved, loaded into and
    copied from in one step. A slot is in one of these only: a load reads what an earlier step or a thread has brought.
    """

    step: int
    rows: tuple[PlannedRow, ...]
    copies: tuple[PageCopy, ...] = ()
    retired: tuple[int, ...] = ()
    saves: tuple[PageSave, ...] = ()
    loads: tuple[PageLoad, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


class RowResult(msgspec.Struct, frozen=True):
    """What a row brought: a token if it was to sample, log-probabilities if asked for, or why it failed.

    `prompt_logprobs` holds one item for each prompt position `p` with `start < p <= start + count`: the log-probability
    of prompt token `p`, known once position `p - 1` is computed. A row with `error` set fails its request alone; `fault`
    says whose fault it is. A row that was to sample and is `postponed` could not yet, and is to be run again.
    `forced` are tokens that have to follow `token`, because the sequence's grammar allows nothing else; they come without
    log-probabilities.
    """

    token: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    error: str | None = None
    fault: FailureKind = "engine_error"
    forced: tuple[int, ...] = ()
    postponed: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """`rows[i]` belongs to `plan.rows[i]`. Without `saved` the slots of `plan.saves` hold nothing of use."""

    rows: tuple[RowResult, ...]
    saved: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """What a loaded runner is and holds. `model_digest` covers weights, config and tokenizer; sizes are bytes.

    `deterministic`: what a row brings does not depend, to the last bit, on what it shares its step with, on where its
    sequence was cut into steps, or on which pages were computed before.
    """

    model_digest: str
    vocab_size: int
    max_model_len: int
    page_size: int
    pages: int
    page_bytes: int
    weight_bytes: int
    device: str
    dtype: str
    attention: str
    deterministic: bool


class Masks(Protocol):
    """What grammars allow the rows of a step. Filled while the step computes: to be asked as late as can be."""

    def of(self, row: PlannedRow) -> memoryview | RowResult | None:
        """For a row that samples: int32 words, of which bit `t % 32` of word `t // 32` allows token `t`; None allows all.

        A RowResult is all that comes of the row: it cannot be sampled, or not yet. May wait, but not for long.
        """
        ...


class NoMasks:
    """Every row is free."""

    def of(self, row: PlannedRow) -> None:
        return None


NO_MASKS = NoMasks()


class PageMemory(Protocol):
    """The bytes of pages, on the device and in slots of the host's memory. A page is `page_bytes` long everywhere.

    `save` and `load` are for the thread that runs steps. `read`, `write` and the bytes of a slot are for any thread, as long
    as whoever asks for it sees to it that nobody writes the page or slot meanwhile: a published page that is held is never
    written.
    """

    def reserve(self, slots: int) -> None:
        """Make the slots. Once, at the start. Raises MemoryError."""
        ...

    def save(self, saves: Iterable[PageSave]) -> None:
        """The slots can be read when this returns."""
        ...

    def load(self, loads: Iterable[PageLoad]) -> None:
        """The pages can be read by steps that are run after this."""
        ...

    def slot(self, slot: int) -> memoryview:
        """The bytes of a slot, to read and to write."""
        ...

    def read(self, page: int, into: memoryview) -> None: ...

    def write(self, page: int, data: memoryview) -> None:
        """`data` is of writable memory, though it is only read."""
        ...


class Runner(Protocol):
    """Carries out plans. Two implementations: the torch runner and the hash model."""

    @property
    def info(self) -> RunnerInfo: ...

    @property
    def memory(self) -> PageMemory: ...

    def run(self, plan: Plan, masks: Masks) -> StepResult:
        """Do the loads and copies, compute every row, sample what the masks allow. Raises only if the whole step is lost."""
        ...

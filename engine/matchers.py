"""Where each sequence is in its grammar: a matcher for each, from the first token that is sampled until its pages go."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from grammar.backends.base import Bits, Compiled
from grammar.errors import MatcherError
from grammar.matcher import Matcher
from grammar.vocabulary import Vocabulary

from .batch import NO_MASKS, Masks, Plan, RowResult, StepResult
from .masks import SHORTEST_WAIT, Mask, StepMasks, row_failure
from .request import GenerationRequest
from .runaway import TAIL, RunawayGuard, has_values
from .sequence import Sequence


@dataclass(slots=True)
class Place:
    """`matcher` is made when the first mask is filled. `mask` is None while the bits are those of an earlier token."""

    request_id: str
    bits: Bits
    guarded: bool = False
    matcher: Matcher | None = None
    mask: Mask | None = None
    restrained: bool = False


@dataclass(slots=True)
class Matchers:
    """For one thread. What may take long runs on `executor`, one call at a time for each sequence.

    With `forces` a token brings those that have to follow it. `guard` ends values that would not end by themselves.
    """

    executor: Executor
    vocabulary: Vocabulary
    forces: bool = True
    guard: RunawayGuard | None = None
    clock: Callable[[], float] = time.monotonic
    shortest_wait: float = SHORTEST_WAIT
    masked: int = 0
    postponed: int = 0
    failed: int = 0
    restrained: int = 0
    _grammars: dict[str, Compiled] = field(default_factory=dict)
    _places: dict[int, Place] = field(default_factory=dict)
    _masks: StepMasks | None = None  # of the step under way

    def follow(self, request_id: str, grammar: Compiled) -> None:
        """The answers of this request follow a grammar, until told to forget it."""
        self._grammars[request_id] = grammar

    def forget(self, request_id: str) -> None:
        """The request has ended, and all that was kept for it goes."""
        if self._grammars.pop(request_id, None) is not None:
            for uid in [uid for uid, place in self._places.items() if place.request_id == request_id]:
                del self._places[uid]

    def start(self, plan: Plan) -> Masks:
        """Begin to fill the masks of the rows that sample."""
        for uid in plan.retired:
            self._places.pop(uid, None)  # it may be filled right now: then it goes with that
        masks = {
            row.sequence.uid: self._mask(row.sequence)
            for row in plan.rows
            if row.sample and row.sequence.request.grammar is not None
        }
        self._masks = StepMasks(masks, self.clock, self.shortest_wait) if masks else None
        return self._masks or NO_MASKS

    def advance(self, plan: Plan, result: StepResult) -> StepResult:
        """Accept what was sampled, and what it forces. To be called once for a step, however often that was run."""
        if self._masks is None:
            return result
        self.failed += len(self._masks.failed)
        self._masks = None
        rows = list(result.rows)
        for index, row in enumerate(plan.rows):
            place = self._places.get(row.sequence.uid) if row.sample else None
            if place is not None:
                rows[index] = self._advance(place, row.sequence, rows[index])
        return StepResult(tuple(rows))

    def _mask(self, sequence: Sequence) -> Mask:
        place = self._places.get(sequence.uid)
        if place is None:
            bits = np.zeros(self.vocabulary.words, dtype=np.int32)
            place = self._places[sequence.uid] = Place(
                sequence.request.request_id, bits, guarded=self.guard is not None and _is_guarded(sequence)
            )
        if place.mask is None:
            place.mask = Mask(place.bits.data, self._fill(place, sequence), self.clock())
        return place.mask

    def _fill(self, place: Place, sequence: Sequence) -> Future[None]:
        if place.matcher is None:
            generated = sequence.tokens[sequence.prompt_len :]
            return self.executor.submit(self._begin, place, sequence.request, generated)
        if not place.guarded:
            return self.executor.submit(place.matcher.fill, place.bits)
        tail = sequence.tokens[max(sequence.prompt_len, len(sequence.tokens) - TAIL) :]
        return self.executor.submit(self._fill_guarded, place, place.matcher, tail)

    def _advance(self, place: Place, sequence: Sequence, outcome: RowResult) -> RowResult:
        if outcome.postponed:
            self.postponed += 1
            return outcome
        if outcome.token is None:
            return outcome
        place.mask = None
        self.masked += 1
        self.restrained += place.restrained
        try:
            assert place.matcher is not None, "what was never filled cannot have been sampled under a mask"
            place.matcher.accept(outcome.token)
            return structs.replace(outcome, forced=self._force(place.matcher, sequence))
        except Exception as error:  # noqa: BLE001 - whatever a backend raises ends its own row
            self.failed += 1
            return row_failure(error)

    def _force(self, matcher: Matcher, sequence: Sequence) -> tuple[int, ...]:
        """The tokens that have to come next, accepted; as many as the answer has room for after the sampled one."""
        sampling = sequence.request.sampling
        room = sampling.max_tokens - sequence.generated - 1
        if not self.forces or sampling.logprobs is not None or room <= 0:
            return ()
        forced = matcher.forced()[:room]
        for token in forced:
            matcher.accept(token)
        return forced

    def _begin(self, place: Place, request: GenerationRequest, generated: list[int]) -> None:
        """On another thread. A sequence that was preempted has tokens already: its new matcher goes where the old one was."""
        grammar = self._grammars.get(place.request_id)
        if grammar is None:
            raise MatcherError("the request has ended")
        matcher = Matcher(grammar, request.sampling.stop_token_ids, self.vocabulary)
        for token in generated:
            matcher.accept(token)
        place.matcher = matcher
        if place.guarded:
            self._fill_guarded(place, matcher, generated[-TAIL:])
        else:
            matcher.fill(place.bits)

    def _fill_guarded(self, place: Place, matcher: Matcher, tail: list[int]) -> None:
        """On another thread."""
        matcher.fill(place.bits)
        place.restrained = (
            self.guard is not None and not matcher.accepting and self.guard.restrain(place.bits, tail)
        )


def _is_guarded(sequence: Sequence) -> bool:
    grammar = sequence.request.grammar
    return grammar is not None and has_values(grammar)

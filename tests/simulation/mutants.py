"""Planted bugs, each a small change to one part. The simulation has to catch every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cache.prefix_cache import Cursor, Match, PrefixCache
from cache.radix import Node
from engine.batch import PageCopy, Plan, PlannedRow
from engine.group import Group, Member
from engine.page_tables import PageTables
from engine.request import FailureKind, FinishReason, GenerationRequest, TokenLogprob
from engine.scheduler import Scheduler
from engine.sequence import Status
from engine.single_flight import SingleFlight
from engine.waiting import WaitingQueue

from .world import Parts


class AbortKeepsPages(Scheduler):
    """The pages of an aborted sequence are never given back."""

    def abort(self, request_id: str, index: int | None = None) -> None:
        release = self.cache.release
        self.cache.release = lambda pages: None
        super().abort(request_id, index)
        self.cache.release = release


class EvictsReferenced(PrefixCache):
    """Eviction does not look whether a sequence holds the page, and frees it all the same."""

    def _evictable(self, node: Node) -> bool:
        return node.parent is not None and not node.keys

    def match(self, cursor: Cursor, tokens: Sequence[int]) -> Match:
        match = super().match(cursor, tokens)
        for page in match.pages[-1:]:
            node = self._node_of[page]
            if node is not None and not node.keys:
                self._push(node)
        return match

    def _drop(self, page: int) -> None:
        while self.pool.holders(page) > 1:
            self.pool.release(page)
        super()._drop(page)


class PublishesEarly(PrefixCache):
    """Pages are findable before they are computed."""

    def publish(self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int) -> None:
        super().publish(cursor, tokens, pages, min(len(tokens), len(pages) * self.page_size))


class PublishesTailTooLong(PrefixCache):
    """The tail of an ended sequence claims its last token, which was never forwarded."""

    def publish_tail(
        self, cursor: Cursor, tokens: Sequence[int], pages: Sequence[int], computed: int
    ) -> None:
        longer = min(computed + 1, len(tokens), len(pages) * self.page_size)
        super().publish_tail(cursor, tokens, pages, longer)


class FreesTwice(Scheduler):
    """The last page of a sequence is given back twice."""

    def _release(self, member: Member, *, keep: bool = True) -> None:
        last = member.pages[-1:]
        super()._release(member, keep=keep)
        self.cache.release(last)


class PreemptedGoesToTheBack(Scheduler):
    """A preempted sequence loses its place."""

    def _preempt(self, member: Member) -> None:
        super()._preempt(member)
        self._waiting.remove(member)
        member.preempted = False
        self._next_uid += 1
        member.uid = self._next_uid
        self._waiting.add(member)


class AbortsFirstChoiceOnly(Scheduler):
    """Aborting a request with n > 1 leaves its other choices running."""

    def abort(self, request_id: str, index: int | None = None) -> None:
        super().abort(request_id, 0 if index is None else index)


class MatchesOneTooMany(PrefixCache):
    """A partial match is taken for a token longer than it is."""

    def match(self, cursor: Cursor, tokens: Sequence[int]) -> Match:
        match = super().match(cursor, tokens)
        longer = match.tail_tokens + 1
        if match.tail is None or longer >= self.page_size or match.tokens(self.page_size) + 2 > len(tokens):
            return match
        return replace(match, tail_tokens=longer)


class MatchesWholePrompt(PrefixCache):
    """A match may cover the last token, which leaves nothing to compute."""

    def match(self, cursor: Cursor, tokens: Sequence[int]) -> Match:
        return super().match(cursor, [*tokens, -1])


class PinsUncounted(PrefixCache):
    """Pinning a page does not take it off the count of idle ones."""

    def _pin(self, node: Node) -> None:
        super()._pin(node)
        if self.pool.holders(node.page) == 2:
            self.idle += 1


class ForgetsGenerated(Scheduler):
    """The count of generated tokens misses the last of each sequence."""

    def _tell(
        self,
        member: Member,
        tokens: tuple[int, ...],
        logprob: TokenLogprob | None,
        finish: FinishReason | None,
    ) -> None:
        super()._tell(member, tokens, logprob, finish)
        if finish is not None and tokens:
            self._totals.generated_tokens -= 1


class WritesToSharedTail(PageTables):
    """A shared tail page goes into the page table itself instead of a copy."""

    def fill(self, member: Member, match: Match, reserve: int) -> bool:
        filled = super().fill(member, match, reserve)
        copy = self.copy_of(member)
        if copy is not None:
            self._cache.release([copy.dst])
            member.pages[member.pages.index(copy.dst)] = copy.src
            member.copy_source = None
        return filled


class ForgetsCopies(PageTables):
    """Copy-on-write pages are planned and never copied."""

    def copy_of(self, member: Member) -> PageCopy | None:
        return None


class DropsCopySourceEarly(PageTables):
    """The page to copy from is given up before the step that copies it is over."""

    def copy_of(self, member: Member) -> PageCopy | None:
        copy = super().copy_of(member)
        self.copied(member)
        return copy


class FinishesSilently(Scheduler):
    """The last delta of a sequence does not say that it is the last."""

    def _tell(
        self,
        member: Member,
        tokens: tuple[int, ...],
        logprob: TokenLogprob | None,
        finish: FinishReason | None,
    ) -> None:
        super()._tell(member, tokens, logprob, None)
        if finish is not None:
            self._end(member)


class FreesInFlight(Scheduler):
    """The pages of a sequence aborted in flight are free while the step still uses them."""

    def _end(self, member: Member) -> None:
        member.in_flight = False
        super()._end(member)


class LosesFollowers(SingleFlight):
    """Whoever waited for a leader that ended waits for ever."""

    def stop(self, member: Member) -> list[Member]:
        super().stop(member)
        return []


class NeverAges(WaitingQueue):
    """Who was overtaken does not remember it."""

    def admit(self, member: Member) -> None:
        super().admit(member)
        for other in self:
            other.overtaken = 0


class KeepsFailedPages(Scheduler):
    """What a failed step wrote stays findable."""

    def _release(self, member: Member, *, keep: bool = True) -> None:
        if not keep and member.status is Status.FINISHED:
            member.computed = min(len(member.tokens), len(member.pages) * self.page_size)
        super()._release(member, keep=True)


class IgnoresDeadlines(Scheduler):
    """Only a queued request is dropped at its deadline."""

    def _fail(self, group: Group, kind: FailureKind, message: str) -> None:
        if kind != "deadline" or not group.started:
            super()._fail(group, kind, message)


class StopsTooSoon(Scheduler):
    """A stop token counts before `min_tokens` are there."""

    def _finish_reason(self, member: Member, token: int) -> FinishReason | None:
        if (
            token in member.request.sampling.stop_token_ids
            or member.generated == member.request.sampling.min_tokens
        ):
            return "stop"
        return super()._finish_reason(member, token)


class FailsTwice(Scheduler):
    """A request that fails row by row fails once for each."""

    def _fail(self, group: Group, kind: FailureKind, message: str) -> None:
        for _ in list(group.members):
            super()._fail(group, kind, message)


class FailsEveryone(Scheduler):
    """A failed step takes all other requests along."""

    def fail_step(self, plan: Plan, message: str) -> None:
        super().fail_step(plan, message)
        for request_id in list(self._groups):
            self.fail_request(request_id, "engine_error", message)


class SamplesTooSoon(Scheduler):
    """A chunk that does not reach the end of the prompt samples as well."""

    def _add_row(self, member: Member, budget: int, members: list[Member], rows: list[PlannedRow]) -> int:
        count = super()._add_row(member, budget, members, rows)
        rows[-1] = replace(rows[-1], sample=True)
        return count


class HogsTheBudget(Scheduler):
    """Whoever is furthest ahead takes all that is left of a step."""

    def _catch_up(
        self, behind: list[Member], budget: int, members: list[Member], rows: list[PlannedRow]
    ) -> None:
        for member in behind:
            if budget:
                budget -= self._add_row(member, budget, members, rows)


class CountsPromptPerChoice(Scheduler):
    """With n > 1 the prompt is counted, and the start told, once for each choice."""

    def _start(self, member: Member) -> None:
        member.group.started = False
        super()._start(member)


class PageShort(Scheduler):
    """A sequence grows one position late, so that its last one has no page."""

    def _grow(self) -> None:
        for member in self._running.values():
            if len(member.tokens) == len(member.pages) * self.page_size + 1:
                return
        super()._grow()


class NeverForgets(Scheduler):
    """A tenant whose requests have ended stays known."""

    def submit(self, request: GenerationRequest) -> None:
        super().submit(request)
        group = self._groups.get(request.request_id)
        if group is not None:
            group.tenant.groups += 1


def with_tables(tables: type[PageTables]) -> Callable[..., Scheduler]:
    def build(**options: Any) -> Scheduler:
        scheduler = Scheduler(**options)
        scheduler._tables = tables(scheduler.cache)
        return scheduler

    return build


def with_queue(queue: type[WaitingQueue]) -> Callable[..., Scheduler]:
    def build(**options: Any) -> Scheduler:
        scheduler = Scheduler(**options)
        scheduler._waiting = queue()
        return scheduler

    return build


def with_single_flight(single_flight: type[SingleFlight]) -> Callable[..., Scheduler]:
    def build(**options: Any) -> Scheduler:
        scheduler = Scheduler(**options)
        scheduler._single_flight = single_flight(scheduler.page_size)
        return scheduler

    return build


MUTANTS: dict[str, Callable[[], Parts]] = {
    "namespace missing from the key": lambda: Parts(root_key=lambda namespace, adapter: adapter),
    "adapter missing from the key": lambda: Parts(root_key=lambda namespace, adapter: namespace),
    "NeverAges": lambda: Parts(scheduler=with_queue(NeverAges)),
    "LosesFollowers": lambda: Parts(scheduler=with_single_flight(LosesFollowers)),
    **{
        cls.__name__: (lambda cls=cls: Parts(scheduler=with_tables(cls)))
        for cls in (WritesToSharedTail, ForgetsCopies, DropsCopySourceEarly)
    },
    **{
        cls.__name__: (lambda cls=cls: Parts(scheduler=cls))
        for cls in (
            AbortKeepsPages,
            FreesTwice,
            PreemptedGoesToTheBack,
            AbortsFirstChoiceOnly,
            ForgetsGenerated,
            FinishesSilently,
            FreesInFlight,
            KeepsFailedPages,
            IgnoresDeadlines,
            StopsTooSoon,
            FailsTwice,
            FailsEveryone,
            SamplesTooSoon,
            HogsTheBudget,
            CountsPromptPerChoice,
            PageShort,
            NeverForgets,
        )
    },
    **{
        cls.__name__: (lambda cls=cls: Parts(cache=cls))
        for cls in (
            EvictsReferenced,
            PublishesEarly,
            PublishesTailTooLong,
            MatchesOneTooMany,
            MatchesWholePrompt,
            PinsUncounted,
        )
    },
}

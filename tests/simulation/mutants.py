"""Planted bugs, each a small change to one part. The simulation has to catch every one of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Set
from collections.abc import Sequence as Tokens
from concurrent.futures import Future
from dataclasses import replace
from operator import attrgetter
from typing import Any

from msgspec import structs

from cache.accounts import Account
from cache.cached_pages import CachedPages
from cache.cursor import Cursor
from cache.finding import Finder, Found, Path
from cache.flushing import Flushed
from cache.lease import FlushScope
from cache.leasing import Leasing
from cache.node import Node
from cache.prefix_cache import PrefixCache
from cache.publishing import Publisher
from cache.reading import Match
from cache.tiers.host import HostTier
from cache.tiers.index import TierPage
from cache.tiers.page import PageMeta
from cache.tombstones import Gone
from cache.writers import Writers
from engine.admission import Admission
from engine.batch import Masks, PageCopy, PageLoad, PageSave, Plan, RowResult, StepResult
from engine.draft import Draft
from engine.endings import Endings
from engine.entries import PendingEntries
from engine.group import Group, Member
from engine.groups import Groups
from engine.lower_tiers import LowerTiers
from engine.masks import Mask, StepMasks
from engine.matchers import Matchers, Place
from engine.outcomes import Outcomes
from engine.page_tables import PageTables, Prefix
from engine.preemption import Preemption
from engine.publications import Publications
from engine.request import FailureKind, FinishReason, GenerationRequest, TokenLogprob
from engine.roster import Roster
from engine.scheduler import Scheduler
from engine.sequence import Sequence, Status
from engine.single_flight import SingleFlight
from engine.waiting import WaitingQueue
from grammar.matcher import Matcher

from .world import Parts


class AbortKeepsPages(Scheduler):
    """The pages of an aborted sequence are never given back."""

    def abort(self, request_id: str, index: int | None = None) -> None:
        release = self.cache.release
        self.cache.release = lambda pages: None
        super().abort(request_id, index)
        self.cache.release = release


class EvictsReferenced(CachedPages):
    """Eviction does not look whether a sequence holds the page, and frees it all the same."""

    def hold(self, path: Tokens[Node]) -> list[int]:
        pages = super().hold(path)
        for node in path[-1:]:
            if not node.keys:
                self.offer(node)
        return pages

    def let_go(self, node: Node, page: int) -> int:
        while self.pool.holders(page) > 1:
            self.pool.release(page)
        return super().let_go(node, page)


class PublishesEarly(PrefixCache):
    """Pages are findable before they are computed."""

    def publish(self, cursor: Cursor, tokens: Tokens[int], pages: Tokens[int], computed: int) -> None:
        super().publish(cursor, tokens, pages, min(len(tokens), len(pages) * self.page_size))


class PublishesTailTooLong(PrefixCache):
    """The tail of an ended sequence claims its last token, which was never forwarded."""

    def publish_tail(self, cursor: Cursor, tokens: Tokens[int], pages: Tokens[int], computed: int) -> None:
        longer = min(computed + 1, len(tokens), len(pages) * self.page_size)
        super().publish_tail(cursor, tokens, pages, longer)


class FreesTwice(Endings):
    """The last page of a sequence is given back twice."""

    def release(self, member: Member, *, keep: bool) -> None:
        last = member.pages[-1:]
        super().release(member, keep=keep)
        self._tables._cache.release(last)


class PreemptedGoesToTheBack(Roster):
    """A preempted sequence loses its place."""

    __slots__ = ()

    def preempt(self, member: Member) -> None:
        super().preempt(member)
        self.waiting.remove(member)
        member.preempted = False
        member.uid += 10**6
        self.waiting.add(member)


class AbortsFirstChoiceOnly(Scheduler):
    """Aborting a request with n > 1 leaves its other choices running."""

    def abort(self, request_id: str, index: int | None = None) -> None:
        super().abort(request_id, 0 if index is None else index)


class MatchesOneTooMany(PrefixCache):
    """A partial match is taken for a token longer than it is."""

    def match(self, cursor: Cursor, tokens: Tokens[int]) -> Match:
        match = super().match(cursor, tokens)
        longer = match.tail_tokens + 1
        if match.tail is None or longer >= self.page_size or match.tokens(self.page_size) + 2 > len(tokens):
            return match
        return replace(match, tail_tokens=longer)


class MatchesWholePrompt(PrefixCache):
    """A match may cover the last token, which leaves nothing to compute."""

    def match(self, cursor: Cursor, tokens: Tokens[int]) -> Match:
        return super().match(cursor, [*tokens, -1])


class HoldsUncounted(CachedPages):
    """Holding a page does not take it off the count of idle ones."""

    def hold(self, path: Tokens[Node]) -> list[int]:
        idle = self.idle
        pages = super().hold(path)
        self.idle = idle
        return pages


class ForgetsGenerated(Outcomes):
    """The count of generated tokens misses the last of each sequence."""

    __slots__ = ()

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

    __slots__ = ()

    def fill(self, member: Member, prefix: Prefix, reserve: int) -> bool:
        filled = super().fill(member, prefix, reserve)
        copy = self.copy_of(member)
        if copy is not None:
            self._cache.release([copy.dst])
            member.pages[member.pages.index(copy.dst)] = copy.src
            member.copy_source = None
        return filled


class ForgetsCopies(PageTables):
    """Copy-on-write pages are planned and never copied."""

    __slots__ = ()

    def copy_of(self, member: Member) -> PageCopy | None:
        return None


class DropsCopySourceEarly(PageTables):
    """The page to copy from is given up before the step that copies it is over."""

    __slots__ = ()

    def copy_of(self, member: Member) -> PageCopy | None:
        copy = super().copy_of(member)
        self.copied(member)
        return copy


class FinishesSilently(Outcomes):
    """The last delta of a sequence does not say that it is the last."""

    __slots__ = ()

    def _tell(
        self,
        member: Member,
        tokens: tuple[int, ...],
        logprob: TokenLogprob | None,
        finish: FinishReason | None,
    ) -> None:
        super()._tell(member, tokens, logprob, None)
        if finish is not None:
            self._endings.end(member)


class FreesInFlight(Endings):
    """The pages of a sequence aborted in flight are free while the step still uses them."""

    def end(self, member: Member) -> None:
        member.in_flight = False
        super().end(member)


class LosesFollowers(SingleFlight):
    """Whoever waited for a leader that ended waits for ever."""

    __slots__ = ()

    def stop(self, member: Member) -> list[Member]:
        super().stop(member)
        return []


class NeverAges(WaitingQueue):
    """Who was overtaken does not remember it."""

    __slots__ = ()

    def admit(self, member: Member) -> None:
        super().admit(member)
        for other in self:
            other.overtaken = 0


class KeepsFailedPages(Endings):
    """What a failed step wrote stays findable."""

    def release(self, member: Member, *, keep: bool) -> None:
        if not keep and member.status is Status.FINISHED:
            member.computed = min(len(member.tokens), len(member.pages) * self._tables._page_size)
        super().release(member, keep=True)


class IgnoresDeadlines(Endings):
    """Only a queued request is dropped at its deadline."""

    def fail(self, group: Group, kind: FailureKind, message: str) -> None:
        if kind != "deadline" or not group.account.started:
            super().fail(group, kind, message)


class StopsTooSoon(Outcomes):
    """A stop token counts before `min_tokens` are there."""

    __slots__ = ()

    def _finish_reason(self, member: Member, token: int) -> FinishReason | None:
        if (
            token in member.request.sampling.stop_token_ids
            or member.generated == member.request.sampling.min_tokens
        ):
            return "stop"
        return super()._finish_reason(member, token)


class FailsTwice(Endings):
    """A request that fails row by row fails once for each."""

    def fail(self, group: Group, kind: FailureKind, message: str) -> None:
        for _ in list(group.members):
            super().fail(group, kind, message)


class FailsEveryone(Scheduler):
    """A failed step takes all other requests along."""

    def fail_step(self, plan: Plan, message: str) -> None:
        super().fail_step(plan, message)
        for group in list(self._groups):
            self.fail_request(group.request.request_id, "engine_error", message)


class SamplesTooSoon(Draft):
    """A chunk that does not reach the end of the prompt samples as well."""

    def add(self, member: Member, most: int) -> int:
        count = super().add(member, most)
        self.rows[-1] = structs.replace(self.rows[-1], sample=True)
        return count


class HogsTheBudget(Draft):
    """Whoever is furthest ahead takes all that is left of a step."""

    def catch_up(self) -> None:
        for member in self.behind:
            if self.budget:
                self.add(member, self.budget)


class CountsPromptPerChoice(Admission):
    """With n > 1 the prompt is counted, and the start told, once for each choice."""

    def _start(self, member: Member, gone: Gone | None) -> None:
        member.group.account.started = False
        super()._start(member, gone)


class PageShort(Preemption):
    """A sequence grows one position late, so that its last one has no page."""

    __slots__ = ()

    def grow(self) -> bool:
        for member in self._roster.running.values():
            if len(member.tokens) == len(member.pages) * self._page_size + 1:
                return True
        return super().grow()


class NeverForgets(Scheduler):
    """A tenant whose requests have ended stays known."""

    def submit(self, request: GenerationRequest, *, held: bool = False) -> bool:
        taken = super().submit(request, held=held)
        group = self._groups.find(request.request_id)
        if taken and group is not None:
            group.tenant.groups += 1
        return taken


class ForcesBeyondTheLimit(Outcomes):
    """Forced tokens are appended whether there is room for them or not."""

    __slots__ = ()

    def _append_forced(self, member: Member, forced: tuple[int, ...]) -> FinishReason | None:
        member.tokens += forced
        self._totals.forced_tokens += len(forced)
        return "length" if len(member.tokens) >= member.limit else None


class ForcesPastTheEnd(Outcomes):
    """A forced end token does not end the sequence."""

    __slots__ = ()

    def _append_forced(self, member: Member, forced: tuple[int, ...]) -> FinishReason | None:
        finish = super()._append_forced(member, forced)
        return None if finish == "stop" else finish


class TakesForcedForComputed(Outcomes):
    """Forced tokens count as computed, although no step has seen them."""

    __slots__ = ()

    def _append_forced(self, member: Member, forced: tuple[int, ...]) -> FinishReason | None:
        finish = super()._append_forced(member, forced)
        member.computed = len(member.tokens) - 1
        return finish


class GrowsByOnePage(PageTables):
    """Whatever was forced, a sequence gets one page."""

    __slots__ = ()

    def grow(self, member: Member) -> bool:
        pages = self._cache.allocate(1)
        member.pages += pages or []
        return pages is not None


class KeepsPostponedPosition(Scheduler):
    """A row that was not sampled counts as done all the same."""

    def commit(self, plan: Plan, result: StepResult) -> None:
        postponed = {row.sequence.uid for row, r in zip(plan.rows, result.rows, strict=True) if r.postponed}
        super().commit(plan, result)
        running = self._roster.running
        for uid in postponed & running.keys():
            running[uid].computed += 1


class ForgetsHeld(Roster):
    """Who is aborted while held still counts."""

    __slots__ = ()

    def leave(self, member: Member) -> None:
        super().leave(member)
        self.held += member.group.held


class QueuesHeld(Scheduler):
    """A held request is queued at once."""

    def submit(self, request: GenerationRequest, *, held: bool = False) -> bool:
        return super().submit(request) and (not held or request.request_id in self._groups)


class AcceptsTwice(Matchers):
    """A token is accepted in each attempt at a step."""

    def advance(self, plan: Plan, result: StepResult) -> StepResult:
        masks = self._masks
        super().advance(plan, result)
        self._masks = masks
        return super().advance(plan, result)


class ReplaysNothing(Matchers):
    """After a preemption a grammar begins anew."""

    def _mask(self, sequence: Sequence) -> Mask:
        return super()._mask(replace(sequence, tokens=sequence.tokens[: sequence.prompt_len]))


class MasksTheNextRow(Matchers):
    """Each row gets the mask of another."""

    def start(self, plan: Plan) -> Masks:
        masks = super().start(plan)
        if isinstance(masks, StepMasks):
            uids = list(masks._masks)
            masks._masks = dict(zip(uids[1:] + uids[:1], masks._masks.values(), strict=True))
        return masks


class MasksEverybody(Matchers):
    """A free row gets the mask of a constrained one."""

    def start(self, plan: Plan) -> Masks:
        masks = super().start(plan)
        if isinstance(masks, StepMasks):
            mask = next(iter(masks._masks.values()))
            masks._masks = {row.sequence.uid: mask for row in plan.rows} | dict(masks._masks)
        return masks


class DoesNotWait(Matchers):
    """A mask is used before it is filled."""

    def start(self, plan: Plan) -> Masks:
        masks = super().start(plan)
        if isinstance(masks, StepMasks):
            ready: Future[None] = Future()
            ready.set_result(None)
            masks._masks = {uid: replace(mask, filling=ready) for uid, mask in masks._masks.items()}
        return masks


class MasksOnce(Matchers):
    """The mask of a sequence's first token stays."""

    def _advance(self, place: Place, sequence: Sequence, outcome: RowResult) -> RowResult:
        mask = place.mask
        advanced = super()._advance(place, sequence, outcome)
        place.mask = mask
        return advanced


class ForcesUnaccepted(Matchers):
    """Forced tokens are appended, but the grammar does not follow."""

    def _force(self, matcher: Matcher, sequence: Sequence) -> tuple[int, ...]:
        return matcher.forced()


class FollowsForEver(Matchers):
    """Whose request ended keeps its grammar."""

    def forget(self, request_id: str) -> None:
        pass


class SilentAboutAborts(Scheduler):
    """A request that is aborted before it starts has no account."""

    def abort(self, request_id: str, index: int | None = None) -> None:
        super().abort(request_id, index)
        self._outbox.over = [group for group in self._outbox.over if group.account.started]


class AccountsTooSoon(Endings):
    """The account of a request that ends in a step does not wait for that."""

    def end(self, member: Member) -> None:
        super().end(member)
        account = member.group.account
        if account.landing and not member.group.members:
            account.landing = 0
            self._close_if_over(member.group)
            account.landing = 2


class CountsHitsAgain(Admission):
    """What a preempted sequence finds again is a hit once more."""

    def _start(self, member: Member, gone: Gone | None) -> None:
        super()._start(member, gone)
        if member.preempted:
            self._totals.cached_tokens += member.computed


class CountsWrittenAgain(Publications):
    """Tokens that are published again count again."""

    def _count_written(self, member: Member, known: int, end: int) -> None:
        member.group.account.written += self._cache.written_tokens - known


class ForgetsRecomputed(Roster):
    """What is computed again after a preemption is not told apart."""

    __slots__ = ()

    def preempt(self, member: Member) -> None:
        super().preempt(member)
        member.reached = 0


class LetsWaitingWrite(Groups):
    """A flush reaches the requests that run, and not those that wait."""

    def _new_member(self, group: Group, index: int) -> Member:
        member = super()._new_member(group, index)
        self._cache._writers._cursors.discard(member.cursor)
        return member


class WritesDespiteLimit(Groups):
    """What a request may publish is not bounded."""

    def _new_member(self, group: Group, index: int) -> Member:
        member = super()._new_member(group, index)
        if member.cursor.limit:
            member.cursor.limit = 10**6
        return member


class WritesDespitePolicy(Groups):
    """Who may not write does."""

    def _new_member(self, group: Group, index: int) -> Member:
        member = super()._new_member(group, index)
        if member.cursor.root_key is not None and not group.request.cache.write:
            member.cursor.limit = 10**6
        return member


class KeepsReservations(PendingEntries):
    """Room for pins stays reserved for a request that has ended."""

    def drop(self) -> None:
        self._specs.clear()


class ReservesNothing(PendingEntries):
    """Pins are promised, and room for them is hoped for."""

    def __init__(self, cache: PrefixCache, request: GenerationRequest, root_key: bytes) -> None:
        super().__init__(cache, request, root_key)
        for pages in self._reserved.values():
            cache.release_pins(request.tenant, pages)
        self._reserved.clear()


class TellsOfEveryEntry(PendingEntries):
    """Entries are told of whether they stand or not."""

    def put(self, cursor: Cursor, tokens: list[int], upto: int) -> list[str]:
        waiting = [spec.entry_id for spec in self._specs if spec.tokens <= upto]
        super().put(cursor, tokens, upto)
        self._specs.clear()
        return waiting


class FlushesNothingHere(PrefixCache):
    """A flush says what it would do, and does not do it."""

    def flush_in_parts(self, scope: FlushScope, *, dry_run: bool = False) -> Generator[None, None, Flushed]:
        return super().flush_in_parts(scope, dry_run=True)


class FlushForgetsWriters(Writers):
    """What runs in a flushed scope goes on to publish."""

    __slots__ = ()

    def silence(self, scope: FlushScope) -> None:
        pass

    def silence_on(self, removed: Set[Node]) -> None:
        pass


class FlushesOnTrial(PrefixCache):
    """A flush that is only to be tried is done."""

    def flush_in_parts(self, scope: FlushScope, *, dry_run: bool = False) -> Generator[None, None, Flushed]:
        return super().flush_in_parts(scope)


class LookingIsUsing(Finder):
    """What is looked up was used."""

    __slots__ = ()

    def look_up(self, root_key: bytes, tokens: Tokens[int]) -> Found:
        for node in self._pages.tree.walk(root_key, tokens, len(tokens) - 1).nodes:
            node.used = self._pages.clock()
        return super().look_up(root_key, tokens)


class FindsTheExpired(Finder):
    """A page can be found when its time is over."""

    __slots__ = ()

    def walk(self, root_key: bytes, tokens: Tokens[int], now: float) -> Path:
        return super().walk(root_key, tokens, -1e9)


class PaysWithTheLatest(Publisher):
    """A tenant above its quota pays before what it adds stands, perhaps with the page that it is added to."""

    def _publish_pages(self, cursor: Cursor, tokens: Tokens[int], pages: Tokens[int], full: int) -> Node:
        node = super()._publish_pages(cursor, tokens, pages, full)
        self._room.trim(node.root.account)
        return node


class ReadsDespitePolicy(PrefixCache):
    """Who may not read does."""

    def match(self, cursor: Cursor, tokens: Tokens[int]) -> Match:
        policy = cursor.policy
        cursor.policy = structs.replace(policy, read=True)
        match = super().match(cursor, tokens)
        cursor.policy = policy
        return match


class PinsNothing(CachedPages):
    """A hard pin is known, and goes like anything else."""

    def pin(self, node: Node) -> None:
        pass

    def unpin(self, node: Node) -> None:
        pass


class PinsEverything(Leasing):
    """There is always room for one pin more."""

    __slots__ = ()

    def _check_pins(self, node: Node, account: Account) -> None:
        pass

    def reserve_pins(self, tenant: str, tokens: int) -> int:
        return 0


class BelievesLostSaves(LowerTiers):
    """What a lost step was to save is taken for saved."""

    def settle(self, *, saved: bool) -> None:
        super().settle(saved=True)


class LoadsNothing(LowerTiers):
    """What is found below counts as there, and is never loaded."""

    def take(self) -> tuple[tuple[PageSave, ...], tuple[PageLoad, ...]]:
        saves, _ = super().take()
        return saves, ()


class LoadsInDisorder(LowerTiers):
    """Pages come up in each other's places."""

    def load(self, found: Tokens[TierPage], pages: Tokens[int]) -> int:
        return super().load(found, pages[::-1])


class LoadsUnpinned(LowerTiers):
    """A slot that is to be loaded from may be given away first."""

    def load(self, found: Tokens[TierPage], pages: Tokens[int]) -> int:
        from_disk = super().load(found, pages)
        self.let_go(found)
        return from_disk


class SavesTheNextPage(LowerTiers):
    """A page is saved from where another is."""

    def keep(self, meta: PageMeta, page: int, **standing: Any) -> bool:
        return super().keep(meta, max(page - 1, 0), **standing)


class FindsUnfilled(HostTier):
    """A page is found before its bytes have come."""

    def find(self, root: bytes, chain: bytes) -> TierPage | None:
        return self.index.get(root, chain)


class FlushesNothing(HostTier):
    """A flush of the host's memory forgets it."""

    def flush_roots(self, scope: FlushScope) -> int:
        return 0


def plant(whole: object, part: str, planted: type) -> None:
    """Make one part of something, by its attribute, one of another class: whoever knows it already deals with that."""
    attrgetter(part)(whole).__class__ = planted


def cache_with(part: str, planted: type) -> Callable[..., PrefixCache]:
    def build(*sizes: int, **options: Any) -> PrefixCache:
        cache = PrefixCache(*sizes, **options)
        plant(cache, part, planted)
        return cache

    return build


def scheduler_with(part: str, planted: type) -> Callable[..., Scheduler]:
    def build(**options: Any) -> Scheduler:
        scheduler = Scheduler(**options)
        plant(scheduler, part, planted)
        return scheduler

    return build


def with_draft(draft: type[Draft]) -> Callable[..., Scheduler]:
    class Planted(Scheduler):
        def _new_draft(self) -> Draft:
            return draft(self.max_step_tokens, self.max_step_tokens // self.max_running)

    return Planted


def with_entries(pending: type[PendingEntries]) -> Callable[..., Scheduler]:
    class Planted(Scheduler):
        def _pending_entries(
            self, request: GenerationRequest, root_key: bytes | None
        ) -> PendingEntries | None:
            made = super()._pending_entries(request, root_key)
            if made is None or root_key is None:
                return made
            made.drop()
            return pending(self.cache, request, root_key)

    return Planted


MUTANTS: dict[str, Callable[[], Parts]] = {
    "namespace missing from the key": lambda: Parts(root_key=lambda namespace, adapter: adapter),
    "adapter missing from the key": lambda: Parts(root_key=lambda namespace, adapter: namespace),
    **{
        cls.__name__: (lambda cls=cls: Parts(matchers=cls))
        for cls in (
            AcceptsTwice,
            ReplaysNothing,
            MasksTheNextRow,
            MasksEverybody,
            DoesNotWait,
            MasksOnce,
            ForcesUnaccepted,
            FollowsForEver,
        )
    },
    **{
        cls.__name__: (lambda cls=cls: Parts(tiers=cls))
        for cls in (BelievesLostSaves, LoadsNothing, LoadsInDisorder, LoadsUnpinned, SavesTheNextPage)
    },
    **{cls.__name__: (lambda cls=cls: Parts(host=cls)) for cls in (FindsUnfilled, FlushesNothing)},
    **{
        cls.__name__: (lambda cls=cls: Parts(scheduler=cls))
        for cls in (
            AbortKeepsPages,
            AbortsFirstChoiceOnly,
            FailsEveryone,
            NeverForgets,
            KeepsPostponedPosition,
            QueuesHeld,
            SilentAboutAborts,
        )
    },
    **{
        cls.__name__: (lambda part=part, cls=cls: Parts(scheduler=scheduler_with(part, cls)))
        for part, planted in (
            ("_roster", (PreemptedGoesToTheBack, ForgetsHeld, ForgetsRecomputed)),
            ("_roster.waiting", (NeverAges,)),
            ("_roster.single_flight", (LosesFollowers,)),
            ("_groups", (LetsWaitingWrite, WritesDespiteLimit, WritesDespitePolicy)),
            ("_tables", (WritesToSharedTail, ForgetsCopies, DropsCopySourceEarly, GrowsByOnePage)),
            ("_admission", (CountsPromptPerChoice, CountsHitsAgain)),
            ("_preemption", (PageShort,)),
            ("_publications", (CountsWrittenAgain,)),
            (
                "_outcomes",
                (
                    ForgetsGenerated,
                    FinishesSilently,
                    StopsTooSoon,
                    ForcesBeyondTheLimit,
                    ForcesPastTheEnd,
                    TakesForcedForComputed,
                ),
            ),
            (
                "_endings",
                (
                    FreesTwice,
                    FreesInFlight,
                    KeepsFailedPages,
                    IgnoresDeadlines,
                    FailsTwice,
                    AccountsTooSoon,
                ),
            ),
        )
        for cls in planted
    },
    **{
        cls.__name__: (lambda cls=cls: Parts(scheduler=with_draft(cls)))
        for cls in (SamplesTooSoon, HogsTheBudget)
    },
    **{
        cls.__name__: (lambda cls=cls: Parts(cache=cls))
        for cls in (
            PublishesEarly,
            PublishesTailTooLong,
            MatchesOneTooMany,
            MatchesWholePrompt,
            FlushesNothingHere,
            FlushesOnTrial,
            ReadsDespitePolicy,
        )
    },
    **{
        cls.__name__: (lambda part=part, cls=cls: Parts(cache=cache_with(part, cls)))
        for part, planted in (
            ("_pages", (EvictsReferenced, HoldsUncounted, PinsNothing)),
            ("_writers", (FlushForgetsWriters,)),
            ("_finder", (LookingIsUsing, FindsTheExpired)),
            ("_publisher", (PaysWithTheLatest,)),
            ("_leasing", (PinsEverything,)),
        )
        for cls in planted
    },
    **{
        cls.__name__: (lambda cls=cls: Parts(scheduler=with_entries(cls)))
        for cls in (KeepsReservations, ReservesNothing, TellsOfEveryEntry)
    },
}

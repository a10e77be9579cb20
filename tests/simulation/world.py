"""One seeded run of the scheduler among random clients and faults, with every invariant checked after every operation.

What is a step for a real engine is two operations here, so that aborts, flushes and deadlines fall between a plan and its
commit. Whatever the batching, chunking, caching and preemption, every token has to be the reference's.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from cache.accounts import Limits
from cache.lease import FlushScope
from cache.prefix_cache import PrefixCache
from cache.tiers.host import HostTier
from cache.tiers.page_file import PageKind
from engine import transfers
from engine.batch import Plan, RowResult, StepResult
from engine.cache_desk import CacheDesk
from engine.calibration import Calibration
from engine.hash_model import END_OF_TEXT, IM_END, SPECIALS, reference
from engine.lower_tiers import LowerTiers
from engine.matchers import Matchers
from engine.page_moves import PageMoves
from engine.request import (
    AskCache,
    AskEntry,
    CacheAnswer,
    CacheQuestion,
    FlushCache,
    FlushReport,
    GenerationRequest,
    LookUp,
    LookUpReport,
    RequestEnded,
    SamplingParams,
)
from engine.scheduler import Scheduler
from engine.sequence import Sequence, Status
from grammar.errors import DeadEnd
from grammar.spec import Lark
from grammar.vocabulary import byte_vocabulary
from tests.fakes import DiceGrammar, ManualClock, WordRunner

from .below import Below
from .cache_oracle import CacheOracle
from .policies import TENANTS, draw_lease, draw_limits, draw_namespace, draw_policy, draw_scope

OUR_MISTAKES = ("the model gave no token", "the engine failed while following the grammar")

BYTES = byte_vocabulary(259, SPECIALS)

Choice = tuple[str, int]
Place = tuple[int, int]  # by arrival: the request, then the choice


@dataclass(slots=True)
class Parts:
    """What a run is built from. A planted bug replaces one of them."""

    scheduler: Callable[..., Scheduler] = Scheduler
    matchers: Callable[..., Matchers] = Matchers
    cache: Callable[..., PrefixCache] = PrefixCache
    tiers: Callable[..., LowerTiers] = LowerTiers
    host: Callable[..., HostTier] = HostTier
    root_key: Callable[[bytes, bytes], bytes] = lambda namespace, adapter: namespace + b"/" + adapter


@dataclass(slots=True)
class _Client:
    """What one request's client has seen and may expect; in a grammar with a dead end, only up to there."""

    request: GenerationRequest
    order: int
    due: float | None
    expected: list[list[int]]
    got: list[list[int]]
    open: set[int]
    dead_end: bool
    started: bool = False
    cached: int = 0
    complete: bool = False
    whole: bool = True
    failed: bool = False
    written: int = 0
    closed: bool = False


@dataclass(slots=True)
class Report:
    operations: int
    digest: str
    finished: int
    below: int
    """Tokens that were found in lower tiers."""
    hits: int


@dataclass(slots=True)
class _Tally:
    generated: int = 0
    forced: int = 0
    computed: int = 0
    prompt: int = 0
    cached: int = 0
    below: int = 0
    aborted: int = 0
    looked_up: int = 0
    recomputed: int = 0
    steps: int = 0
    accounted: int = 0


class Simulation:
    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.seed = seed
        self.parts = parts or Parts()
        draw = self.random = random.Random(seed)
        self.page_size = draw.choice((1, 2, 2, 3, 4, 4, 8))
        self.pages = draw.randrange(32, 96) // self.page_size
        self.clock = ManualClock(draw.uniform(0, 100))
        self.max_length = draw.randrange(20, 60)
        self.cache = self._make_cache()
        self.oracle = CacheOracle(self.cache)
        self.oracle.watch()
        self.runner = WordRunner(self.pages, self.page_size)
        self.below: Below | None = None
        if self.cache.enabled and draw.random() < 0.6:
            slots = draw.randrange(1, 2 * self.pages)
            self.below = Below(
                draw,
                self.runner,
                self.clock,
                host=self.parts.host,
                tiers=self.parts.tiers,
                slots=slots,
                page_size=self.page_size,
            )
        max_running = draw.randrange(1, 7)
        self.budget = draw.randrange(max_running, 24)
        self.scheduler = self.parts.scheduler(
            cache=self.cache,
            max_running=max_running,
            max_step_tokens=self.budget,
            max_model_len=self.max_length,
            watermark_pages=draw.randrange(3),
            clock=self.clock,
            root_key=self.parts.root_key,
            tiers=None if self.below is None else self.below.tiers,
            saved=lambda tokens, cached, loading: float(cached),
        )
        self.desk = CacheDesk(
            self.scheduler, Calibration(self.budget), self.parts.root_key, self._make_moves()
        )
        self.patience = self.scheduler._roster.waiting.patience = draw.randrange(2, 6)
        self.passed: Counter[Place] = Counter()
        self.threads = _Threads(draw)
        self.matchers = self.parts.matchers(
            self.threads, BYTES, forces=draw.random() < 0.8, clock=self.clock, shortest_wait=0.0
        )
        self.held: list[str] = []
        self.grammars: dict[str, DiceGrammar] = {}
        self.bases = [[draw.randrange(3) for _ in range(40)] for _ in range(3)]
        self.clients: dict[str, _Client] = {}
        self.admitted: dict[Choice, Sequence] = {}
        self.running: set[Choice] = set()
        self.reached: Counter[Choice] = Counter()
        self.ended: list[str] = []
        self.entry_ids: dict[str, list[str]] = {}
        self.plan: Plan | None = None
        self.watched: set[int] = set()
        self.tally = _Tally()
        self.operations = 0
        self.submitted = 0
        self.finished = 0
        self.log = hashlib.blake2b(digest_size=8)

    def _make_cache(self) -> PrefixCache:
        draw = self.random
        enabled = draw.random() < 0.9
        limits = draw_limits(draw)
        while True:
            try:
                return self.parts.cache(
                    self.pages,
                    self.page_size,
                    clock=self.clock,
                    enabled=enabled,
                    limits=limits,
                    max_length=min(self.max_length, self.pages * self.page_size),
                    page_bytes=1,
                )
            except ValueError:  # so much cannot be promised
                limits = Limits()

    def _make_moves(self) -> PageMoves:
        """Without a disk: that is simulated apart."""
        kind = PageKind(model_digest="", dtype="words", page_size=self.page_size, page_bytes=1)
        place = transfers.Place(
            kind=kind, root_key=self.parts.root_key, vocab_size=259, max_length=self.max_length
        )
        memory: Any = self.runner  # which only a transfer would ask for anything
        return PageMoves(self.scheduler, memory, place, None, wake=lambda: None, clock=self.clock)

    # ---- running it --------------------------------------------------------------------------------------------------

    def run(self, operations: int) -> Report:
        """Random operations, then nothing but steps until all is done. Raises AssertionError, naming the seed."""
        try:
            for _ in range(operations):
                self._operate()
                self._check()
            self._drain()
        except Exception as error:
            raise AssertionError(f"SEED={self.seed} operation {self.operations}: {error!r}") from error
        return Report(
            self.operations, self.log.hexdigest(), self.finished, self.tally.below, self.oracle.hits
        )

    def _operate(self) -> None:
        self.operations += 1
        self.clock.now += self.random.uniform(0, 0.2)
        dice = self.random.random()
        if dice < 0.18:
            self._submit()
        elif dice < 0.24:
            self._abort()
        elif dice < 0.25:
            self._flush(draw_scope(self.random, self._any_entry()))
        elif dice < 0.255:
            self._change_entry()
        elif dice < 0.257:
            self._ask()
        elif dice < 0.26:
            self._lease_tip()
        elif dice < 0.265:
            self.cache.pool.deny(self.random.randrange(1, 4))
        elif dice < 0.27:
            self.clock.now += self.random.choice((3600, 20, 5))
        elif dice < 0.28:
            self._fail_one()
        elif dice < 0.305:
            self._release()
        elif dice < 0.325:
            self.threads.work()
        elif dice < 0.36 and self.below is not None:
            self.below.begin()
        else:
            self._step(self.random.random())
        self._hear()

    def _drain(self) -> None:
        self.cache.pool.deny(0)
        self.threads.busy = 0.0
        self.threads.work()
        while self.held:
            self._release()
        work = sum(len(c.request.prompt) + self.max_length for c in self.clients.values() for _ in c.open)
        for _ in range(4 * work + 100):
            if not self.scheduler.has_work:
                break
            self.operations += 1
            self._step(1.0)
            self._hear()
            self._check()
        assert not any(client.open for client in self.clients.values()), (
            "starved: work is left and none is done"
        )
        assert not self.scheduler.has_work
        assert all(client.closed for client in self.clients.values()), "no account came"
        assert self.tally.accounted == self.tally.computed, "what was computed is on no account"
        assert self.scheduler.counters().cache.recomputed_tokens == self.tally.recomputed
        assert not any(account.reserved for account in self.cache.accounts), "pins stay reserved for nobody"
        self._flush(FlushScope())
        if self.below is not None:
            self.below.drain()
        self.cache.reclaim()
        assert self.cache.pool.free == self.pages, "not everything came back"
        assert self.cache.survey().namespaces == 0, "an empty namespace stayed"
        assert not self.matchers._grammars, "a grammar is kept for nobody"
        assert not self.matchers._places, "a matcher is kept for nobody"

    # ---- the cache ---------------------------------------------------------------------------------------------------

    def _flush(self, scope: FlushScope) -> None:
        """First tried, then done in earnest: both say the same, and only one of them changes anything."""
        before = self.oracle.fingerprint()
        tried = self._told(FlushCache(0, scope, dry_run=True))
        assert self.oracle.fingerprint() == before, "a flush that was only tried has changed something"
        self.oracle.flushed(scope)
        flushed = self._told(FlushCache(0, scope))
        assert tried == flushed, "a flush does other than what it says"
        assert isinstance(flushed, FlushReport)
        if self.below is not None:
            self.below.flush(scope)
        self._log("flush", scope, flushed)

    def _told(self, question: CacheQuestion) -> CacheAnswer:
        """An answer, however long it takes."""
        answer = self.desk.answer(question)
        if answer is None:
            (answer,) = self.desk.work(math.inf)
        return answer

    def _ask(self) -> None:
        """Questions change nothing, and a prompt that is looked up would find just that."""
        before = self.oracle.fingerprint()
        tenant = self.random.choice(TENANTS)
        namespace = draw_namespace(self.random, tenant)
        prompt = self._draw_prompt()
        found = self.desk.answer(LookUp(0, prompt, namespace))
        assert isinstance(found, LookUpReport)
        longest = self.cache.peek(self.parts.root_key(namespace, b""), prompt)
        assert found.device == longest or (found.host and found.device < longest)
        self._told(AskCache(0, self.random.choice((None, *TENANTS))))
        self.desk.answer(AskEntry(0, self._any_entry()))
        assert self.oracle.fingerprint() == before, "a question has changed something"

    def _change_entry(self) -> None:
        name = self._any_entry()
        self.oracle.changed(name)
        if self.random.random() < 0.5:
            self.desk.answer(AskEntry(0, name, drop=True))
            assert self.cache.entry(name) is None, "a dropped entry is still there"
        else:
            self.desk.answer(AskEntry(0, name, lease=draw_lease(self.random)))

    def _lease_tip(self) -> None:
        if self.ended:
            self.scheduler.lease_tip(self.random.choice(self.ended[-8:]), draw_lease(self.random, pause=True))

    def _entry_id(self, tenant: str) -> str:
        """A new one, or one of the tenant's latest."""
        mine = self.entry_ids.setdefault(tenant, [])
        if mine and self.random.random() < 0.3:
            return self.random.choice(mine[-6:])
        mine.append(f"{tenant}{len(mine)}")
        return mine[-1]

    def _any_entry(self) -> str:
        return self.random.choice([name for names in self.entry_ids.values() for name in names] or ["none"])

    # ---- operations --------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        draw = self.random
        prompt = self._draw_prompt()
        sampling = SamplingParams(
            max_tokens=draw.choice((0, 1, 2, 5, 12, 30)),
            temperature=draw.choice((0.0, 1.0)),
            seed=draw.randrange(1000),
            stop_token_ids=draw.choice(((), (IM_END,), (40, 41, 42, 43, 44, 45, 46, 47))),
            min_tokens=draw.choice((0, 0, 3)),
            prompt_logprobs=draw.choice((None, None, None, 0)),
        )
        grammar = None
        if draw.random() < 0.4:
            grammar = DiceGrammar(draw.randrange(1000), dead_ends=draw.random() < 0.1)
            sampling = structs.replace(sampling, min_tokens=0, stop_token_ids=(IM_END, END_OF_TEXT))
        self.submitted += 1
        tenant = draw.choice(("a", *TENANTS))
        request = GenerationRequest(
            request_id=f"r{self.submitted}",
            prompt=prompt,
            sampling=sampling,
            n=draw.choice((1, 1, 1, 2, 4)),
            tenant=tenant,
            namespace=draw_namespace(draw, tenant),
            adapter=draw.choice((b"", b"", b"lora")),
            priority=draw.choice((0, 0, 0, 1)),
            deadline=draw.choice((None, None, None, 3.0)),
            cache=draw_policy(draw, len(prompt), lambda: self._entry_id(tenant)),
            grammar=None if grammar is None else Lark(str(grammar.seed)),
        )
        limit = min(self.max_length, self.pages * self.page_size)
        fits = len(prompt) + min(1, sampling.max_tokens) <= limit
        expected = [_reference(request, i, limit, grammar) if fits else ([], False) for i in range(request.n)]
        self.clients[request.request_id] = _Client(
            request,
            self.submitted,
            None if request.deadline is None else self.clock.now + request.deadline,
            [tokens for tokens, _ in expected],
            [[] for _ in range(request.n)],
            set(range(request.n)),
            any(dead_end for _, dead_end in expected),
        )
        self.oracle.submitted(request)
        if self.scheduler.submit(request, held=grammar is not None) and grammar is not None:
            self.grammars[request.request_id] = grammar
            self.held.append(request.request_id)

    def _draw_prompt(self) -> list[int]:
        draw = self.random
        base = draw.choice(self.bases)
        if draw.random() < 0.2:
            return base[: draw.choice((8, 24))]
        return base[: draw.randrange(30)] + [draw.randrange(3) for _ in range(draw.randrange(1, 12))]

    def _release(self) -> None:
        """A grammar is compiled, maybe for somebody who has gone."""
        if self.held:
            request_id = self.held.pop(self.random.randrange(len(self.held)))
            grammar = self.grammars.pop(request_id)
            if self.scheduler.release(request_id):
                self.matchers.follow(request_id, grammar)

    def _abort(self) -> None:
        client = self._any_client()
        if client is None:
            return
        index = self.random.choice((None, self.random.randrange(client.request.n)))
        ended = client.open if index is None else client.open & {index}
        self.tally.aborted += len(ended)
        self.scheduler.abort(client.request.request_id, index)
        self._hear()
        assert not (client.open if index is None else client.open & {index}), "an abort ended not all"

    def _fail_one(self) -> None:
        client = self._any_client()
        if client is not None:
            self.scheduler.fail_request(client.request.request_id, "engine_error", "preparation failed")
            self._hear()
            assert not client.open, "a failed request goes on"

    def _any_client(self) -> _Client | None:
        alive = [client for client in self.clients.values() if client.open]
        return self.random.choice(alive) if alive else None

    def _step(self, dice: float) -> None:
        """Make a plan, or carry out the one that was made."""
        if self.plan is None:
            self._plan()
        elif dice < 0.02:
            if self.random.random() < 0.5:
                self._run(self.plan)  # it is the commit that broke
            elif self.random.random() < 0.5:
                self.runner.save(self.plan)  # it broke after that
            self.runner.garble(self.plan)
            concerned = {row.sequence.request.request_id for row in self.plan.rows}
            alive = {name for name in self.clients if self.clients[name].open}
            self.scheduler.fail_step(self._landed(), "the forward raised")
            self._hear()
            failed = {name for name in alive if not self.clients[name].open}
            assert failed <= concerned, "a failed step took requests along that had no part in it"
        else:
            plan = self._landed()
            result = self._run(plan, twice=dice < 0.1)
            if dice < 0.05:
                result = self._spoil(plan, result)
            self.scheduler.commit(plan, result)
            self.tally.computed += plan.tokens
            self._count_recomputed(plan, result)

    def _count_recomputed(self, plan: Plan, result: StepResult) -> None:
        """Positions that a sequence had computed before. Of a request that fails only what came before its failure counts."""
        failed: set[str] = set()
        for row, outcome in zip(plan.rows, result.rows, strict=True):
            request_id = row.sequence.request.request_id
            if outcome.error is not None:
                failed.add(request_id)
            if request_id not in failed:
                choice = (request_id, row.sequence.index)
                end = row.start + row.count - outcome.postponed
                self.tally.recomputed += max(min(end, self.reached[choice]) - row.start, 0)
                self.reached[choice] = max(self.reached[choice], end)

    def _run(self, plan: Plan, *, twice: bool = False) -> StepResult:
        """As an engine does, who runs a step again if the first attempt raised."""
        saved = not plan.saves or self.random.random() < 0.95
        if saved:
            self.runner.save(plan)
        masks = self.matchers.start(plan)
        if twice:
            self.runner.run(plan, masks)
            self.runner.garble(plan)
        return replace(self.matchers.advance(plan, self.runner.run(plan, masks)), saved=saved)

    def _spoil(self, plan: Plan, result: StepResult) -> StepResult:
        """One row comes out as NaN, and so does what it wrote."""
        broken = self.random.randrange(len(plan.rows))
        row = plan.rows[broken]
        self.runner.garble(Plan(plan.step, (row,)))
        rows = list(result.rows)
        rows[broken] = RowResult(error="the logits are not finite")
        return replace(result, rows=tuple(rows))

    def _plan(self) -> None:
        before = set(self.running)
        queued = self._queued()
        preemptions = self.scheduler.counters().preemptions
        plan = self.plan = self.scheduler.plan()
        if preemptions < self.scheduler.counters().preemptions:
            queued.clear()  # somebody older came back and may have gone again: nobody here can tell
        overdue = [
            c for c in self.clients.values() if c.open and c.due is not None and c.due <= self.clock.now
        ]
        self._hear()
        assert not any(client.open for client in overdue), "a deadline passed unnoticed"
        if plan is None:
            return
        self.tally.steps += 1
        assert 0 < plan.tokens <= self.budget, "over the token budget"
        seen: set[Choice] = set()
        for row in plan.rows:
            sequence = row.sequence
            choice = (sequence.request.request_id, sequence.index)
            assert choice not in seen, "a sequence has two rows"
            seen.add(choice)
            end = row.start + row.count
            assert row.start == sequence.computed, "a row starts where nothing was computed before"
            assert end <= len(sequence.tokens)
            assert end <= len(sequence.pages) * self.page_size, "a row beyond its page table"
            assert row.sample == (end == len(sequence.tokens) and sequence.request.sampling.max_tokens > 0)
            self.admitted[choice] = sequence
            self.watched.update(sequence.pages)
            if choice not in before:
                self._check_order(sequence)
                self._check_patience(sequence, queued)
        for choice, sequence in self.admitted.items():
            assert choice in seen or sequence.status is not Status.RUNNING, "a running sequence stands still"
        self.watched.update(copy.src for copy in plan.copies)
        self._log("plan", [(r.sequence.uid, r.start, r.count) for r in plan.rows], plan.copies, plan.retired)

    def _landed(self) -> Plan:
        assert self.plan is not None
        plan = self.plan
        self.plan = None
        self.watched.clear()
        return plan

    # ---- what clients see --------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        events = self.scheduler.take_events()
        for started in events.started:
            client = self.clients[started.request_id]
            assert not client.started, "started twice"
            client.started = True
            self.tally.prompt += len(client.request.prompt)
            self.tally.cached += started.cached_tokens
            self.tally.below += started.host_tokens + started.disk_tokens
            assert started.host_tokens + started.disk_tokens <= started.cached_tokens
            client.cached = started.cached_tokens
            self._check_cached(client, started.cached_tokens)
        for cached in events.cached:
            client = self.clients[cached.request_id]
            assert client.started, "a prompt is complete that was not begun"
            assert not client.complete, "complete twice"
            assert not any(client.got), "a token before the prompt was complete"
            client.complete = True
            client.written = cached.written
        for delta in events.deltas:
            client = self.clients[delta.request_id]
            assert delta.index in client.open, "a delta after the end"
            got = client.got[delta.index]
            got += delta.tokens
            self.tally.generated += len(delta.tokens)
            self.tally.forced += max(len(delta.tokens) - 1, 0)
            assert client.complete or not delta.tokens, "a token before the prompt was complete"
            expected = client.expected[delta.index]
            assert got == expected[: len(got)], (
                f"{delta.request_id}[{delta.index}] differs from the reference"
            )
            assert client.started or delta.finish == "abort", "a delta before the start"
            client.whole &= delta.finish != "abort"
            if delta.finish is not None:
                client.open.remove(delta.index)
                self._check_finish(client, delta.index, delta.finish)
            if delta.index == 0 and delta.prompt_logprobs is not None:
                assert client.request.sampling.prompt_logprobs is not None
        for failed in events.failed:
            client = self.clients[failed.request_id]
            assert client.open, "a failure after the end"
            assert client.dead_end or failed.kind != "bad_grammar", f"no dead end: {failed.message}"
            assert failed.message not in OUR_MISTAKES, failed.message
            client.open.clear()
            client.whole = False
            client.failed = True
        for account in events.ended:
            self._check_account(self.clients[account.request_id], account)
            self.matchers.forget(account.request_id)
        if events.started or events.deltas or events.failed or events.ended:
            self._log(events.started, events.deltas, events.failed, events.cached, events.ended)

    def _check_account(self, client: _Client, account: RequestEnded) -> None:
        assert not client.closed, "two accounts"
        assert not client.open, "an account before the end"
        client.closed = True
        prompt = len(client.request.prompt)
        assert account.started == client.started
        assert account.cached == client.cached, "what was found at the admission is what counts"
        if (
            client.complete
        ):  # a failure takes back what was still to be published with the answer's first page
            lost = client.written - account.written
            assert lost == 0 or (client.failed and 0 < lost < self.page_size)
        assert account.cached + account.written <= prompt
        assert client.request.cache.write or not account.written
        assert account.generated == sum(map(len, client.got))
        assert account.saved == account.cached
        self.tally.accounted += account.computed
        self.ended.append(account.request_id)
        request = client.request
        root_key = self.parts.root_key(request.namespace, request.adapter)
        self.oracle.ended(request, account.entries, root_key, whole=client.whole)

    def _check_finish(self, client: _Client, index: int, finish: str) -> None:
        if finish == "abort":
            return
        got, sampling = client.got[index], client.request.sampling
        assert got == client.expected[index], "ended before the reference does"
        stopped = bool(got) and got[-1] in sampling.stop_token_ids and len(got) > sampling.min_tokens
        assert finish == ("stop" if stopped else "length")
        self.finished += 1

    def _check_cached(self, client: _Client, cached: int) -> None:
        request = client.request
        computes_all = request.sampling.prompt_logprobs is not None and 0 in client.open
        reads = request.cache.read and not computes_all
        self.oracle.started(request, cached, client.expected, reads=reads)
        if reads and self.cache.enabled:
            self.tally.looked_up += len(request.prompt)

    # ---- invariants --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.scheduler.check()
        self.running = {
            choice for choice, sequence in self.admitted.items() if sequence.status is Status.RUNNING
        }
        for page in self.watched:
            assert self.cache.pool.holders(page), "a page is free while a step in flight reads it"
        counters = self.scheduler.counters()
        tally = self.tally
        open_choices = sum(len(client.open) for client in self.clients.values())
        assert counters.running + counters.waiting == open_choices, "a choice is lost or counted twice"
        assert counters.running == len(self.running)
        assert counters.generated_tokens == tally.generated
        assert counters.forced_tokens == tally.forced
        assert counters.computed_tokens == tally.computed
        assert counters.prompt_tokens == tally.prompt
        assert counters.cached_tokens == tally.cached
        assert counters.aborted == tally.aborted
        assert counters.cache.looked_up_tokens == tally.looked_up
        assert counters.cache.saved == tally.cached
        assert counters.cache.recomputed_tokens <= tally.recomputed
        self.oracle.check()
        assert counters.steps == tally.steps
        assert sum(counters.step_sizes) <= counters.steps, "a step was counted in two sizes"
        assert counters.failed_checks == 0
        if self.operations % 64 == 0:
            self._forget()

    def _check_order(self, sequence: Sequence) -> None:
        """Whoever was preempted is not overtaken by a later arrival of its tenant and priority."""
        mine = self._place(sequence)
        for other in self.admitted.values():
            if other.status is Status.WAITING and _line(other) == _line(sequence):
                assert self._place(other) > mine, "a preempted sequence was overtaken"

    def _check_patience(self, sequence: Sequence, queued: set[Place]) -> None:
        """Whoever has queued longest sees no more than so many later arrivals go first."""
        self.passed.pop(self._place(sequence), None)
        oldest = min(queued, default=None)
        if (
            oldest is not None
            and oldest == min(self._queued(), default=None)
            and oldest < self._place(sequence)
        ):
            self.passed[oldest] += 1
            assert self.passed[oldest] <= self.patience, "the oldest is passed over again and again"

    def _queued(self) -> set[Place]:
        return {self._place(sequence) for sequence in self.scheduler._roster.waiting}

    def _place(self, sequence: Sequence) -> Place:
        return self.clients[sequence.request.request_id].order, sequence.index

    def _forget(self) -> None:
        """Keep the run's own cost from growing with its length."""
        self.admitted = {c: s for c, s in self.admitted.items() if s.status is not Status.FINISHED}
        self.clients = {
            name: client for name, client in self.clients.items() if client.open or not client.closed
        }

    def _log(self, *what: object) -> None:
        self.log.update(repr(what).encode())


class _Threads(Executor):
    """Fills masks at once, or, when it is `busy`, at some later time."""

    def __init__(self, draw: random.Random) -> None:
        self._random = draw
        self._waiting: list[Callable[[], None]] = []
        self.busy = 0.1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - as a pool of threads does
                future.set_exception(error)

        if self._random.random() < self.busy:
            self._waiting.append(run)
        else:
            run()
        return future

    def work(self) -> None:
        while self._waiting:
            self._waiting.pop()()


def _reference(
    request: GenerationRequest, index: int, limit: int, grammar: DiceGrammar | None
) -> tuple[list[int], bool]:
    """The tokens of a choice; and whether they end where its grammar leads nowhere."""
    if grammar is None:
        return reference(request.prompt, request.sampling, index, request.adapter, limit), False
    told: list[list[int]] = []

    def allowed(tokens: list[int]) -> int:
        told.append(tokens)
        bits = grammar.allowed(tokens, request.sampling.stop_token_ids)
        if not bits:
            raise DeadEnd
        return bits

    try:
        return reference(
            request.prompt, request.sampling, index, request.adapter, limit, allowed=allowed
        ), False
    except DeadEnd:
        return told[-1], True


def _line(sequence: Sequence) -> tuple[str, int]:
    return sequence.request.tenant, sequence.request.priority

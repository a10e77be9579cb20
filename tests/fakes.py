"""Stand-ins that more than one test file uses."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec import structs

from cache.lease import TIERS, FlushScope, Lease, TenantLimits, Tier
from engine.backlog import Backlog, Place, QueueLimits, QueueState
from engine.batch import NO_MASKS, Masks, Plan, PlannedRow, RowResult, StepResult
from engine.client import EngineHealth, EngineStatus, RequestStream
from engine.errors import EngineUnavailable, GrammarRefused, RequestFailure
from engine.hash_model import (
    FIRST_PRINTABLE,
    POISON,
    PRINTABLE,
    adapter_word,
    choose,
    mix64,
    permitted,
    position_word,
)
from engine.request import (
    CacheCounters,
    CacheReport,
    EngineCounters,
    EngineInfo,
    EntryReport,
    EntryState,
    Evicted,
    FailureKind,
    FinishReason,
    FlushReport,
    GenerationRequest,
    GrammarReady,
    GrammarReport,
    ImportPages,
    LookUpReport,
    PromptCached,
    RequestEnded,
    RequestStarted,
    SequenceDelta,
    StateReport,
    TenantCache,
    TokenLogprob,
    TransferReport,
)
from grammar.backends.base import Bits
from grammar.compiler import Compilation
from grammar.errors import BadGrammar
from grammar.spec import BackendName, Grammar, Lark

_WORD = (1 << 64) - 1

Script = Callable[[GenerationRequest, int], Sequence[int]]


def letters(request: GenerationRequest, index: int) -> Sequence[int]:
    """An endless answer of lower-case letters that depends on every prompt token, the choice and nothing else."""
    seed = zlib.crc32(repr((request.prompt, index)).encode())
    return [97 + (seed + position * 7) % 26 for position in range(request.sampling.max_tokens)]


def says(text: str, *, end: int | None = 257) -> Script:
    """Answers with `text`, in bytes, then with the token `end`."""
    tokens = [*text.encode(), *([] if end is None else [end])]
    return lambda request, index: tokens


def pages_of(prompt: list[int]) -> bytes:
    """What the fake engine exports of a prompt."""
    return np.array(prompt, "<u4").tobytes()


class FakeEngine:
    """An `EngineClient` without an engine: every answer comes from a script, on the event loop.

    `prefill_delay` passes before a request starts, `token_delay` before each token; `fail_after` tokens the request fails
    with `failure`. `running` and `aborted` tell what the client let go of. With `grammar_error` every grammar is refused;
    without it none constrains anything.
    """

    def __init__(self, script: Script = letters, *, max_model_len: int = 2048) -> None:
        self.script = script
        self.prefill_delay = 0.0
        self.token_delay = 0.0
        self.fail_after: int | None = None
        self.failure: RequestFailure = RequestFailure("the fake engine failed as told")
        self.too_far_behind = False
        self.backlog = Backlog(QueueLimits())
        self.cached_tokens = 0
        self.evicted: Evicted | None = None
        """What it remembers of the page that would have come next."""
        self.requests: list[GenerationRequest] = []
        self.aborted: list[tuple[str, int | None]] = []
        self.failpoints: list[str] = []
        self.grammar_error: str | None = None
        self.checked_grammars: list[Grammar] = []
        self.written_tokens: int | None = None
        """What requests add to the cache; None: what they do not find there."""
        self.flushed: list[tuple[FlushScope, bool]] = []
        self.leased_tips: list[tuple[str, Lease]] = []
        self.looked_up: list[tuple[bytes, list[int]]] = []
        self.entries: dict[str, EntryState] = {}
        self.tenants: tuple[TenantCache, ...] = ()
        self.keeps_entries = True
        self.exports: int | None = None
        """Tokens of a prompt that are exported; None: all."""
        self.export_padding = 0
        """Bytes behind the pages."""
        self.imported: list[ImportPages] = []
        self.entry_error: tuple[FailureKind, str] | None = None
        """What changes and moves of entries are refused with."""
        self.limits: tuple[dict[str, TenantLimits], TenantLimits] | None = None
        self.limits_error: str | None = None
        """What other limits are refused with."""
        self.found = LookUpReport(query_id=0)
        self.cache_counters = CacheCounters()
        self.status: EngineStatus = "ready"
        self.heartbeat_age = 0.0
        self.restarts = 0
        self.totals: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        """Tokens by request."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone: set[tuple[str, int]] = set()
        self._info = EngineInfo(
            model_digest="fa4e" * 16,
            vocab_size=259,
            max_model_len=max_model_len,
            max_running=64,
            max_step_tokens=512,
            page_size=16,
            pages=1024,
            page_bytes=16,
            weight_bytes=0,
            device="cpu",
            dtype="float32",
            attention="fake",
            load_seconds=0.0,
            pid=1,
        )

    # -- EngineClient --------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo | None:
        return None if self.status == "starting" else self._info

    @property
    def counters(self) -> EngineCounters:
        return EngineCounters(
            running=self.running,
            pages_total=1024,
            pages_free=1024,
            prompt_tokens=self.totals["prompt"],
            cached_tokens=self.totals["cached"],
            generated_tokens=self.totals["generated"],
            cache=self.cache_counters,
        )

    @property
    def health(self) -> EngineHealth:
        return EngineHealth(self.status, "as told", self.heartbeat_age, 1, self.restarts)

    @property
    def queue(self) -> QueueState:
        return self.backlog.state

    def reserve(self, tenant: str, requests: int) -> Place:
        self._check_ready()
        return self.backlog.reserve(tenant, requests)

    def submit(self, request: GenerationRequest, place: Place) -> RequestStream:
        self._check_ready()
        if self.too_far_behind:
            raise self.backlog.refusal("engine_behind", "The fake engine is too far behind.")
        self.backlog.submit(request, place)
        self.requests.append(request)
        stream = RequestStream(request, self._abort)
        task = asyncio.get_running_loop().create_task(self._serve(request, stream))
        self._tasks[request.request_id] = task
        task.add_done_callback(lambda _: self._ended(stream))
        return stream

    def _ended(self, stream: RequestStream) -> None:
        request = stream.request
        self.backlog.remove(request.request_id)
        del self._tasks[request.request_id]
        written = self._written(request)
        entries = tuple(spec.entry_id for spec in request.cache.entries)
        computed = len(request.prompt) + max(self.sent[request.request_id] - 1, 0) - self.cached_tokens
        account = RequestEnded(
            request.request_id, True, self.cached_tokens, written, computed, 0, 0.0, entries
        )
        stream.close_account(account)

    def _written(self, request: GenerationRequest) -> int:
        if self.written_tokens is not None:
            return self.written_tokens
        return len(request.prompt) - self.cached_tokens if request.cache.write else 0

    def _check_ready(self) -> None:
        if self.status != "ready":
            raise EngineUnavailable(f"The engine is {self.status}.", retry_after=2.0)

    async def state(self) -> StateReport:
        self._check_ready()
        return StateReport(
            query_id=0,
            counters=self.counters,
            pages_held=0,
            tree_nodes=0,
            tree_tokens=0,
            namespaces=0,
            phase="idle",
            uptime=1.0,
            rss_bytes=0,
            failpoints=tuple(self.failpoints),
        )

    async def check_grammar(self, grammar: Grammar) -> GrammarReport:
        self._check_ready()
        self.checked_grammars.append(grammar)
        if self.grammar_error is not None:
            return GrammarReport(query_id=0, kind="bad_grammar", error=self.grammar_error)
        return GrammarReport(query_id=0, backend="llguidance", seconds=0.001, nbytes=1000)

    def set_failpoint(self, spec: str) -> None:
        self.failpoints.append(spec)

    async def flush_cache(self, scope: FlushScope, *, dry_run: bool = False) -> FlushReport:
        self._check_ready()
        self.flushed.append((scope, dry_run))
        return FlushReport(query_id=0, pages={"device": 3}, tokens={"device": 48}, bytes={"device": 48})

    async def look_up(self, prompt: list[int], *, namespace: bytes, adapter: bytes = b"") -> LookUpReport:
        self._check_ready()
        self.looked_up.append((namespace, prompt))
        return self.found

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        self.leased_tips.append((request_id, lease))

    async def entry(
        self, entry_id: str, *, lease: Lease | None = None, to: Tier | None = None, drop: bool = False
    ) -> EntryReport:
        self._check_ready()
        entry = self.entries.get(entry_id)
        if self.entry_error is not None and (lease is not None or to is not None):
            return EntryReport(query_id=0, entry=entry, kind=self.entry_error[0], error=self.entry_error[1])
        if entry is not None and lease is not None:
            entry = self.entries[entry_id] = structs.replace(entry, lease=lease)
        if entry is not None and to is not None:
            places = {tier: entry.tokens if tier == to else 0 for tier in TIERS}
            entry = self.entries[entry_id] = structs.replace(entry, **places)
        if drop:
            self.entries.pop(entry_id, None)
        return EntryReport(query_id=0, entry=entry)

    async def cache_report(self, tenant: str | None = None) -> CacheReport:
        self._check_ready()
        entries = Counter(entry.tenant for entry in self.entries.values())
        owners = [
            structs.replace(each, entries=entries[each.tenant])
            for each in self.tenants
            if tenant in (None, each.tenant)
        ]
        return CacheReport(query_id=0, tenants=tuple(owners))

    async def set_limits(self, tenants: Mapping[str, TenantLimits], others: TenantLimits) -> str | None:
        self._check_ready()
        if self.limits_error is None:
            self.limits = (dict(tenants), others)
        return self.limits_error

    async def export_pages(
        self, path: str, prompt: list[int], *, namespace: bytes, adapter: bytes = b""
    ) -> TransferReport:
        self._check_ready()
        tokens = len(prompt) if self.exports is None else self.exports
        pages = pages_of(prompt[:tokens]) + bytes(self.export_padding)
        await asyncio.to_thread(Path(path).write_bytes, pages)
        return TransferReport(query_id=0, tokens=tokens, bytes=len(pages))

    async def import_pages(self, question: Callable[[int], ImportPages]) -> TransferReport:
        self._check_ready()
        self.imported.append(question(0))
        size = len(await asyncio.to_thread(Path(question(0).path).read_bytes))
        return TransferReport(query_id=0, tokens=size // 4, bytes=size)

    # -- the test's side -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Requests that are still being served."""
        return len(self._tasks)

    def die(self, error: RequestFailure) -> None:
        """Every request in flight ends with `error`, as when the engine process is killed."""
        self.failure = error
        self.fail_after = 0

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- answering -----------------------------------------------------------------------------------------------------

    def _abort(self, request_id: str, index: int | None) -> None:
        self.aborted.append((request_id, index))
        if index is not None:
            self._gone.add((request_id, index))
        elif (task := self._tasks.get(request_id)) is not None:
            task.cancel()

    async def _serve(self, request: GenerationRequest, stream: RequestStream) -> None:
        if self.prefill_delay:
            await asyncio.sleep(self.prefill_delay)
        if request.grammar is not None:
            if self.grammar_error is not None:
                stream.fail(GrammarRefused(self.grammar_error, too_complex=False))
                return
            stream.push(GrammarReady(request.request_id, "llguidance", 0.001, 1000))
        self.backlog.start(request.request_id)
        stream.push(RequestStarted(request.request_id, self.cached_tokens, 0.0, evicted=self.evicted))
        specs = request.cache.entries if self.keeps_entries else ()
        entries = tuple(spec.entry_id for spec in specs)
        stream.push(PromptCached(request.request_id, self._written(request), entries))
        for spec in specs:
            self.entries[spec.entry_id] = EntryState(
                entry_id=spec.entry_id,
                tenant=request.tenant,
                tokens=spec.tokens,
                device=spec.tokens,
                host=0,
                disk=0,
                lease=spec.lease,
                status="held",
                expires_in=spec.lease.ttl,
                hits=0,
                idle=0.0,
            )
        self.totals["prompt"] += len(request.prompt)
        self.totals["cached"] += self.cached_tokens
        answers = [_cut(self.script(request, i), request) for i in range(request.n)]
        for position in range(max(1, *(len(tokens) for tokens, _ in answers))):
            if self.fail_after is not None and position >= self.fail_after:
                stream.fail(self.failure)
                return
            await asyncio.sleep(self.token_delay)
            for index, (tokens, finish) in enumerate(answers):
                if not tokens and position == 0:
                    stream.push(SequenceDelta(request.request_id, index, (), finish))
                if position < len(tokens) and (request.request_id, index) not in self._gone:
                    stream.push(_delta(request, index, position, tokens, finish))
                    self.totals["generated"] += 1
                    self.sent[request.request_id] += 1


def _cut(tokens: Sequence[int], request: GenerationRequest) -> tuple[list[int], FinishReason]:
    sampling = request.sampling
    taken: list[int] = []
    if not sampling.max_tokens:
        return taken, "length"
    for token in tokens:
        taken.append(token)
        if token in sampling.stop_token_ids and len(taken) > sampling.min_tokens:
            return taken, "stop"
        if len(taken) == sampling.max_tokens:
            break
    return taken, "length"


def _delta(
    request: GenerationRequest, index: int, position: int, tokens: list[int], finish: FinishReason
) -> SequenceDelta:
    sampling = request.sampling
    first = position == 0 and index == 0
    return SequenceDelta(
        request.request_id,
        index,
        (tokens[position],),
        finish if position == len(tokens) - 1 else None,
        None if sampling.logprobs is None else (_logprob(tokens[position], sampling.logprobs),),
        _prompt_logprobs(request) if first and sampling.prompt_logprobs is not None else None,
    )


def _prompt_logprobs(request: GenerationRequest) -> tuple[TokenLogprob | None, ...]:
    count = request.sampling.prompt_logprobs or 0
    return (None, *(_logprob(token, count) for token in request.prompt[1:]))


def _logprob(token: int, count: int) -> TokenLogprob:
    """Token t has -t/100; the best others follow it in order."""
    return TokenLogprob(token, -token / 100, tuple((token + i, -(token + i) / 100) for i in range(count)))


@dataclass(slots=True)
class ManualClock:
    """A clock that moves when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class WordRunner:
    """The hash model in plain Python, for steps of a few rows: `HashRunner` without the cost of small arrays."""

    pages: int
    page_size: int
    words: list[list[int]] = field(init=False)
    slots: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = [[POISON] * self.page_size for _ in range(self.pages)]

    def reserve(self, slots: int) -> None:
        self.slots = [[POISON] * self.page_size for _ in range(slots)]

    def save(self, plan: Plan) -> None:
        for save in plan.saves:
            self.slots[save.slot] = list(self.words[save.page])

    def run(self, plan: Plan, masks: Masks = NO_MASKS) -> StepResult:
        for load in plan.loads:
            self.words[load.page] = list(self.slots[load.slot])
        for copy in plan.copies:
            blank = [POISON] * (self.page_size - copy.tokens)
            self.words[copy.dst] = self.words[copy.src][: copy.tokens] + blank
        for row in plan.rows:
            self._write(
                row.sequence.pages, row.sequence.tokens, row.start, row.count, row.sequence.request.adapter
            )
        return StepResult(
            tuple(self._sample(row, masks.of(row)) if row.sample else RowResult() for row in plan.rows)
        )

    def garble(self, plan: Plan) -> None:
        """Do what a step that breaks may do: leave anything where it was to write."""
        for load in plan.loads:
            self.words[load.page] = [1] * self.page_size
        for copy in plan.copies:
            self.words[copy.dst] = [1] * self.page_size
        for row in plan.rows:
            for position in range(row.start, row.start + row.count):
                self.words[row.sequence.pages[position // self.page_size]][position % self.page_size] = 1

    def _write(self, pages: list[int], tokens: list[int], start: int, count: int, adapter: bytes) -> None:
        size = self.page_size
        mixed = adapter_word(adapter)
        word = self.words[pages[(start - 1) // size]][(start - 1) % size] if start else 0
        for position in range(start, start + count):
            word = (word + position_word(tokens[position], position, mixed)) & _WORD
            page = self.words[pages[position // size]]
            if position % size == 0:
                page[:] = [POISON] * size
            page[position % size] = word

    def _sample(self, row: PlannedRow, mask: memoryview | RowResult | None) -> RowResult:
        if isinstance(mask, RowResult):
            return mask
        sequence = row.sequence
        length = row.start + row.count
        size = self.page_size
        fold = 0
        for ordinal in range(-(-length // size)):
            words = self.words[sequence.pages[ordinal]]
            first = ordinal * size
            for offset in range(min(size, length - first)):
                fold += (2 * (first + offset) + 1) * words[offset]
        token = choose(
            fold & _WORD, length, length - sequence.prompt_len, sequence.request.sampling, sequence.index
        )
        return RowResult(token if mask is None else permitted(token, int.from_bytes(mask, "little")))


@dataclass(frozen=True, slots=True)
class DiceGrammar:
    """A `Compiled` over the hash model's tokens: what may come next is drawn from `seed` and all tokens so far.

    Now a printable token is forced, now about half of them are barred, now only the end is left; with `dead_ends` nothing
    at all may be allowed.
    """

    seed: int
    dead_ends: bool = False
    backend: BackendName = "llguidance"
    nbytes: int = 1000

    def start(self) -> DiceCursor:
        return DiceCursor(self, [mix64(self.seed)])

    def allowed(self, tokens: Sequence[int], ends: Sequence[int]) -> int:
        """A bit for each token that may follow, the end tokens among them."""
        dice = mix64(self.seed)
        for token in tokens:
            dice = mix64(dice ^ token)
        bits, accepting = self.rule(dice)
        return bits | (sum(1 << end for end in ends) if accepting else 0)

    def rule(self, dice: int) -> tuple[int, bool]:
        """What may come next, and whether the text may end instead."""
        kind = dice % 16
        if kind < 7:
            return 1 << (FIRST_PRINTABLE + (dice >> 8) % PRINTABLE), False
        if kind == 7:
            return 0, True
        if kind == 8 and self.dead_ends:
            return 0, False
        halves = mix64(dice) | mix64(dice + 1) << 64 | 1
        return (halves & (1 << PRINTABLE) - 1) << FIRST_PRINTABLE, kind % 3 == 0


@dataclass(slots=True)
class DiceCursor:
    grammar: DiceGrammar
    dice: list[int]

    def fill(self, row: Bits) -> None:
        bits, _ = self.grammar.rule(self.dice[-1])
        row[:] = np.frombuffer(bits.to_bytes(4 * len(row), "little"), dtype=np.int32)

    def accept(self, token: int) -> bool:
        if not self.grammar.rule(self.dice[-1])[0] >> token & 1:
            return False
        self.dice.append(mix64(self.dice[-1] ^ token))
        return True

    def rollback(self, count: int) -> None:
        del self.dice[len(self.dice) - count :]

    def forced(self) -> list[int]:
        forced: list[int] = []
        dice = self.dice[-1]
        while len(forced) < 5 and dice % 16 < 7:
            forced.append(self.grammar.rule(dice)[0].bit_length() - 1)
            dice = mix64(dice ^ forced[-1])
        return forced

    def accepting(self) -> bool:
        return self.grammar.rule(self.dice[-1])[1]

    def exhausted(self) -> bool:
        return not self.grammar.rule(self.dice[-1])[0]


class FakeCompiler:
    """Makes a `DiceGrammar` of every `Lark` whose text is a number, when told to; refuses all else."""

    def __init__(self) -> None:
        self.pending: list[tuple[Grammar, Future[Compilation]]] = []
        self.seen: set[Grammar] = set()
        self.at_once = False
        self.closed = False
        self.warm = False
        self._wake: Callable[[], None] = lambda: None

    def start(self, wake: Callable[[], None]) -> FakeCompiler:
        """What an engine makes its compiler with."""
        self._wake = wake
        return self

    def submit(self, grammar: Grammar) -> Future[Compilation]:
        future: Future[Compilation] = Future()
        self.pending.append((grammar, future))
        if self.at_once:
            self.finish()
        return future

    def finish(self, count: int | None = None, *, error: Exception | None = None) -> None:
        """End the oldest `count` compilations, or all of them."""
        ending, self.pending = self.pending[:count], [] if count is None else self.pending[count:]
        for grammar, future in ending:
            if not future.set_running_or_notify_cancel():
                continue
            if error is not None:
                future.set_exception(error)
            elif not isinstance(grammar, Lark) or not grammar.text.isdigit():
                future.set_exception(BadGrammar("this is no grammar"))
            else:
                cached = grammar in self.seen
                future.set_result(Compilation(DiceGrammar(int(grammar.text)), 0.5, cached))
                self.seen.add(grammar)
        self._wake()

    def prewarm(self) -> None:
        self.warm = True

    def close(self) -> None:
        self.closed = True

"""A scheduler with the hash model behind it, driven step by step, with every invariant checked after each."""

from __future__ import annotations

from collections import defaultdict

from cache.accounts import Limits
from cache.prefix_cache import PrefixCache
from engine.batch import Plan, StepResult
from engine.hash_model import reference
from engine.request import (
    GenerationRequest,
    PromptCached,
    RequestEnded,
    RequestFailed,
    RequestStarted,
    SamplingParams,
    SequenceDelta,
)
from engine.scheduler import Scheduler
from tests.fakes import ManualClock, WordRunner

SIZE = 4
PAGE_BYTES = 64


class Bench:
    """A scheduler with a runner behind it, and what its clients have heard."""

    def __init__(
        self,
        *,
        pages: int = 64,
        max_running: int = 8,
        max_step_tokens: int = 32,
        max_model_len: int = 256,
        watermark_pages: int = 0,
        prefix_cache: bool = True,
        limits: Limits | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.cache = PrefixCache(
            pages,
            SIZE,
            clock=self.clock,
            enabled=prefix_cache,
            limits=limits,
            max_length=min(max_model_len, pages * SIZE),
            page_bytes=PAGE_BYTES,
        )
        self.scheduler = Scheduler(
            cache=self.cache,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            max_model_len=max_model_len,
            watermark_pages=watermark_pages,
            clock=self.clock,
            root_key=lambda namespace, adapter: namespace + b"/" + adapter,
        )
        self.runner = WordRunner(pages, SIZE)
        self.requests: dict[str, GenerationRequest] = {}
        self.tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.finish: dict[tuple[str, int], str] = {}
        self.started: dict[str, RequestStarted] = {}
        self.failed: dict[str, RequestFailed] = {}
        self.prompts: dict[str, PromptCached] = {}
        self.ended: dict[str, RequestEnded] = {}
        self.deltas: list[SequenceDelta] = []

    def submit(
        self, name: str, prompt: list[int], *, n: int = 1, max_tokens: int = 4, **options: object
    ) -> None:
        fields = {key: options.pop(key) for key in list(options) if key in SamplingParams.__struct_fields__}
        sampling = SamplingParams(max_tokens=max_tokens, **fields)  # type: ignore[arg-type]
        request = GenerationRequest(request_id=name, prompt=prompt, n=n, sampling=sampling, **options)  # type: ignore[arg-type]
        self.requests[name] = request
        self.scheduler.submit(request)
        self.hear()

    def plan(self) -> Plan | None:
        plan = self.scheduler.plan()
        self.scheduler.check()
        self.hear()
        return plan

    def commit(self, plan: Plan, result: StepResult | None = None) -> None:
        self.scheduler.commit(plan, self.runner.run(plan) if result is None else result)
        self.scheduler.check()
        self.hear()

    def step(self) -> list[tuple[str, int, int]]:
        """One step; what it computed, as (request, start, count)."""
        plan = self.plan()
        if plan is None:
            return []
        rows = [(row.sequence.request.request_id, row.start, row.count) for row in plan.rows]
        self.commit(plan)
        return rows

    def finish_all(self, limit: int = 1000) -> None:
        for _ in range(limit):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work
        for name, request in self.requests.items():
            if name not in self.failed:
                for index in range(request.n):
                    if self.finish[name, index] != "abort":
                        assert self.tokens[name, index] == self.expected(name, index)
        counters = self.scheduler.counters()
        assert counters.running == counters.waiting == counters.failed_checks == 0
        assert counters.pages_free + counters.pages_tree == counters.pages_total

    def expected(self, name: str, index: int = 0) -> list[int]:
        request = self.requests[name]
        return reference(request.prompt, request.sampling, index, request.adapter, self.scheduler.max_length)

    def hear(self) -> None:
        events = self.scheduler.take_events()
        for started in events.started:
            assert started.request_id not in self.started
            self.started[started.request_id] = started
        for cached in events.cached:
            assert cached.request_id not in self.prompts
            assert not self.tokens[cached.request_id, 0], "its first token came before"
            self.prompts[cached.request_id] = cached
        for delta in events.deltas:
            key = (delta.request_id, delta.index)
            assert key not in self.finish, "a delta after the last"
            self.deltas.append(delta)
            self.tokens[key] += delta.tokens
            if delta.finish is not None:
                self.finish[key] = delta.finish
        for failed in events.failed:
            self.failed.setdefault(failed.request_id, failed)
        for account in events.ended:
            assert account.request_id not in self.ended, "two accounts"
            assert not self.scheduler.serves(account.request_id)
            self.ended[account.request_id] = account

    def leave(self, name: str, prompt: list[int], **options: object) -> None:
        """Compute a prompt, leave it in the cache and generate nothing."""
        self.submit(name, prompt, max_tokens=0, **options)
        self.finish_all()

    def finds(self, prompt: list[int], *, namespace: bytes = b"") -> int:
        """How much of a prompt a request would find that is one token longer."""
        return self.cache.peek(namespace + b"/", [*prompt, 0])

    def cached(self, name: str) -> int:
        return self.started[name].cached_tokens


def prompt(length: int, first: int = 0) -> list[int]:
    return [first, *((i * 5) % 97 for i in range(1, length))]

"""The engine as a library: token ids in, token ids out, in this very process. No socket, no HTTP.

    llm = LLM("path/to/model")
    for completion in llm.generate([[1, 2, 3], [4, 5]], SamplingParams(max_tokens=16)):
        print(completion.answers[0].tokens)

Prompts may be text if the caller brings an `encode`; the engine itself knows none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cache.lease import CachePolicy, FlushScope, Lease, Tier
from grammar.spec import Grammar

from .assemble import assemble
from .batch import RunnerInfo
from .client import failure_from
from .config import EngineConfig
from .errors import RequestFailure
from .prepare import check_request
from .request import (
    AskCache,
    AskEntry,
    CacheAnswer,
    CacheQuestion,
    CacheReport,
    EngineCounters,
    EntryReport,
    FinishReason,
    FlushCache,
    FlushReport,
    GenerationRequest,
    LookUp,
    LookUpReport,
    RequestEnded,
    RequestFailed,
    RequestStarted,
    SamplingParams,
    SequenceDelta,
    StepOutput,
    TokenLogprob,
)

Answered = TypeVar("Answered", bound=CacheAnswer)
Event = RequestStarted | SequenceDelta | RequestFailed | RequestEnded


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice. `finish` is None if the request failed before it ended."""

    tokens: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What came of one request: `answers[i]` is choice i. With `error` set they are what there was until then.

    `account` is what it took from the engine and left in its cache.
    """

    request: GenerationRequest
    cached_tokens: int
    answers: tuple[Answer, ...]
    account: RequestEnded
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: RequestFailure | None = None


class LLM:
    """For one thread. Requests of several calls (a stream within a stream) share steps and the prefix cache."""

    def __init__(
        self, model: EngineConfig | str | Path, *, encode: Callable[[str], list[int]] | None = None
    ) -> None:
        """`model` is a directory in Hugging Face layout or a whole configuration. Raises StartError."""
        config = model if isinstance(model, EngineConfig) else EngineConfig(model_dir=str(model))
        self._engine = assemble(config)
        self._encode = encode
        self._counters = EngineCounters()
        self._collectors: dict[str, _Collector] = {}
        self._ids = (f"llm-{number}" for number in itertools.count(1))
        self._questions = itertools.count(1)

    @property
    def info(self) -> RunnerInfo:
        return self._engine.info

    @property
    def counters(self) -> EngineCounters:
        """As of the last step."""
        return self._counters

    def generate(
        self,
        prompts: Sequence[list[int] | str],
        sampling: SamplingParams | Sequence[SamplingParams],
        *,
        n: int = 1,
        grammar: Grammar | Sequence[Grammar | None] | None = None,
        tenant: str = "",
        cache: CachePolicy | Sequence[CachePolicy] | None = None,
    ) -> list[Completion]:
        """Answer all prompts together, in their order, with one sampling, grammar and policy for all or one for each.

        What they leave in the cache is their tenant's, and nobody else finds it.
        Under a grammar `stop_token_ids` are the tokens that may end an answer. Raises BadRequest before anything is
        computed. A request that fails later fails alone, one whose grammar is refused too: see `Completion.error`.
        """
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(each)} sampling parameters")
        grammars = grammar if isinstance(grammar, Sequence) else [grammar] * len(prompts)
        if len(grammars) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(grammars)} grammars")
        policies = cache if isinstance(cache, Sequence) else [cache] * len(prompts)
        if len(policies) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(policies)} cache policies")
        return self.answer(
            [
                self._request(prompt, one, n=n, grammar=grammar, tenant=tenant, cache=policy)
                for prompt, one, grammar, policy in zip(prompts, each, grammars, policies, strict=True)
            ]
        )

    def answer(self, requests: Iterable[GenerationRequest]) -> list[Completion]:
        """The same for requests made by hand, whose ids have to differ."""
        requests = list(requests)
        for request in requests:
            self._check(request)
        collectors = [self._submit(request) for request in requests]
        try:
            while not all(collector.done for collector in collectors):
                self._step()
        finally:
            for collector in collectors:
                self._forget(collector)
        return [collector.completion() for collector in collectors]

    def stream(
        self,
        prompt: list[int] | str,
        sampling: SamplingParams,
        *,
        n: int = 1,
        grammar: Grammar | None = None,
        tenant: str = "",
        cache: CachePolicy | None = None,
    ) -> Iterator[SequenceDelta]:
        """What each step adds, as it comes. Closing the iterator aborts. Raises BadRequest at once, RequestFailure late."""
        request = self._request(prompt, sampling, n=n, grammar=grammar, tenant=tenant, cache=cache)
        self._check(request)
        return self._stream(request)

    # ---- the cache ---------------------------------------------------------------------------------------------------

    def flush(self, scope: FlushScope | None = None, *, dry_run: bool = False) -> FlushReport:
        """Let nobody find what fits a scope, by default anything."""
        return self._ask(FlushCache(next(self._questions), scope or FlushScope(), dry_run), FlushReport)

    def look_up(self, prompt: list[int] | str, *, tenant: str = "", adapter: bytes = b"") -> LookUpReport:
        """What a prompt of this tenant would find. Changes nothing."""
        question = LookUp(next(self._questions), self._tokens(prompt), tenant.encode(), adapter)
        return self._ask(question, LookUpReport)

    def entry(
        self, entry_id: str, *, lease: Lease | None = None, to: Tier | None = None, drop: bool = False
    ) -> EntryReport:
        """How an entry is, after it was changed, moved or dropped as asked."""
        return self._ask(AskEntry(next(self._questions), entry_id, lease, to, drop), EntryReport)

    def cache_report(self, tenant: str | None = None) -> CacheReport:
        """What is cached, for one tenant or for all."""
        return self._ask(AskCache(next(self._questions), tenant), CacheReport)

    def lease_tip(self, request_id: str, lease: Lease) -> None:
        """Lease what the first choice of a request has left in the cache that ended a moment ago."""
        self._engine.lease_tip(request_id, lease)

    def close(self) -> None:
        """End the threads and processes that grammars needed. Without it they end with this process."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _stream(self, request: GenerationRequest) -> Iterator[SequenceDelta]:
        collector = self._submit(request)
        read = 0
        try:
            while True:
                new = collector.deltas[read:]
                read += len(new)
                yield from new
                if collector.error is not None:
                    raise collector.error
                if collector.done and read == len(collector.deltas):
                    return
                if not collector.done:
                    self._step()
        finally:
            self._forget(collector)

    def _request(
        self,
        prompt: list[int] | str,
        sampling: SamplingParams,
        *,
        n: int,
        grammar: Grammar | None,
        tenant: str,
        cache: CachePolicy | None,
    ) -> GenerationRequest:
        return GenerationRequest(
            request_id=next(self._ids),
            prompt=self._tokens(prompt),
            sampling=sampling,
            n=n,
            tenant=tenant,
            namespace=tenant.encode(),
            cache=cache or CachePolicy(),
            grammar=grammar,
        )

    def _tokens(self, prompt: list[int] | str) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        if self._encode is None:
            raise ValueError("prompts of text need an LLM with an encode function")
        return self._encode(prompt)

    def _ask(self, question: CacheQuestion, answer: type[Answered]) -> Answered:
        """Steps go on meanwhile, if an answer takes some."""
        self._engine.ask(question)
        while True:
            for report in self._engine.take_reports():
                if isinstance(report, answer) and report.query_id == question.query_id:
                    return report
            self._step()

    def _check(self, request: GenerationRequest) -> None:
        check_request(request, vocab_size=self.info.vocab_size, max_model_len=self._engine.max_length)

    def _submit(self, request: GenerationRequest) -> _Collector:
        collector = _Collector(request)
        self._collectors[request.request_id] = collector
        self._engine.submit(request)
        return collector

    def _forget(self, collector: _Collector) -> None:
        if not collector.done:
            self._engine.abort(collector.request.request_id)
        del self._collectors[collector.request.request_id]

    def _step(self) -> None:
        plan = self._engine.plan()
        if plan is not None:
            self._engine.commit(plan, self._engine.run(plan))
        news = self._engine.take_news()
        if news is not None:
            self._hand_out(news)
        elif plan is None:
            self._engine.wakeup.wait(self._engine.rest)

    def _hand_out(self, news: StepOutput) -> None:
        self._counters = news.counters
        events: tuple[Event, ...] = (*news.started, *news.deltas, *news.failed, *news.ended)
        for event in events:
            collector = self._collectors.get(event.request_id)
            if collector is not None:  # else aborted since
                collector.take(event)


@dataclass(slots=True)
class _Collector:
    request: GenerationRequest
    cached_tokens: int = 0
    deltas: list[SequenceDelta] = field(default_factory=list)
    error: RequestFailure | None = None
    account: RequestEnded | None = None

    @property
    def done(self) -> bool:
        """Its account is the last that is told of a request."""
        return self.account is not None

    def take(self, event: Event) -> None:
        match event:
            case RequestStarted():
                self.cached_tokens = event.cached_tokens
            case SequenceDelta():
                self.deltas.append(event)
            case RequestFailed():
                self.error = failure_from(event)
            case RequestEnded():
                self.account = event

    def completion(self) -> Completion:
        assert self.account is not None, "asked for before it was done"
        prompt = next((d.prompt_logprobs for d in self.deltas if d.prompt_logprobs is not None), None)
        answers = tuple(self._answer(index) for index in range(self.request.n))
        return Completion(self.request, self.cached_tokens, answers, self.account, prompt, self.error)

    def _answer(self, index: int) -> Answer:
        deltas = [delta for delta in self.deltas if delta.index == index]
        tokens = tuple(token for delta in deltas for token in delta.tokens)
        logprobs = None
        if self.request.sampling.logprobs is not None:
            logprobs = tuple(item for delta in deltas for item in delta.logprobs or ())
        return Answer(tokens, deltas[-1].finish if deltas else None, logprobs)

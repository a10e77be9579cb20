"""What Prometheus scrapes: our own names, and the `vllm:*` names that dashboards and inference gateways already know.

Observing costs a bisect and two additions, since it happens for every token; everything else is worked out when somebody
scrapes. All of it runs on the event loop, so nothing is locked. Labels come from fixed sets: routes, methods, statuses,
finish reasons, rejection reasons. The names of tenants are labels too, in what only the operator is given.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.backlog import Rejection
from engine.client import EngineClient
from engine.request import STEP_SIZES, EngineCounters

from .generation import Generation

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


GrammarRefusal = Literal["invalid", "unmet", "too_complex"]
"""Why a grammar is refused: it is none; it is a schema outside OpenAI's strict subset, or with a keyword that cannot be
enforced, where that is demanded; it asks for more than the limits allow."""

_VALID = {True: "true", False: "false", None: "unknown"}


class Histogram:
    """Counts of values by upper bound."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by bound, as Prometheus wants them."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows

    @property
    def sum(self) -> float:
        return self._sum


class Metrics(Collector):
    """Owns the gateway's counts. `render` is the scrape."""

    def __init__(self, model_name: str, engine: EngineClient) -> None:
        self._model = model_name
        self._engine = engine
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._by_tenant = CollectorRegistry(auto_describe=False)
        self._http: Counter[tuple[str, str, str]] = Counter()
        self._finished: Counter[str] = Counter()
        self._ended_early = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._generated_tokens = 0
        self.in_flight = 0
        self._first_token = Histogram(_SLOW)
        self._between_tokens = Histogram(_FAST)
        self._per_token = Histogram(_FAST)
        self._whole = Histogram(_SLOW)
        self._queued = Histogram(_SLOW)
        self._prefill = Histogram(_SLOW)
        self._decode = Histogram(_SLOW)
        self._inference = Histogram(_SLOW)
        self._prompt_length = Histogram(_TOKENS)
        self._answer_length = Histogram(_TOKENS)
        self._compiled = Histogram(_FAST)
        self._compile_hits = 0
        self._audits: Counter[bool] = Counter()
        self._grammar_refusals: Counter[GrammarRefusal] = Counter()
        self._violations = 0
        self._schema_checks: Counter[str] = Counter()

    def http_request(self, route: str, method: str, status: int) -> None:
        self._http[route, method, str(status)] += 1

    def grammar_refused(self, reason: GrammarRefusal) -> None:
        self._grammar_refusals[reason] += 1

    def grammar_compiled(self, seconds: float, *, cached: bool) -> None:
        if cached:
            self._compile_hits += 1
        else:
            self._compiled.observe(seconds)

    def schema_read(self, *, known: bool) -> None:
        """A request came with a schema, one of those known or a new one."""
        self._audits[known] += 1

    def schema_checked(self, *, valid: bool | None) -> None:
        """A finished text was held against its schema because not all of that was enforced; None: it would have taken
        too long."""
        self._schema_checks[_VALID[valid]] += 1

    def schema_violated(self) -> None:
        """An answer broke what was enforced: a bug of ours."""
        self._violations += 1

    def generation_ended(self, generation: Generation) -> None:
        """Take stock of a request, finished or not."""
        usage, timing = generation.usage, generation.timing
        if generation.grammar is not None:
            seconds = generation.grammar.seconds
            self.grammar_compiled(seconds, cached=seconds == 0)
        last_token = max(choice.last_token for choice in generation.choices)
        self._prompt_tokens += usage.prompt
        self._cached_tokens += usage.cached
        self._generated_tokens += usage.completion
        for gap in generation.gaps:
            self._between_tokens.observe(gap)
        if timing.first_token:
            self._first_token.observe(timing.first_token - timing.submitted)
            started = timing.started or timing.submitted
            self._queued.observe(started - timing.submitted)
            self._prefill.observe(timing.first_token - started)
            self._decode.observe(last_token - timing.first_token)
            self._inference.observe(last_token - started)
        unfinished = [choice for choice in generation.choices if choice.finish is None]
        if unfinished:
            self._ended_early += 1
            self._finished["abort"] += len(unfinished)
        for choice in generation.choices:
            if choice.finish is not None:
                self._finished[choice.finish] += 1
                self._answer_length.observe(choice.tokens)
                if choice.tokens > 1:
                    self._per_token.observe((choice.last_token - timing.first_token) / (choice.tokens - 1))
        if not unfinished:
            self._whole.observe(last_token - timing.submitted)
            self._prompt_length.observe(usage.prompt)

    def register(self, collector: Collector, *, by_tenant: bool = False) -> None:
        """More to scrape. What names tenants is `by_tenant`."""
        (self._by_tenant if by_tenant else self._registry).register(collector)

    def render(self, *, operator: bool = False) -> bytes:
        """For somebody who may use the API, or for the `operator`."""
        text = generate_latest(self._registry)
        return text + generate_latest(self._by_tenant) if operator else text

    # -- scraping ------------------------------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        yield from self._own()
        yield from self._compatible()

    def describe(self) -> Iterable[Metric]:
        return []

    def _own(self) -> Iterator[Metric]:
        http = CounterMetricFamily(
            "headwater_http_requests", "HTTP requests answered.", labels=["route", "method", "status"]
        )
        for labels, count in self._http.items():
            http.add_metric(labels, count)
        yield http
        rejected = CounterMetricFamily(
            "headwater_rejected_requests", "Requests refused because something was full.", labels=["reason"]
        )
        queue = self._engine.queue
        for reason in get_args(Rejection):
            rejected.add_metric([reason], queue.rejected.get(reason, 0))
        yield rejected
        counters, health, info = self._engine.counters, self._engine.health, self._engine.info
        yield self._counter(
            "headwater_aborted_requests", "Requests that ended before their answer did.", self._ended_early
        )
        yield self._gauge("headwater_requests_in_flight", "HTTP requests being served.", self.in_flight)
        yield self._gauge("headwater_queued_requests", "Requests let in and not started.", queue.requests)
        yield self._gauge("headwater_queued_tokens", "Prompt tokens of queued requests.", queue.tokens)
        yield self._gauge(
            "headwater_engine_up", "1 while the engine takes requests.", health.status == "ready"
        )
        yield self._gauge(
            "headwater_engine_heartbeat_age_seconds",
            "Time since the engine was heard of.",
            health.heartbeat_age,
        )
        yield self._counter(
            "headwater_engine_restarts", "Times the engine was started again.", health.restarts
        )
        yield self._counter("headwater_engine_steps", "Steps since the engine started.", counters.steps)
        yield self._counter(
            "headwater_computed_tokens",
            "Positions computed since the engine started.",
            counters.computed_tokens,
        )
        yield self._counter(
            "headwater_evicted_pages", "Cached pages given up for new ones.", counters.evicted_pages
        )
        yield self._counter(
            "headwater_failed_checks", "Broken invariants seen by the scheduler.", counters.failed_checks
        )
        yield self._gauge("headwater_pages_total", "KV pages of the engine.", counters.pages_total)
        yield self._gauge("headwater_pages_free", "KV pages that hold nothing.", counters.pages_free)
        yield self._gauge("headwater_pages_cached", "KV pages of the prefix cache.", counters.pages_tree)
        yield self._gauge(
            "headwater_max_model_len", "Longest context in tokens.", info.max_model_len if info else 0
        )
        yield from self._structured()
        yield from self._latencies("headwater_")

    def _structured(self) -> Iterator[Metric]:
        yield self._counter("headwater_schemas_read", "Schemas that were new.", self._audits[False])
        yield self._counter("headwater_schema_hits", "Schemas that were known.", self._audits[True])
        yield self._counter(
            "headwater_grammar_hits", "Grammars that were compiled already.", self._compile_hits
        )
        compiled = HistogramMetricFamily(
            "headwater_grammar_compile_seconds", "Time to compile a grammar.", labels=["model_name"]
        )
        compiled.add_metric([self._model], buckets=self._compiled.buckets(), sum_value=self._compiled.sum)
        yield compiled
        refused = CounterMetricFamily(
            "headwater_grammar_refusals", "Requests refused for their grammar.", labels=["reason"]
        )
        for reason in get_args(GrammarRefusal):
            refused.add_metric([reason], self._grammar_refusals[reason])
        yield refused
        checked = CounterMetricFamily(
            "headwater_schema_checks",
            "Answers checked for what their schema asks beyond what was enforced.",
            labels=["valid"],
        )
        for valid in _VALID.values():
            checked.add_metric([valid], self._schema_checks[valid])
        yield checked
        counters = self._engine.counters
        yield self._gauge(
            "headwater_grammars_compiling",
            "Requests that wait for their grammar.",
            counters.grammars.compiling,
        )
        yield self._counter(
            "headwater_masked_tokens", "Tokens sampled under a grammar.", counters.grammars.masked_rows
        )
        yield self._counter(
            "headwater_postponed_tokens",
            "Times a token waited a step for its mask.",
            counters.grammars.postponed_rows,
        )
        yield self._counter(
            "headwater_forced_tokens",
            "Tokens a grammar left no choice about, which were not sampled.",
            counters.forced_tokens,
        )
        yield self._counter(
            "headwater_restrained_tokens",
            "Tokens that a string or number which would not end was held to its end by.",
            counters.grammars.restrained_rows,
        )
        yield self._counter(
            "headwater_grammar_failures",
            "Sequences whose grammar could not be followed.",
            counters.grammars.failed_rows,
        )
        yield self._counter(
            "headwater_schema_violations",
            "Answers withheld because they broke an enforced schema.",
            self._violations,
        )

    def _compatible(self) -> Iterator[Metric]:
        counters = self._engine.counters
        used = counters.pages_total - counters.pages_free - counters.pages_tree
        yield self._gauge("vllm:num_requests_running", "Sequences being computed.", counters.running)
        yield self._gauge("vllm:num_requests_waiting", "Sequences waiting.", counters.waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc",
            "Share of KV pages in use by requests, 0 to 1.",
            used / counters.pages_total if counters.pages_total else 0.0,
        )
        yield self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", counters.prompt_tokens)
        yield self._counter("vllm:prefix_cache_hits", "Prompt tokens found.", counters.cached_tokens)
        yield self._counter("vllm:num_preemptions", "Sequences set back to make room.", counters.preemptions)
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of ended requests.", self._prompt_tokens)
        yield self._counter("vllm:prompt_tokens_cached", "Those found in the cache.", self._cached_tokens)
        yield self._counter(
            "vllm:generation_tokens", "Generated tokens of ended requests.", self._generated_tokens
        )
        finished = CounterMetricFamily(
            "vllm:request_success", "Ended answers.", labels=["model_name", "finished_reason"]
        )
        for reason in ("stop", "length", "abort"):
            finished.add_metric([self._model, reason], self._finished[reason])
        yield finished
        rejected = sum(self._engine.queue.rejected.values())
        yield self._counter(
            "vllm:admission_rejections", "Requests refused because something was full.", rejected
        )
        lora = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Adapters in use.",
            labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
        )
        lora.add_metric(["0", "", ""], 0)
        yield lora
        yield self._step_sizes(counters)
        yield from self._latencies("vllm:")

    def _latencies(self, prefix: str) -> Iterator[Metric]:
        for name, meaning, histogram in (
            ("time_to_first_token_seconds", "Submission to first token.", self._first_token),
            ("inter_token_latency_seconds", "Gap between two tokens of an answer.", self._between_tokens),
            ("request_time_per_output_token_seconds", "Mean gap of one answer.", self._per_token),
            ("e2e_request_latency_seconds", "Submission to last token.", self._whole),
            ("request_queue_time_seconds", "Submission to start.", self._queued),
            ("request_prefill_time_seconds", "Start to first token.", self._prefill),
            ("request_decode_time_seconds", "First to last token.", self._decode),
            ("request_inference_time_seconds", "Start to last token.", self._inference),
            ("request_prompt_tokens", "Prompt tokens of a request.", self._prompt_length),
            ("request_generation_tokens", "Tokens of an answer.", self._answer_length),
        ):
            family = HistogramMetricFamily(prefix + name, meaning, labels=["model_name"])
            family.add_metric([self._model], buckets=histogram.buckets(), sum_value=histogram.sum)
            yield family

    def _step_sizes(self, counters: EngineCounters) -> Metric:
        bounds = (*(str(float(bound)) for bound in STEP_SIZES), "+Inf")
        buckets = list(zip(bounds, map(float, accumulate(counters.step_sizes)), strict=True))
        family = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Tokens computed in a step.", labels=["model_name"]
        )
        family.add_metric([self._model], buckets=buckets, sum_value=counters.computed_tokens)
        return family

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

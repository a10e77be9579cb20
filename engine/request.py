"""What crosses the border between a client and an engine: frozen, typed, torch-free.

Every struct here is a msgpack frame or a part of one. Times are seconds. Token ids are vocabulary indices. Nothing here
is text: stop *strings*, templates and detokenising belong to the client's side.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from grammar.spec import BackendName, Grammar

FinishReason = Literal["stop", "length", "abort"]
"""Why a sequence ended: a stop token, a length limit, or the client's own wish."""

FailureKind = Literal[
    "bad_request",
    "bad_grammar",
    "grammar_too_complex",
    "unavailable",
    "engine_error",
    "deadline",
    "shutting_down",
]
"""Whose fault it is: the client's, or nobody's and the same may do a little later, or the engine's own."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen. Already validated and resolved: nothing here is optional for the engine to guess.

    `temperature == 0` is greedy. `top_k == 0`, `top_p == 1`, `min_p == 0`, penalties of 0 and a repetition penalty of 1
    are off. `seed` is drawn by the client when the user gave none; choice `i` of `n` derives its own from `(seed, i)`,
    and the noise of a token depends on nothing but `(seed, i, position)`.
    `stop_token_ids` holds the model's own end tokens too, unless the client asked to ignore them; none of them is
    sampled before `min_tokens` tokens exist. The stop token itself is part of the output tokens.
    `logprobs`: None is off, 0 the chosen token only, k the k best besides. `prompt_logprobs` alike for the prompt.
    """

    max_tokens: int
    seed: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One prompt and its `n` answers.

    `request_id` is the client's choice and never used twice: what is said of it may still be on its way when it ended.
    `namespace` separates KV that must not be shared (tenant, salt); the engine adds its own model digests to it.
    `priority`: lower runs first. `deadline` counts from the engine's receipt of the request; past it a queued request is
    dropped unstarted and a running one ends with a failure of kind `deadline`.
    `grammar` is what each answer has to look like, its end tokens aside; None leaves it free. Where it allows one
    continuation only, several tokens come without being sampled, unless log-probabilities are asked for.
    """

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    n: int = 1
    tenant: str = ""
    namespace: bytes = b""
    adapter: bytes = b""
    priority: int = 0
    deadline: float | None = None
    use_cache: bool = True
    grammar: Grammar | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The natural-log probability of a token under the model's raw distribution, and the best alternatives in order."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RequestStarted(msgspec.Struct, frozen=True, array_like=True):
    """Sent once a request leaves the queue: its prompt is admitted, `cached_tokens` of it found in the prefix cache."""

    request_id: str
    cached_tokens: int
    queued: float


class GrammarReady(msgspec.Struct, frozen=True, array_like=True):
    """Sent once for a request with a grammar, when it is compiled: from here on it cannot be refused for its grammar.

    `seconds` is the time it took; 0 if the compiled grammar was kept from before.
    """

    request_id: str
    backend: BackendName
    seconds: float
    nbytes: int


class SequenceDelta(msgspec.Struct, frozen=True, array_like=True):
    """What one step added to one sequence. `finish` is set on its last delta and never before.

    `logprobs` is aligned with `tokens` when asked for. `prompt_logprobs` comes once, with the first delta of choice 0:
    one item for each prompt token, None for the first.
    """

    request_id: str
    index: int
    tokens: tuple[int, ...]
    finish: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class RequestFailed(msgspec.Struct, frozen=True, array_like=True):
    """The request and all its sequences ended without a finish. `message` is safe to show a client."""

    request_id: str
    kind: FailureKind
    message: str


STEP_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Upper bounds of the buckets that steps are counted in by the tokens they compute; the last bucket has none."""


class GrammarCounters(msgspec.Struct, frozen=True, array_like=True):
    """What grammars did: totals since the engine started, and `compiling`, the requests that wait for theirs now.

    A grammar that a request brings is `compiled`, or found `cached` because it was compiled before, or `refused`.
    `masked_rows` counts tokens that were sampled under a grammar, `postponed_rows` the times that one had to wait for a
    later step because its mask was not ready, and `failed_rows` the sequences whose grammar could not be followed.
    `restrained_rows` are those of the masked ones that were kept from carrying on a value without an end.
    """

    compiling: int = 0
    compiled: int = 0
    cached: int = 0
    refused: int = 0
    masked_rows: int = 0
    postponed_rows: int = 0
    failed_rows: int = 0
    restrained_rows: int = 0


class EngineCounters(msgspec.Struct, frozen=True, array_like=True):
    """Totals since the engine started, and levels now. Sent with every step: O(1) to make.

    `step_sizes` counts the steps whose computed tokens fall in each bucket of STEP_SIZES, not cumulative.
    `forced_tokens` are those of the generated ones that a grammar allowed no choice about: none of them was sampled.
    """

    steps: int = 0
    running: int = 0
    waiting: int = 0
    pages_total: int = 0
    pages_free: int = 0
    pages_tree: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    evicted_pages: int = 0
    aborted: int = 0
    failed_checks: int = 0
    step_sizes: tuple[int, ...] = (0,) * (len(STEP_SIZES) + 1)
    forced_tokens: int = 0
    grammars: GrammarCounters = GrammarCounters()


# ---- client to engine ------------------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerationRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these requests, or one choice of one: `index` None is all of them. Unknown ids are ignored."""

    request_ids: tuple[str, ...]
    index: int | None = None


class AskState(msgspec.Struct, frozen=True, tag="ask_state"):
    query_id: int


class CheckGrammar(msgspec.Struct, frozen=True, tag="check_grammar"):
    """Compile a grammar and say what came of it; nothing is generated."""

    query_id: int
    grammar: Grammar


class SetFailpoint(msgspec.Struct, frozen=True, tag="set_failpoint"):
    """Test mode only; an engine outside test mode ignores it and logs."""

    spec: str


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Forget every unreferenced cached page."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End now. The client has drained what it wanted drained."""


ToEngine = Submit | Abort | AskState | CheckGrammar | SetFailpoint | Flush | Shutdown

# ---- engine to client ------------------------------------------------------------------------------------------------


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag="engine_info"):
    """Sent once, when the engine can take requests. Sizes are bytes, times seconds."""

    model_digest: str
    vocab_size: int
    max_model_len: int
    max_running: int
    max_step_tokens: int
    page_size: int
    pages: int
    page_bytes: int
    weight_bytes: int
    device: str
    dtype: str
    attention: str
    load_seconds: float
    pid: int


class StepOutput(msgspec.Struct, frozen=True, tag="step"):
    """Everything one step has to say, in one frame."""

    deltas: tuple[SequenceDelta, ...]
    started: tuple[RequestStarted, ...]
    failed: tuple[RequestFailed, ...]
    counters: EngineCounters
    ready: tuple[GrammarReady, ...] = ()


class GrammarReport(msgspec.Struct, frozen=True, kw_only=True, tag="grammar_report"):
    """An answer to `CheckGrammar`. `error` is None if the grammar compiled, else why it did not; `kind` then says whose
    fault that is. `cached`: it was there already, and `seconds` is what it took then."""

    query_id: int
    backend: BackendName | None = None
    seconds: float = 0.0
    nbytes: int = 0
    cached: bool = False
    kind: FailureKind | None = None
    error: str | None = None


class StateReport(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """An answer to `AskState`: exact, recomputed from the structures themselves rather than from counters."""

    query_id: int
    counters: EngineCounters
    pages_held: int
    tree_nodes: int
    tree_tokens: int
    namespaces: int
    phase: str
    uptime: float
    rss_bytes: int
    failpoints: tuple[str, ...]


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """The engine could not start; `message` is one line for the operator. Restarting will not help if `permanent`."""

    message: str
    permanent: bool


ToClient = EngineInfo | StepOutput | StateReport | GrammarReport | StartFailed

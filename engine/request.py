"""What crosses the border between a client and an engine: frozen, typed, torch-free.

Every struct here is a msgpack frame or a part of one. Times are seconds. Token ids are vocabulary indices. Nothing here
is text: stop *strings*, templates and detokenising belong to the client's side.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from cache.lease import CachePolicy, EvictionCause, FlushScope, Lease, TenantLimits, Tier
from grammar.spec import BackendName, Grammar

FinishReason = Literal["stop", "length", "abort"]
"""Why a sequence ended: a stop token, a length limit, or the client's own wish."""

FailureKind = Literal[
    "bad_request",
    "bad_grammar",
    "grammar_too_complex",
    "unavailable",
    "pins_exhausted",
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
    `cache` is what it may have of the prefix cache and what it leaves there. `priority`: lower runs first. `deadline` counts from the engine's receipt of the request; past it a queued request is
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
    cache: CachePolicy = CachePolicy()
    grammar: Grammar | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The natural-log probability of a token under the model's raw distribution, and the best alternatives in order."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Evicted(msgspec.Struct, frozen=True, array_like=True):
    """The page that would have come next in a prefix was there once, and went `age` seconds ago. `broken`: while leased."""

    cause: EvictionCause
    age: float
    broken: bool = False


class RequestStarted(msgspec.Struct, frozen=True, array_like=True):
    """Sent once a request leaves the queue: its prompt is admitted, `cached_tokens` of it found in the prefix cache.

    Of those `host_tokens` and `disk_tokens` came from the lower tiers. `saved` are the seconds of device time that the hit
    saves, by what steps have cost so far, less `loading`, the seconds it took to bring pages up; never negative.
    `evicted` is set if the next page of the prefix had been known.
    """

    request_id: str
    cached_tokens: int
    queued: float
    host_tokens: int = 0
    disk_tokens: int = 0
    saved: float = 0.0
    loading: float = 0.0
    evicted: Evicted | None = None


class PromptCached(msgspec.Struct, frozen=True, array_like=True):
    """Sent once the whole prompt is computed, before the first token: `written` tokens of it are new in the cache, and
    `entries` (by id) stand on it."""

    request_id: str
    written: int
    entries: tuple[str, ...] = ()


class RequestEnded(msgspec.Struct, frozen=True, array_like=True):
    """The account of a request that was queued, sent once however it ended: also after an abort, a failure and a deadline,
    and also when nobody listens any more.

    `cached` and `written` are tokens of the prompt as in RequestStarted and PromptCached, `computed` all positions that were
    computed for it, recomputing after a preemption included; `generated` counts all choices. `entries` stand.
    """

    request_id: str
    started: bool
    cached: int
    written: int
    computed: int
    generated: int
    saved: float
    entries: tuple[str, ...] = ()


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


class TierCounters(msgspec.Struct, frozen=True, array_like=True):
    """One tier of the cache. `bytes` and `budget` are levels; the rest are totals: `hit_tokens` found there, pages brought
    in from above or by requests (`stored`), pages given up, and pages that could not be read back (`failed`)."""

    bytes: int = 0
    budget: int = 0
    hit_tokens: int = 0
    stored: int = 0
    evicted: int = 0
    failed: int = 0


class CacheCounters(msgspec.Struct, frozen=True, array_like=True):
    """What the cache did since the engine started, and levels now.

    `looked_up_tokens` are those of prompts that were looked for, once for each request, at its admission; what was found of
    them is in the tiers. `written_tokens` are those published. `evictions` counts pages by cause. `broken_leases` counts
    entries that lost pages before their time, `broken_pauses` the same for conversations that waited for tools. `saved` and
    `loading` are seconds. `pinned_pages` are pinned hard.
    """

    looked_up_tokens: int = 0
    written_tokens: int = 0
    recomputed_tokens: int = 0
    evictions: dict[EvictionCause, int] = {}
    entries: int = 0
    pinned_pages: int = 0
    broken_leases: int = 0
    broken_pauses: int = 0
    followers: int = 0
    saved: float = 0.0
    loading: float = 0.0
    device: TierCounters = TierCounters()
    host: TierCounters = TierCounters()
    disk: TierCounters = TierCounters()


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
    cache: CacheCounters = CacheCounters()


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


class FlushCache(msgspec.Struct, frozen=True, tag="flush_cache"):
    """Let nobody find these pages again, not even what requests in flight have still to publish. Answered by FlushReport."""

    query_id: int
    scope: FlushScope
    dry_run: bool = False


class LookUp(msgspec.Struct, frozen=True, tag="look_up"):
    """What a prompt would find; changes nothing, renews nothing. Answered by LookUpReport."""

    query_id: int
    prompt: list[int]
    namespace: bytes = b""
    adapter: bytes = b""


class LeaseTip(msgspec.Struct, frozen=True, tag="lease_tip"):
    """Lease all that the first choice of a request left in the cache, shortly after it ended. Not answered; too late is
    nothing."""

    request_id: str
    lease: Lease


class AskEntry(msgspec.Struct, frozen=True, tag="ask_entry"):
    """How an entry is, after what is asked for was done to it: a new `lease`, a move `to` a tier (`device` brings it up,
    lower ones free the tiers above), or its end with `drop` (its pages become like any other's). Answered by EntryReport."""

    query_id: int
    entry_id: str
    lease: Lease | None = None
    to: Tier | None = None
    drop: bool = False


class AskCache(msgspec.Struct, frozen=True, tag="ask_cache"):
    """Answered by CacheReport: of one tenant, or of all."""

    query_id: int
    tenant: str | None = None


class ExportPages(msgspec.Struct, frozen=True, tag="export_pages"):
    """Write the KV of a prompt, as far as it is cached, to a new file. Answered by TransferReport."""

    query_id: int
    path: str
    prompt: list[int]
    namespace: bytes = b""
    adapter: bytes = b""


class ImportPages(msgspec.Struct, frozen=True, tag="import_pages"):
    """Read such a file into the cache as an entry of this tenant and namespace. Answered by TransferReport."""

    query_id: int
    path: str
    entry_id: str
    lease: Lease
    tenant: str = ""
    namespace: bytes = b""
    adapter: bytes = b""


class SetLimits(msgspec.Struct, frozen=True, tag="set_limits"):
    """What tenants may have and are promised, by name and all others, from now on. Answered by LimitsReport."""

    query_id: int
    tenants: dict[str, TenantLimits]
    others: TenantLimits


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End now. The client has drained what it wanted drained."""


CacheQuestion = FlushCache | LookUp | AskEntry | AskCache | ExportPages | ImportPages | SetLimits
ToEngine = Submit | Abort | AskState | CheckGrammar | SetFailpoint | CacheQuestion | LeaseTip | Shutdown

# ---- engine to client ------------------------------------------------------------------------------------------------


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag="engine_info"):
    """Sent once, when the engine can take requests. Sizes are bytes, times seconds.

    `deterministic`: an answer's tokens do not depend on what else runs or is cached. `host_bytes` and `disk_bytes` are what
    the lower tiers of the cache may hold, 0 for a tier that is off.
    """

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
    deterministic: bool = False
    host_bytes: int = 0
    disk_bytes: int = 0


class StepOutput(msgspec.Struct, frozen=True, tag="step"):
    """Everything one step has to say, in one frame."""

    deltas: tuple[SequenceDelta, ...]
    started: tuple[RequestStarted, ...]
    failed: tuple[RequestFailed, ...]
    counters: EngineCounters
    ready: tuple[GrammarReady, ...] = ()
    cached: tuple[PromptCached, ...] = ()
    ended: tuple[RequestEnded, ...] = ()


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


class FlushReport(msgspec.Struct, frozen=True, kw_only=True, tag="flush_report"):
    """What was flushed, or would be, by tier; what is in several tiers is counted in each. It cannot be found any more. Of the
    device's pages `in_use` are held by running sequences and freed with them, and `kept` ones fit the scope but others have
    used them too. Slots are free, and files are removed, once nobody reads or writes them."""

    query_id: int
    pages: dict[Tier, int] = {}
    tokens: dict[Tier, int] = {}
    bytes: dict[Tier, int] = {}
    entries: int = 0
    in_use: int = 0
    kept: int = 0


class LookUpReport(msgspec.Struct, frozen=True, kw_only=True, tag="look_up_report"):
    """How many tokens of a prompt are cached, by the tier they would come from: a prefix is found on the device first, then
    its continuation in the host's memory, then on disk. `saved` and `evicted` as in RequestStarted."""

    query_id: int
    device: int = 0
    host: int = 0
    disk: int = 0
    saved: float = 0.0
    evicted: Evicted | None = None


EntryStatus = Literal["held", "lapsed", "broken", "flushed", "demoted"]
"""An entry's promise holds; its time is over, its pages may still be there; it lost pages before; it was flushed; it is in a
lower tier, as it was asked to be."""


class EntryState(msgspec.Struct, frozen=True, kw_only=True):
    """An entry as it is. Its `tokens` are counted by the highest tier that holds them; what is in none is gone.
    `expires_in` is None for a pin; `idle` are seconds since it was last used or written."""

    entry_id: str
    tenant: str
    tokens: int
    device: int
    host: int
    disk: int
    lease: Lease
    status: EntryStatus
    expires_in: float | None
    hits: int
    idle: float
    cause: EvictionCause | None = None


class EntryReport(msgspec.Struct, frozen=True, kw_only=True, tag="entry_report"):
    """`entry` None: there is none of this id. `error` with its `kind` says why what was asked for was not done."""

    query_id: int
    entry: EntryState | None = None
    kind: FailureKind | None = None
    error: str | None = None


class TenantCache(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's part of the cache: bytes by tier, `entries` on the device whose time is not over, pages pinned hard, pages that went by
    cause, leases broken."""

    tenant: str
    bytes: dict[Tier, int]
    entries: int = 0
    pinned_pages: int
    evictions: dict[EvictionCause, int]
    broken_leases: int


class CacheReport(msgspec.Struct, frozen=True, kw_only=True, tag="cache_report"):
    """Exact. Tenants that have nothing cached are left out. Entries are counted, not told one by one: there may be more than
    an engine has time for between two steps, and more than a frame holds."""

    query_id: int
    tenants: tuple[TenantCache, ...]


class TransferReport(msgspec.Struct, frozen=True, kw_only=True, tag="transfer_report"):
    """What an export wrote or an import read. With `error` nothing was."""

    query_id: int
    tokens: int = 0
    bytes: int = 0
    kind: FailureKind | None = None
    error: str | None = None


class LimitsReport(msgspec.Struct, frozen=True, tag="limits_report"):
    """With `error`, one line, the limits are what they were."""

    query_id: int
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


CacheAnswer = FlushReport | LookUpReport | EntryReport | CacheReport | TransferReport | LimitsReport
ToClient = EngineInfo | StepOutput | StateReport | GrammarReport | CacheAnswer | StartFailed

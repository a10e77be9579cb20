"""What a request must satisfy before anything is queued or reserved for it.

A client checks its own requests to answer at once; the engine checks again, for nothing that comes through a socket is
taken on trust: a token id out of range would read foreign memory on some devices.
"""

from __future__ import annotations

import math

from cache.lease import HIGHEST_PRIORITY, Lease

from .errors import BadRequest
from .request import GenerationRequest, SamplingParams

MAX_CHOICES = 128
MAX_LOGPROBS = 20
FLOAT32_MAX = 2.0**128 - 2.0**104
"""The largest number that can be added to a logit."""


def check_request(request: GenerationRequest, *, vocab_size: int, max_model_len: int) -> None:
    """Raises BadRequest with the name of the field at fault. Linear in the prompt, at about 20 ns a token."""
    prompt = request.prompt
    if not prompt:
        raise BadRequest("the prompt is empty", param="prompt")
    if len(prompt) + min(request.sampling.max_tokens, 1) > max_model_len:
        raise BadRequest(
            f"the prompt of {len(prompt)} tokens is too long: prompt and answer share {max_model_len}",
            param="prompt",
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise BadRequest(f"the prompt has a token id outside 0 … {vocab_size - 1}", param="prompt")
    if not 1 <= request.n <= MAX_CHOICES:
        raise BadRequest(f"n must be from 1 to {MAX_CHOICES}", param="n")
    if request.deadline is not None and not math.isfinite(request.deadline):
        raise BadRequest("the deadline is not a finite number", param="deadline")
    _check_sampling(request.sampling, vocab_size)
    _check_cache(request)
    if request.grammar is not None:
        _check_under_grammar(request.sampling)


def _check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    # Comparisons with NaN are false, so each condition is stated as what must hold.
    conditions = {
        "max_tokens": sampling.max_tokens >= 0,
        "min_tokens": sampling.min_tokens >= 0,
        "temperature": 0 <= sampling.temperature < math.inf,
        "top_k": sampling.top_k >= 0,
        "top_p": 0 < sampling.top_p <= 1,
        "min_p": 0 <= sampling.min_p <= 1,
        "presence_penalty": abs(sampling.presence_penalty) <= FLOAT32_MAX,
        "frequency_penalty": abs(sampling.frequency_penalty) <= FLOAT32_MAX,
        "repetition_penalty": 0 < sampling.repetition_penalty < math.inf,
        "logit_bias": all(
            0 <= token < vocab_size and abs(bias) <= FLOAT32_MAX
            for token, bias in sampling.logit_bias.items()
        ),
        "stop_token_ids": all(0 <= token < vocab_size for token in sampling.stop_token_ids),
        "logprobs": sampling.logprobs is None or 0 <= sampling.logprobs <= MAX_LOGPROBS,
        "prompt_logprobs": sampling.prompt_logprobs is None or 0 <= sampling.prompt_logprobs <= MAX_LOGPROBS,
    }
    for name, holds in conditions.items():
        if not holds:
            raise BadRequest(f"{name} is out of range", param=name)


def check_lease(lease: Lease) -> None:
    """Raises BadRequest."""
    if not 0 <= lease.ttl < math.inf:
        raise BadRequest("the ttl of a lease is a finite number of seconds, not negative", param="cache.ttl")
    if not 0 <= lease.priority <= HIGHEST_PRIORITY:
        raise BadRequest(f"priority is from 0 to {HIGHEST_PRIORITY}", param="cache.priority")


def _check_cache(request: GenerationRequest) -> None:
    policy = request.cache
    if policy.max_age is not None and not 0 < policy.max_age < math.inf:
        raise BadRequest("max_age is a finite number of seconds above 0", param="cache.max_age")
    if policy.write_tokens is not None and policy.write_tokens < 0:
        raise BadRequest("write_tokens cannot be negative", param="cache.write_tokens")
    if len({spec.entry_id for spec in policy.entries}) < len(policy.entries):
        raise BadRequest("two entries have the same id", param="cache.entries")
    for spec in policy.entries:
        if not 1 <= spec.tokens <= len(request.prompt):
            raise BadRequest(
                "an entry covers 1 token of the prompt at least and all at most", param="cache.entries"
            )
        check_lease(spec.lease)


def _check_under_grammar(sampling: SamplingParams) -> None:
    """The grammar alone says where an answer ends, and the end is a token."""
    if sampling.min_tokens > 0:
        raise BadRequest("min_tokens cannot be combined with a grammar", param="min_tokens")
    if not sampling.stop_token_ids:
        raise BadRequest("a grammar needs a stop token to end the answer with", param="stop_token_ids")

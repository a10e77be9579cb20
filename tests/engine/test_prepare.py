import math
from typing import Any

import pytest
from msgspec.structs import replace

from cache.lease import CachePolicy, EntrySpec, Lease
from engine.errors import BadRequest
from engine.prepare import check_request
from engine.request import GenerationRequest, SamplingParams

GOOD = GenerationRequest(
    request_id="r",
    prompt=[0, 99],
    sampling=SamplingParams(
        max_tokens=1, logit_bias={0: -100.0, 99: 100.0}, stop_token_ids=(0, 99), logprobs=20
    ),
    n=2,
    deadline=1.0,
)


def entries(*specs: tuple[str, int], lease: Lease = Lease(ttl=1.0)) -> CachePolicy:  # noqa: B008 - it is frozen
    return CachePolicy(entries=tuple(EntrySpec(entry_id=name, tokens=n, lease=lease) for name, n in specs))


def check(request: GenerationRequest) -> None:
    check_request(request, vocab_size=100, max_model_len=8)


@pytest.mark.parametrize(
    "request_",
    [
        GOOD,
        replace(GOOD, prompt=[1] * 7),
        replace(GOOD, cache=entries(("e", 1), ("f", 2), lease=Lease(pin="hard", priority=0))),
        replace(GOOD, prompt=[1] * 8, sampling=SamplingParams(max_tokens=0)),
        replace(GOOD, sampling=SamplingParams(max_tokens=10**9, temperature=0.0, prompt_logprobs=0)),
    ],
)
def test_taken(request_: GenerationRequest) -> None:
    check(request_)


@pytest.mark.parametrize(
    ("param", "changes"),
    [
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": [1] * 8}),
        ("prompt", {"prompt": [100]}),
        ("prompt", {"prompt": [3, -1]}),
        ("prompt", {"prompt": [2**70]}),
        ("n", {"n": 0}),
        ("n", {"n": 10**6}),
        ("deadline", {"deadline": math.nan}),
        ("deadline", {"deadline": math.inf}),
        ("cache.max_age", {"cache": CachePolicy(max_age=0.0)}),
        ("cache.max_age", {"cache": CachePolicy(max_age=math.nan)}),
        ("cache.write_tokens", {"cache": CachePolicy(write_tokens=-1)}),
        ("cache.entries", {"cache": entries(("e", 0))}),
        ("cache.entries", {"cache": entries(("e", 3))}),
        ("cache.entries", {"cache": entries(("e", 1), ("e", 2))}),
        ("cache.ttl", {"cache": entries(("e", 1), lease=Lease(ttl=-1.0))}),
        ("cache.ttl", {"cache": entries(("e", 1), lease=Lease(ttl=math.inf))}),
        ("cache.priority", {"cache": entries(("e", 1), lease=Lease(priority=101))}),
    ],
)
def test_refused_with_the_field_named(param: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as raised:
        check(replace(GOOD, **changes))
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("presence_penalty", math.nan),
        ("presence_penalty", 1e39),
        ("frequency_penalty", -math.inf),
        ("frequency_penalty", -1e39),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: 1e39}),
        ("stop_token_ids", (100,)),
        ("logprobs", -1),
        ("logprobs", 21),
        ("prompt_logprobs", 21),
    ],
)
def test_sampling_out_of_range_is_refused_with_the_field_named(param: str, value: object) -> None:
    sampling = replace(GOOD.sampling, **{param: value})
    with pytest.raises(BadRequest) as raised:
        check(replace(GOOD, sampling=sampling))
    assert raised.value.param == param

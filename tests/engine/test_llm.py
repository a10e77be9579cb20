import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cache.lease import CachePolicy, EntrySpec, FlushScope, Lease, TenantLimits
from engine.config import EngineConfig, HashModelConfig
from engine.errors import BadRequest, DeadlineExceeded, RequestFailure, StartError
from engine.hash_model import reference
from engine.llm import LLM
from engine.request import GenerationRequest, SamplingParams

CONFIG = EngineConfig(hash_model=HashModelConfig(), test_mode=True)
SAMPLING = SamplingParams(max_tokens=10)


@pytest.fixture
def llm() -> Iterator[LLM]:
    llm = LLM(CONFIG, encode=lambda text: list(text.encode()))
    yield llm
    census = llm._engine.census()
    assert census.pages_held == 0
    assert not llm._engine.has_work
    assert not llm._collectors


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts: list[list[int] | str] = [[65, number] for number in range(20)]
    samplings = [SamplingParams(max_tokens=20 - number, seed=number) for number in range(20)]
    for prompt, sampling, completion in zip(
        prompts, samplings, llm.generate(prompts, samplings), strict=True
    ):
        assert completion.request.prompt == prompt
        assert list(completion.answers[0].tokens) == reference(completion.request.prompt, sampling)
        assert completion.answers[0].finish == "length"
        assert completion.error is None
    assert llm.counters.generated_tokens == sum(range(1, 21))


def test_choices_log_probabilities_and_the_cache(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=4, logprobs=2, prompt_logprobs=1)
    (whole,) = llm.generate(["a prompt of more than a page"], sampling, n=3)
    for index, answer in enumerate(whole.answers):
        assert list(answer.tokens) == reference(whole.request.prompt, sampling, index)
        assert answer.logprobs is not None
        assert [len(item.top) for item in answer.logprobs] == [2] * 4
    assert whole.prompt_logprobs is not None
    assert len(whole.prompt_logprobs) == len(whole.request.prompt)
    (again,) = llm.generate(["a prompt of more than a page"], SAMPLING)
    assert again.cached_tokens >= 16
    assert again.answers[0].logprobs is None


def test_a_stream_gives_the_same_and_may_nest(llm: LLM) -> None:
    outer = []
    for delta in llm.stream("outer", SAMPLING):
        outer += delta.tokens
        inner = [token for inside in llm.stream("inner", SAMPLING) for token in inside.tokens]
        assert inner == reference(list(b"inner"), SAMPLING)
    assert outer == reference(list(b"outer"), SAMPLING)


def test_closing_a_stream_aborts_it(llm: LLM) -> None:
    stream = llm.stream("a", SamplingParams(max_tokens=10_000))
    assert next(stream).tokens
    stream.close()  # type: ignore[attr-defined]
    assert llm._engine.census().counters.running == 0
    list(llm.stream("b", SAMPLING))
    assert llm.counters.aborted == 1


@pytest.mark.parametrize(
    ("prompt", "sampling"), [([], SAMPLING), ([-1], SAMPLING), ([1], SamplingParams(max_tokens=1, top_p=2.0))]
)
def test_bad_requests_are_named_before_anything_is_computed(
    llm: LLM, prompt: list[int], sampling: SamplingParams
) -> None:
    with pytest.raises(BadRequest):
        llm.generate([[1, 2], prompt], sampling)
    with pytest.raises(BadRequest):
        llm.stream(prompt, sampling)
    assert llm.counters.steps == 0


def test_a_failure_is_told_with_its_request_and_spares_the_others(llm: LLM) -> None:
    late = GenerationRequest(
        request_id="late", prompt=[1], sampling=SamplingParams(max_tokens=30_000), deadline=0.05
    )
    good = GenerationRequest(request_id="good", prompt=[1], sampling=SAMPLING)
    first, second = llm.answer([late, good])
    assert isinstance(first.error, DeadlineExceeded)
    assert first.answers[0].finish is None
    assert list(second.answers[0].tokens) == reference([1], SAMPLING)
    llm._engine.set_failpoint("forward_raises=3")
    with pytest.raises(RequestFailure):
        list(llm.stream("a", SAMPLING))


def test_what_the_caller_got_wrong() -> None:
    llm = LLM(CONFIG)
    with pytest.raises(ValueError, match="encode"):
        llm.generate(["text"], SAMPLING)
    with pytest.raises(ValueError, match="2 prompts, but 1"):
        llm.generate([[1], [2]], [SAMPLING])


def test_no_model_is_one_clear_line() -> None:
    with pytest.raises(StartError, match="model"):
        LLM(EngineConfig())


def test_what_a_client_imports_and_the_hash_model_run_without_torch() -> None:
    script = """
import sys
import engine, engine.channel, engine.client, engine.process, engine.llm
from engine.config import EngineConfig, HashModelConfig
from engine.request import SamplingParams
llm = engine.llm.LLM(EngineConfig(hash_model=HashModelConfig()))
assert llm.generate([[1]], SamplingParams(max_tokens=2))[0].answers[0].tokens
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_client_side_imports_no_numpy_either() -> None:
    script = "import sys, engine.process; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# ---- the cache -------------------------------------------------------------------------------------------------------

PROMPT = "a prompt of more than one page, for all that is asked of the cache"
LENGTH = len(PROMPT)
NOTHING = SamplingParams(max_tokens=0)


def entry_of(name: str, **lease: Any) -> CachePolicy:
    return CachePolicy(entries=(EntrySpec(entry_id=name, tokens=LENGTH, lease=Lease(**lease)),))


def test_tenants_share_nothing_and_each_finds_its_own(llm: LLM) -> None:
    llm.generate([PROMPT], NOTHING, tenant="a")
    for tenant, found in (("b", 0), ("", 0), ("a", LENGTH - 1)):
        assert llm.look_up(PROMPT, tenant=tenant).device == found
        (completion,) = llm.generate([PROMPT], SAMPLING, tenant=tenant, cache=CachePolicy(write=False))
        assert completion.cached_tokens == completion.account.cached == found


def test_a_report_is_no_longer_for_more_entries(llm: LLM) -> None:
    """There may be hundreds of thousands, and a frame has a most."""
    lengths = []
    for count in (1, 60):
        for number in range(count):
            llm.generate([PROMPT], NOTHING, tenant="a", cache=entry_of(f"e{number}", ttl=60.0))
        report = llm.cache_report()
        assert [tenant.entries for tenant in report.tenants] == [count]
        lengths.append(len(msgspec.msgpack.encode(report)))
    assert lengths[1] - lengths[0] < 16


def test_a_report_counts_entries_whose_promise_holds(llm: LLM) -> None:
    for name, lease in (("lapsed", {"ttl": 0.001}), ("held", {"ttl": 60.0}), ("pinned", {"pin": "soft"})):
        llm.generate([PROMPT], NOTHING, tenant="a", cache=entry_of(name, **lease))
    llm.generate([PROMPT[::-1]], NOTHING, tenant="a", cache=entry_of("flushed", ttl=60.0))
    llm.flush(FlushScope(entry_id="flushed"))
    time.sleep(0.005)
    assert [tenant.entries for tenant in llm.cache_report("a").tenants] == [2]


def test_an_entry_is_made_changed_and_dropped(llm: LLM) -> None:
    (completion,) = llm.generate([PROMPT], NOTHING, tenant="a", cache=entry_of("e", ttl=60.0, tag="t"))
    assert completion.account.entries == ("e",)
    entry = llm.entry("e").entry
    assert entry is not None
    assert (entry.tenant, entry.tokens, entry.device, entry.status) == ("a", LENGTH, LENGTH, "held")
    assert llm.cache_report("b").tenants == ()
    (tenant,) = llm.cache_report("a").tenants
    assert (tenant.entries, tenant.bytes["device"] > 0) == (1, True)
    pinned = llm.entry("e", lease=Lease(pin="hard")).entry
    assert pinned is not None
    assert pinned.expires_in is None
    assert llm.cache_report("a").tenants[0].pinned_pages == -(-LENGTH // llm.info.page_size)
    refused = llm.entry("e", lease=Lease(ttl=-1.0))
    assert refused.kind == "bad_request"
    assert llm.entry("e", drop=True).entry is not None
    assert llm.entry("e").entry is None
    assert llm.cache_report("a").tenants[0].entries == 0
    assert llm.look_up(PROMPT, tenant="a").device == LENGTH - 1, "its pages are like any others"


def test_a_flush_says_what_it_takes_and_takes_it(llm: LLM) -> None:
    for tenant in ("a", "b"):
        llm.generate([PROMPT], NOTHING, tenant=tenant)
    scope = FlushScope(tenant="a")
    tried = llm.flush(scope, dry_run=True)
    assert tried.tokens["device"] == LENGTH
    assert llm.look_up(PROMPT, tenant="a").device == LENGTH - 1
    assert llm.flush(scope).tokens == tried.tokens
    assert llm.look_up(PROMPT, tenant="a").device == 0
    assert llm.look_up(PROMPT, tenant="b").device == LENGTH - 1
    (completion,) = llm.generate([PROMPT], NOTHING, tenant="a")
    assert completion.cached_tokens == 0
    assert llm.flush().tokens["device"] == 2 * LENGTH


def test_a_stream_that_is_closed_leaves_what_it_computed(llm: LLM) -> None:
    stream = llm.stream(PROMPT, SamplingParams(max_tokens=1000), tenant="a")
    next(stream)
    stream.close()
    assert llm.look_up(PROMPT, tenant="a").device == LENGTH - 1


def test_limits_that_cannot_be_kept_are_refused_in_one_line() -> None:
    config = EngineConfig(
        hash_model=HashModelConfig(),
        pages=64,
        tenants={"a": TenantLimits(floor=0.5), "b": TenantLimits(pins=0.4)},
    )
    with pytest.raises(StartError, match="tenants") as raised:
        LLM(config)
    assert "\n" not in str(raised.value)

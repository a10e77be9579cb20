"""Batched, chunked, cached, preempted: the hash model's answers are those of each request alone, exactly."""

from __future__ import annotations

import random

import pytest

from cache.prefix_cache import PrefixCache
from engine.batch import NO_MASKS
from engine.config import EngineConfig, HashModelConfig
from engine.hash_model import IM_END, HashRunner, reference
from engine.request import GenerationRequest, SamplingParams
from engine.scheduler import Scheduler


def traffic(draw: random.Random, requests: int) -> list[GenerationRequest]:
    """Prompts that share beginnings, part inside pages, or are the same."""
    bases = [[draw.randrange(250) for _ in range(120)] for _ in range(3)]
    return [
        GenerationRequest(
            request_id=str(i),
            prompt=draw.choice(bases)[: draw.randrange(120)]
            + [draw.randrange(4) for _ in range(draw.randrange(1, 20))],
            n=draw.choice((1, 1, 3)),
            sampling=SamplingParams(
                max_tokens=draw.randrange(40),
                temperature=draw.choice((0.0, 1.0)),
                seed=draw.randrange(2**63),
                stop_token_ids=(IM_END,),
                min_tokens=draw.choice((0, 5)),
                prompt_logprobs=draw.choice((None, None, None, 1)),
            ),
            adapter=draw.choice((b"", b"an adapter")),
            tenant=draw.choice("ab"),
        )
        for i in range(requests)
    ]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(
    ("pages", "page_size", "budget"), [(400, 4, 64), (90, 4, 24), (24, 16, 512), (200, 1, 16)]
)
def test_answers_are_the_reference(pages: int, page_size: int, budget: int, prefix_cache: bool) -> None:
    draw = random.Random(pages)
    runner = HashRunner(EngineConfig(hash_model=HashModelConfig(), page_size=page_size, pages=pages))
    scheduler = Scheduler(
        cache=PrefixCache(pages, page_size, clock=lambda: 0.0, enabled=prefix_cache),
        max_running=12,
        max_step_tokens=budget,
        max_model_len=runner.info.max_model_len,
        watermark_pages=1,
        clock=lambda: 0.0,
        root_key=lambda namespace, adapter: namespace + b"/" + adapter,
    )
    requests = traffic(draw, 60)
    waiting = list(requests)
    answers: dict[tuple[str, int], list[int]] = {}
    while waiting or scheduler.has_work:
        for request in waiting[: draw.randrange(4)]:
            scheduler.submit(request)
            waiting.remove(request)
        plan = scheduler.plan()
        if plan is not None:
            scheduler.commit(plan, runner.run(plan, NO_MASKS))
        for delta in scheduler.take_events().deltas:
            answers.setdefault((delta.request_id, delta.index), []).extend(delta.tokens)
    for request in requests:
        for index in range(request.n):
            expected = reference(
                request.prompt, request.sampling, index, request.adapter, scheduler.max_length
            )
            assert answers[request.request_id, index] == expected
    counters = scheduler.counters()
    assert (counters.cached_tokens > 0) == prefix_cache
    assert counters.preemptions > 0 or pages == 400, "too much room to show anything"

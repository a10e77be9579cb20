"""Usage adds up over a real scheduler, whatever is cached, evicted, preempted, cut off or bypassed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from cache.lease import CachePolicy, EntrySpec, Lease
from engine.assemble import assemble
from engine.client import RequestStream, failure_from
from engine.config import EngineConfig, HashModelConfig
from engine.core import Engine
from engine.request import GenerationRequest, SamplingParams, StepOutput
from gateway.generation import Generation, Usage
from gateway.pieces import TextOptions
from gateway.tokenizer import Tokenizer

TOKENIZER = Tokenizer.hash()
CONFIG = EngineConfig(
    hash_model=HashModelConfig(max_model_len=64), page_size=4, pages=24, max_running=4, max_step_tokens=16
)


@dataclass(slots=True)
class InProcess:
    """The engine's side of streams, without a process."""

    engine: Engine
    streams: dict[str, RequestStream] = field(default_factory=dict)

    def submit(self, request: GenerationRequest) -> RequestStream:
        stream = self.streams[request.request_id] = RequestStream(request, self.engine.abort)
        self.engine.submit(request)
        return stream

    async def run(self, generations: list[Generation]) -> None:
        """Until all are read and accounted for."""
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(generation.collect()) for generation in generations]
            while self.streams or not all(reader.done() for reader in readers):
                plan = self.engine.plan()
                if plan is not None:
                    self.engine.commit(plan, self.engine.run(plan))
                news = self.engine.take_news()
                if news is not None:
                    self._hand_out(news)
                await asyncio.sleep(0)

    def _hand_out(self, news: StepOutput) -> None:
        for event in (*news.started, *news.cached, *news.deltas):
            self.streams[event.request_id].push(event)
        for failed in news.failed:
            self.streams[failed.request_id].fail(failure_from(failed))
        for account in news.ended:
            self.streams.pop(account.request_id).close_account(account)


BEGINNINGS = [list(b"the river and "), list(b"the river and the stone "), list(b"a lamp")]


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], CachePolicy, int, int, tuple[str, ...]]:
    prompt = draw(st.sampled_from(BEGINNINGS)) + draw(st.lists(st.integers(97, 99), min_size=1, max_size=20))
    marks = draw(st.lists(st.integers(1, len(prompt)), max_size=2, unique=True))
    lease = Lease(ttl=60)
    policy = CachePolicy(
        read=draw(st.booleans()),
        write=draw(st.booleans()),
        write_tokens=draw(st.none() | st.integers(1, len(prompt))),
        entries=tuple(EntrySpec(entry_id=f"{prompt[:mark]}", tokens=mark, lease=lease) for mark in marks),
    )
    stops = draw(st.sampled_from([(), ("e",), ("a", "o")]))
    return prompt, policy, draw(st.sampled_from([1, 1, 3])), draw(st.integers(0, 12)), stops


Drawn = tuple[list[int], CachePolicy, int, int, tuple[str, ...]]


@settings(max_examples=60)
@given(st.lists(st.lists(requests(), min_size=1, max_size=4), min_size=1, max_size=5))
def test_usage_adds_up(batches: list[list[Drawn]]) -> None:
    assert len(served(batches)) == sum(map(len, batches))


def served(batches: list[list[Drawn]]) -> list[Usage]:
    """One batch after the other, by an engine of their own."""
    engine = assemble(CONFIG)
    try:
        return asyncio.run(_serve(InProcess(engine), batches))
    finally:
        engine.close()


async def _serve(client: InProcess, batches: list[list[Drawn]]) -> list[Usage]:
    usages: list[Usage] = []
    for batch in batches:
        generations = []
        for prompt, policy, n, max_tokens, stops in batch:
            request = GenerationRequest(
                request_id=f"r{len(usages) + len(generations)}",
                prompt=prompt,
                sampling=SamplingParams(max_tokens=max_tokens, seed=len(usages), stop_token_ids=(257,)),
                n=n,
                cache=policy,
            )
            generations.append(Generation(client.submit(request), TOKENIZER, TextOptions(stops=stops)))
        await client.run(generations)
        for generation, (_, policy, *_rest) in zip(generations, batch, strict=True):
            usages.append(_checked(generation, policy))
    return usages


def _checked(generation: Generation, policy: CachePolicy) -> Usage:
    usage, account = generation.usage, generation._stream.account
    assert account is not None
    assert (usage.cached, usage.written) == (account.cached, account.written), "the ledger says the same"
    assert usage.prompt == len(generation.prompt)
    assert 0 <= usage.cached <= usage.prompt - 1
    assert usage.written >= 0
    assert usage.cached + usage.written <= usage.prompt
    assert policy.read or usage.cached == 0
    assert policy.write or usage.written == 0
    if policy.write and policy.write_tokens is not None:
        assert usage.written <= policy.write_tokens
    wire = usage.wire()
    assert wire["prompt_tokens_details"] == {
        "cached_tokens": usage.cached,
        "cache_write_tokens": usage.written,
    }
    return usage


def test_the_property_sees_hits_and_writes() -> None:
    """It would hold without a cache too."""
    asked: Drawn = (BEGINNINGS[1] + [97] * 9, CachePolicy(), 2, 4, ())
    cold, warm = served([[asked], [asked]])
    assert (cold.cached, cold.written > 0) == (0, True)
    assert warm.cached == warm.prompt - 1

"""Asking why, of a gateway whose engine finds what it is told to find."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cache.lease import EvictionCause
from engine.request import Evicted, LookUpReport
from gateway.app import DESK
from gateway.caching.common import common_tokens
from gateway.caching.records import pack
from tests.fakes import FakeEngine, says
from tests.gateway.caching.test_changes import SHOWS_THOUGHTS
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.tools.wire import function

ANSWER = "<think>\nhm\n</think>\n\nIt is sunny."
USER = {"role": "user", "content": "How is the weather in Oslo, and will it stay that way?"}


class CachingEngine(FakeEngine):
    """Finds what an endless cache would of prompts; answers are forgotten."""

    def submit(self, *args: Any) -> Any:
        ids = pack(args[0].prompt)
        mine = [each for each in self.requests if each.namespace == args[0].namespace]
        found = max((common_tokens(ids, pack(each.prompt)) for each in mine), default=0)
        self.cached_tokens = min(found, len(args[0].prompt) - 1)
        return super().submit(*args)


async def ask(
    gateway: Gateway, messages: list[dict[str, Any]], *, stream: bool = False, **fields: Any
) -> str:
    """The id of the response."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 64, "stream": stream, **fields}
    if not stream:
        status, answer = await gateway.post("/v1/chat/completions", body)
        assert status == 200, answer
        return str(answer["id"])
    async with gateway.client.post(gateway.url + "/v1/chat/completions", json=body) as response:
        text = await response.text()
        assert response.status == 200, text
    return text.partition('"id":"')[2].partition('"')[0]


async def explain(gateway: Gateway, **body: Any) -> dict[str, Any]:
    await gateway.at_rest()
    status, found = await gateway.post("/v1/caches/explain", body)
    assert status == 200, found
    return found


@pytest.mark.parametrize("stream", [False, True])
class TestThoughts:
    async def test_that_are_not_sent_back(self, start: Start, stream: bool) -> None:
        gateway = await start(CachingEngine(says(ANSWER)), template=SHOWS_THOUGHTS)
        first = await ask(gateway, [USER], stream=stream)
        said = {"role": "assistant", "content": "It is sunny."}
        second = await ask(gateway, [USER, said, {"role": "user", "content": "Thanks"}], stream=stream)
        found = await explain(gateway, response_id=second)
        assert (found["baseline_id"], found["reason"]) == (first, "reasoning_dropped")
        place = found["first_divergence"]
        assert (place["segment"], place["message"], place["role"]) == ("reasoning", 1, "assistant")
        assert "<think>\nhm\n</think>\n\nIt is sunny." in place["expected_preview"]
        assert "<think>" not in place["got_preview"]

    async def test_that_are_sent_back(self, start: Start, stream: bool) -> None:
        gateway = await start(CachingEngine(says(ANSWER)), template=SHOWS_THOUGHTS)
        first = await ask(gateway, [USER], stream=stream)
        said = {"role": "assistant", "content": "It is sunny.", "reasoning_content": "hm"}
        second = await ask(gateway, [USER, said, {"role": "user", "content": "Thanks"}], stream=stream)
        found = await explain(gateway, response_id=second, baseline_id=first)
        assert found["first_divergence"] is None
        # with its thoughts the whole answer is the same; the fake keeps prompts only, which is found out too
        whole = len(gateway.engine.requests[0].prompt) + len(ANSWER)
        assert found["common_tokens"] == found["reusable_tokens"] == whole
        assert (found["reason"], found["detail"]["cause"]) == ("evicted", None)


class TestLost:
    @pytest.mark.parametrize(
        ("cause", "reason"),
        [("pressure", "evicted"), ("quota", "evicted"), ("lost", "evicted"), ("expired", "expired"), ("flushed", "flushed")],
    )  # fmt: skip
    async def test_what_the_engine_remembers(self, start: Start, cause: EvictionCause, reason: str) -> None:
        engine = FakeEngine(says("ok"))
        gateway = await start(engine)
        first = await ask(gateway, [USER])
        engine.evicted = Evicted(cause, 3.25, broken=True)
        second = await ask(gateway, [USER])
        for body in ({}, {"baseline_id": first}):
            found = await explain(gateway, response_id=second, **body)
            assert (found["reason"], found["detail"]["age"], found["detail"]["broken"]) == (
                reason,
                3.25,
                True,
            )
            assert found["cache_missed_tokens"] == found["prompt_tokens"]
        _, metrics = await _text(gateway, "/metrics")
        assert f'headwater_cache_prompts_total{{model_name="{MODEL}",reason="{reason}"}} 1.0' in metrics

    async def test_a_dry_run_too(self, start: Start) -> None:
        engine = FakeEngine(says("ok"))
        gateway = await start(engine)
        first = await ask(gateway, [USER])
        engine.found = LookUpReport(query_id=0, device=16, host=16, disk=16, evicted=Evicted("pressure", 1.0))
        request = {"model": MODEL, "messages": [USER]}
        found = await explain(gateway, request=request)
        assert (found["response_id"], found["baseline_id"], found["baseline"]) == (None, first, "chosen")
        assert (found["reason"], found["hit_tokens"]) == ("evicted", 48)
        assert found["hit_tokens_by_tier"] == {"device": 16, "host": 16, "disk": 16}
        assert found["cached_until"]["token"] == 48
        requests = len(engine.requests)
        await explain(gateway, request=request)
        assert len(engine.requests) == requests

    async def test_another_engine(self, start: Start) -> None:
        engine = CachingEngine(says("ok"))
        gateway = await start(engine)
        await ask(gateway, [USER])
        engine.requests.clear()
        engine.restarts = 1
        found = await explain(gateway, response_id=await ask(gateway, [USER]))
        assert found["reason"] == "restarted"


class TestChanged:
    async def test_parts_are_counted_as_they_came(self, start: Start) -> None:
        gateway = await start(CachingEngine(says("ok")))

        def parts(*texts: str) -> list[dict[str, Any]]:
            return [USER, {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]

        first = await ask(gateway, parts("one ", "two ", "three"))
        second = await ask(gateway, parts("one ", "too ", "three"))
        place = (await explain(gateway, response_id=second, baseline_id=first))["first_divergence"]
        assert (place["message"], place["part"], place["char"]) == (1, 1, 1)
        assert place["expected_hash"] != place["got_hash"]

    async def test_the_arguments_of_a_call(self, start: Start) -> None:
        gateway = await start(CachingEngine(says("ok")), template=SHOWS_THOUGHTS)

        def called(arguments: str) -> list[dict[str, Any]]:
            call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
            return [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            ]

        tools = [function("weather")]
        first = await ask(gateway, called('{"city": "Oslo"}'), tools=tools)
        second = await ask(gateway, called('{"city": "Olso"}'), tools=tools)
        place = (await explain(gateway, response_id=second, baseline_id=first))["first_divergence"]
        assert (place["segment"], place["message"], place["part"], place["char"]) == ("tool_call", 1, 0, 11)

    async def test_a_long_prompt_is_explained_beside_the_loop(self, start: Start) -> None:
        gateway = await start(CachingEngine(says("ok"), max_model_len=100_000))
        text = "the river and the stone " * 3_000
        first = await ask(gateway, [USER, {"role": "user", "content": text + "a" + text[:99]}])
        second = await ask(gateway, [USER, {"role": "user", "content": text + "b" + text[:99]}])
        found = await explain(gateway, response_id=second, baseline_id=first)
        assert found["first_divergence"]["char"] == len(text)
        # nobody had the time to find that out when it was answered, but the hit alone says as much
        assert found["reason"] == "message_edited"


class TestWhatIsNotThere:
    async def test_a_request_that_never_started(self, start: Start) -> None:
        engine = FakeEngine(says("ok"))
        engine.prefill_delay = 30.0
        gateway = await start(engine)
        headers = {"X-Request-Id": "mine"}
        task = asyncio.create_task(
            gateway.post("/v1/chat/completions", {"model": MODEL, "messages": [USER]}, headers=headers)
        )
        async with asyncio.timeout(5):
            while not gateway.app[DESK].open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        status, answer = await gateway.post("/v1/caches/explain", {"response_id": "mine"})
        assert (status, answer["error"]["code"]) == (409, "response_not_started")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await gateway.at_rest()

    async def test_what_is_too_old(self, start: Start) -> None:
        gateway = await start(FakeEngine(says("ok")), limits={"explain_ttl": 0.05})
        name = await ask(gateway, [USER])
        await asyncio.sleep(0.06)
        status, answer = await gateway.post("/v1/caches/explain", {"response_id": name})
        assert (status, answer["error"]["code"]) == (404, "response_not_found")

    async def test_where_nothing_is_kept(self, start: Start) -> None:
        gateway = await start(FakeEngine(says("ok")), limits={"explain_bytes": 0})
        name = await ask(gateway, [USER])
        status, _ = await gateway.get(f"/v1/caches/explain?response_id={name}")
        assert status == 404

    async def test_an_unknown_baseline_is_said_before_anything_is_read(self, start: Start) -> None:
        """Neither the template nor the engine is bothered, whoever the baseline belongs to."""
        gateway = await start(FakeEngine(says("ok")))
        request = {"model": MODEL, "messages": "no messages"}
        body = {"request": request, "baseline_id": "chatcmpl-0"}
        status, answer = await gateway.post("/v1/caches/explain", body)
        assert (status, answer["error"]["param"]) == (404, "baseline_id")
        assert gateway.engine.looked_up == []


async def test_a_scored_prompt_does_not_read(start: Start) -> None:
    gateway = await start(CachingEngine(says("ok")))
    body = {"model": MODEL, "prompt": "Oslo", "max_tokens": 1, "logprobs": 1, "echo": True}
    _, answer = await gateway.post("/v1/completions", body)
    found = await explain(gateway, response_id=answer["id"])
    assert (found["reason"], found["detail"]) == ("bypass", {"why": "read"})


async def _text(gateway: Gateway, path: str) -> tuple[int, str]:
    async with gateway.client.get(gateway.url + path) as response:
        return response.status, await response.text()

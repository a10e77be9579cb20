"""/v1/completions: four kinds of prompt, echo, scoring, and the shapes evaluation tools read."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import orjson
import pytest
from openai import OpenAI
from openai.types import Completion

from gateway.openai.answer import INLINE_TOKENS
from gateway.openai.logprobs import CompletionLogprobs
from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start

PATH = "/v1/completions"


async def complete(gateway: Gateway, **body: Any) -> dict[str, Any]:
    status, answer = await gateway.post(PATH, {"model": MODEL, "prompt": "Hello", **body})
    assert status == 200, answer
    return answer


async def chunks(gateway: Gateway, **body: Any) -> list[dict[str, Any]]:
    async with gateway.client.post(
        gateway.url + PATH, json={"model": MODEL, "prompt": "Hello", "stream": True, **body}
    ) as response:
        frames = (await response.read()).removesuffix(b"\n\n").split(b"\n\n")
    assert frames.pop() == b"data: [DONE]"
    return [orjson.loads(frame.removeprefix(b"data: ")) for frame in frames]


async def test_sixteen_tokens_unless_asked(gateway: Gateway) -> None:
    answer = await complete(gateway)
    assert answer["object"] == "text_completion"
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 16,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 5},
    }


async def test_the_default_fits_into_what_is_left(gateway: Gateway) -> None:
    answer = await complete(gateway, prompt=[1] * 2040)
    assert answer["usage"]["completion_tokens"] == 8


async def test_index_is_prompt_times_n_plus_choice(gateway: Gateway) -> None:
    answer = await complete(gateway, prompt=["ab", "cd", "ef"], n=2, max_tokens=3)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["prompt_tokens"] == 6
    assert answer["usage"]["completion_tokens"] == 18
    alone = await complete(gateway, prompt="cd", n=2, max_tokens=3)
    assert [c["text"] for c in alone["choices"]] == [c["text"] for c in answer["choices"][2:4]]


async def test_token_ids_are_a_prompt(gateway: Gateway) -> None:
    by_text = await complete(gateway, prompt="Hi")
    by_ids = await complete(gateway, prompt=[72, 105])
    batch = await complete(gateway, prompt=[[72, 105], [72]])
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"] == batch["choices"][0]["text"]


async def test_scoring_a_prompt(gateway: Gateway) -> None:
    answer = await complete(gateway, echo=True, logprobs=2, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "length")
    scores = choice["logprobs"]
    assert scores["tokens"] == ["H", "e", "l", "l", "o"]
    assert scores["text_offset"] == [0, 1, 2, 3, 4]
    assert scores["token_logprobs"] == [None, -1.01, -1.08, -1.08, -1.11]
    assert scores["top_logprobs"][0] is None
    assert scores["top_logprobs"][1] == {"e": -1.01, "f": -1.02}
    assert answer["usage"]["completion_tokens"] == 0
    policy = gateway.engine.requests[0].cache
    assert (policy.read, policy.write) == (False, True)


async def test_echo_with_an_answer(start: Start) -> None:
    gateway = await start(FakeEngine(says(" world")))
    answer = await complete(gateway, echo=True, logprobs=0, max_tokens=20)
    choice = answer["choices"][0]
    assert choice["text"] == "Hello world"
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == "Hello world"
    assert scores["text_offset"] == list(range(11))
    assert scores["top_logprobs"][6] == {"w": -1.19}
    assert gateway.engine.requests[0].sampling.logprobs == 0


async def test_a_stream_of_it_adds_up_to_the_whole(gateway: Gateway) -> None:
    for options in (
        {},
        {"echo": True},
        {"logprobs": 1},
        {"echo": True, "logprobs": 1},
        {"n": 3, "echo": True, "logprobs": 1},
    ):
        body = {"prompt": ["Hello", "Bye"], "max_tokens": 4, **options}
        whole = await complete(gateway, **body)
        parts = await chunks(gateway, **body)
        for choice in whole["choices"]:
            own = [c["choices"][0] for c in parts if c["choices"][0]["index"] == choice["index"]]
            assert "".join(part["text"] for part in own) == choice["text"]
            assert [part["finish_reason"] for part in own] == [None] * (len(own) - 1) + ["length"]
            assert own[-1]["text"] == ""
            if choice["logprobs"]:
                for key, values in choice["logprobs"].items():
                    assert [v for part in own if part["logprobs"] for v in part["logprobs"][key]] == values


async def test_usage_in_a_stream(gateway: Gateway) -> None:
    *parts, usage = await chunks(gateway, max_tokens=3, stream_options={"include_usage": True})
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)
    assert all(part["usage"] is None for part in parts)


async def test_bytes_that_are_no_text_are_spelled(start: Start) -> None:
    gateway = await start(FakeEngine(says("é", end=None)))
    answer = await complete(gateway, logprobs=1, max_tokens=2)
    assert answer["choices"][0]["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert answer["choices"][0]["text"] == "é"


async def test_token_ids_on_request(gateway: Gateway) -> None:
    answer = await complete(gateway, return_token_ids=True, max_tokens=3)
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == list(b"Hello")
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    parts = await chunks(gateway, return_token_ids=True, max_tokens=3)
    assert [i for part in parts for i in part["choices"][0]["token_ids"]] == choice["token_ids"]
    assert parts[0]["choices"][0]["prompt_token_ids"] == choice["prompt_token_ids"]
    assert all("prompt_token_ids" not in part["choices"][0] for part in parts[1:])


async def test_the_official_client_reads_it(gateway: Gateway) -> None:
    def ask() -> tuple[Completion, list[Completion]]:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            whole = client.completions.create(model=MODEL, prompt=["a", "b"], echo=True, logprobs=1)
            stream = list(client.completions.create(model=MODEL, prompt="a", stream=True))
            return whole, stream

    whole, stream = await asyncio.to_thread(ask)
    assert whole.choices[1].logprobs is not None
    assert whole.choices[1].logprobs.token_logprobs is not None
    assert whole.choices[1].logprobs.token_logprobs[0] is None
    assert stream[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("length", "in_place"), [(INLINE_TOKENS - 1, True), (INLINE_TOKENS + 1, False)])
async def test_many_log_probabilities_are_written_off_the_loop_and_once_for_all_choices(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, stream: bool, length: int, in_place: bool
) -> None:
    threads = []
    original = CompletionLogprobs.add_prompt

    def add_prompt(self: CompletionLogprobs, *args: Any) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        original(self, *args)

    monkeypatch.setattr(CompletionLogprobs, "add_prompt", add_prompt)
    asked: dict[str, Any] = {"prompt": [65] * length, "n": 3, "echo": True, "logprobs": 2, "max_tokens": 0}
    parts = await chunks(gateway, **asked) if stream else [await complete(gateway, **asked)]
    choices = [choice for part in parts for choice in part["choices"]]
    scored = [choice["logprobs"]["tokens"] for choice in choices if choice["logprobs"]]
    assert scored == [["A"] * length] * 3
    assert threads == [in_place]


async def test_choices_continue_the_same_scored_prompt_on_their_own(gateway: Gateway) -> None:
    answer = await complete(gateway, n=2, echo=True, logprobs=1, max_tokens=3)
    for choice in answer["choices"]:
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    first, second = answer["choices"]
    assert first["text"] != second["text"]

"""A real model through the whole stack: what a newcomer sees, and a long prefix that is paid for once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from .server import Server

READY_WITHIN = 20.0
MARGIN = 0.1
"""Two orders of the same sums may differ by this much in a log-probability (bfloat16). Where the best two tokens are closer
than this, either may be chosen."""

pytestmark = [pytest.mark.demo_model, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def client(demo_server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=demo_server.url, api_key="unused", max_retries=0, timeout=120) as openai:
        yield openai


def test_a_newcomer_gets_a_streamed_answer(demo_server: Server, client: OpenAI) -> None:
    print(f"\nready after {demo_server.ready_after:.1f} s")
    assert demo_server.ready_after < READY_WITHIN
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 3


def test_a_shared_system_prompt_is_computed_once(demo_server: Server, client: OpenAI) -> None:
    """The second chat reports the first one's prefix as cached, and an answer is the same cold and warm."""
    words = ["river", "stone", "lamp", "paper", "winter", "garden", "silver", "road", "music", "window"]
    rng = random.Random(1)
    system = "You answer briefly. " + " ".join(rng.choice(words) for _ in range(600))

    def ask(question: str) -> Any:
        return client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": question}],
            temperature=0,
            max_tokens=12,
            logprobs=True,
            top_logprobs=2,
        )

    cold = ask("Name a fruit.")
    other = ask("Which colour is the sky?")
    warm = ask("Name a fruit.")
    shared = demo_server.post(
        "/tokenize", {"messages": [{"role": "system", "content": system}], "add_generation_prompt": False}
    ).json()["count"]
    assert shared > 600
    assert cold.usage.prompt_tokens_details.cached_tokens < 50
    assert other.usage.prompt_tokens_details.cached_tokens >= 0.95 * shared
    assert warm.usage.prompt_tokens_details.cached_tokens == warm.usage.prompt_tokens - 1
    _agree(cold.choices[0].logprobs.content, warm.choices[0].logprobs.content)


def test_a_breakpoint_and_a_prewarm_keep_what_agents_share(client: OpenAI) -> None:
    """Real words, real tokens: what was cached up to the breakpoint is found by every question behind it."""
    rules = "You are a clerk of the town library. " + "Answer kindly, briefly and in whole sentences. " * 40
    options: Any = {"mode": "explicit", "ttl": "5m"}

    def ask(question: str, **more: Any) -> Any:
        part = {"type": "text", "text": rules, "prompt_cache_breakpoint": {"mode": "explicit"}}
        return client.chat.completions.create(  # type: ignore[call-overload]
            model=client.models.list().data[0].id,
            messages=[{"role": "system", "content": [part]}, {"role": "user", "content": question}],
            temperature=0,
            max_tokens=8,
            **more,
        )

    warmed = ask("?", extra_body={"prompt_cache_options": {**options, "prewarm": True}})
    assert warmed.usage.completion_tokens == 0
    kept = warmed.model_extra["x_cache"]["matched_tokens"] + warmed.model_extra["x_cache"]["write_tokens"]
    assert kept > 300
    for question in ("When do you open?", "May I eat here?"):
        answer = ask(question, prompt_cache_options=options)
        details = answer.usage.prompt_tokens_details
        assert details.cached_tokens == kept
        assert details.cache_write_tokens == 0
        assert answer.model_extra["x_cache"]["hit_tokens"]["device"] == kept
        assert answer.choices[0].message.content


def test_deterministic_answers_are_the_same_to_the_last_bit(demo_server: Server, tmp_path: Path) -> None:
    """Cold and alone, or warm from the device, and from disk after a restart, with others in every
    step: prompts cut at random, compared by their tokens and log-probabilities."""
    rng = random.Random(3)
    names = ["river", "stone", "lamp", "paper", "winter", "garden", "silver", "road", "music", "window"]
    story = [rng.choice(names) for _ in range(220)]
    prompts = [
        " ".join(story[: rng.randrange(90, 220)]) + f". Name {what}."
        for what in ("a fruit", "a colour", "a bird", "one tree")
    ]
    flags = (
        *demo_server.flags,
        "--deterministic",
        "--host-cache",
        "64MiB",
        "--cache-dir",
        str(tmp_path / "cache"),
    )

    def ask(server: Server, prompt: str, number: int, **cache: Any) -> tuple[Any, int, dict[str, int]]:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 6, "seed": number}
        sampling = {"temperature": number % 2, "logprobs": True, "top_logprobs": 2, "cache": cache}
        model = server.get("/v1/models").json()["data"][0]["id"]
        reply = server.post("/v1/chat/completions", {"model": model, **body, **sampling}, timeout=100.0)
        assert reply.status == 200, reply
        answer = reply.json()
        usage, tiers = answer["usage"], answer["x_cache"]["hit_tokens"]
        return answer["choices"][0]["logprobs"], usage["prompt_tokens_details"]["cached_tokens"], tiers

    def together(server: Server) -> dict[str, int]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda at: ask(server, prompts[at], at, ttl="1h"), range(len(prompts))))
        found = {tier: sum(tiers[tier] for _, _, tiers in answers) for tier in ("device", "host", "disk")}
        for (said, cached, _), (alone, nothing, _) in zip(answers, cold, strict=True):
            assert said == alone
            assert nothing == 0 < cached
        return found

    server = Server(_made(tmp_path / "cold"), *flags, model=None)
    try:
        cold = [ask(server, prompt, at, bypass="all") for at, prompt in enumerate(prompts)]
        ask(server, " ".join(story), 0, ttl="1h")
        assert together(server)["device"] > 400
        assert together(server)["device"] > 400, "to the last token, the tail of a page copied"
        server.terminate()
        assert server.wait() == 0
        server = Server(_made(tmp_path / "warm"), *flags, model=None)
        assert together(server)["disk"] > 90
    finally:
        server.stop()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _agree(cold: list[Any], warm: list[Any]) -> None:
    """Token by token; a split is allowed once, where the reference was undecided."""
    for ours, theirs in zip(cold, warm, strict=False):
        if ours.token != theirs.token:
            best, second = ours.top_logprobs
            assert best.logprob - second.logprob < MARGIN, (ours, theirs)
            return
        assert abs(ours.logprob - theirs.logprob) < MARGIN
    assert len(cold) == len(warm)

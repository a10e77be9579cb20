"""The prompt cache as users ask for it, with OpenAI's client against the hash model: what is found is what was promised."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, BadRequestError, OpenAI

from .conftest import Serve
from .server import Server

MODEL = "hash"
PAGE = 16
OPENING = 16  # tokens that any two chats may share: the template's first words


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=60) as openai:
        yield openai


@pytest.fixture
def text(request: pytest.FixtureRequest) -> str:
    """Words that no other test has said before."""
    words = ["river", "stone", "lamp", "paper", "winter", "garden", "silver", "road", "music", "window"]
    rng = random.Random(request.node.name)
    return " ".join(rng.choice(words) for _ in range(150))


def chat(client: OpenAI, *messages: dict[str, Any], **options: Any) -> Any:
    return client.chat.completions.create(  # type: ignore[call-overload]
        model=MODEL, messages=list(messages), max_tokens=options.pop("max_tokens", 4), **options
    )


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def marked(text: str, **more: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "prompt_cache_breakpoint": {"mode": "explicit", **more}}


def counts(answer: Any) -> tuple[int, int, int]:
    """Prompt tokens, those found and those written; they add up as they should."""
    details = answer.usage.prompt_tokens_details
    prompt, found, written = answer.usage.prompt_tokens, details.cached_tokens, details.cache_write_tokens
    assert 0 <= found <= prompt - 1
    assert written >= 0
    assert found + written <= prompt
    return prompt, found, written


def told(answer: Any) -> dict[str, Any]:
    details: dict[str, Any] = answer.model_extra["x_cache"]
    return details


def test_the_same_again_is_found_to_the_last_token(client: OpenAI, text: str) -> None:
    prompt, found, written = counts(chat(client, said("user", text)))
    assert found <= OPENING
    assert prompt - PAGE < found + written <= prompt, "the last page is written with the answer"
    prompt, found, written = counts(chat(client, said("user", text), prompt_cache_key="k"))
    assert found == prompt - 1
    assert written <= 1


def test_a_prewarmed_prompt_is_found(client: OpenAI, text: str) -> None:
    warmed = chat(
        client, said("user", text), extra_body={"prompt_cache_options": {"prewarm": True, "ttl": "5m"}}
    )
    prompt, found, written = counts(warmed)
    assert (warmed.usage.completion_tokens, warmed.choices[0].message.content) == (0, "")
    assert warmed.choices[0].finish_reason == "length"
    assert found + written == prompt
    assert told(warmed)["ttl"] == "5m"
    assert len(told(warmed)["entry_ids"]) == 1
    prompt, found, _ = counts(chat(client, said("user", text)))
    assert found == prompt - 1

    body = {"prompt_cache_options": {"prewarm": True}}
    completion = client.completions.create(model=MODEL, prompt=text + "!", extra_body=body)
    assert (completion.choices[0].text, completion.usage and completion.usage.completion_tokens) == ("", 0)
    prompt, found, _ = counts(client.completions.create(model=MODEL, prompt=text + "!", max_tokens=1))
    assert found == prompt - 1


def test_explicit_mode_caches_up_to_its_breakpoint(client: OpenAI, text: str) -> None:
    options = {"mode": "explicit", "ttl": "30m"}

    def ask(tail: str) -> Any:
        content = [marked(text), {"type": "text", "text": f" {tail}"}]
        return chat(client, said("user", content), prompt_cache_options=options)

    first = ask("Name a fruit.")
    _, found, written = counts(first)
    assert told(first)["mode"] == "explicit"
    _, again, more = counts(ask("Name a tree."))
    assert 0 <= again - (found + written) < PAGE
    assert more == 0
    prompt, kept, _ = counts(chat(client, said("user", f"{text} Name a fruit.")))
    assert kept == again < prompt - 1, "what came behind the breakpoint was not kept"


def test_explicit_mode_without_breakpoints_uses_nothing(client: OpenAI, text: str) -> None:
    chat(client, said("user", text))
    answer = chat(client, said("user", text), prompt_cache_options={"mode": "explicit"})
    assert counts(answer)[1:] == (0, 0)
    assert told(answer)["reason"] == "bypass"
    other = chat(client, said("user", text[::-1]), prompt_cache_options={"mode": "explicit"})
    assert counts(other)[1:] == (0, 0)
    assert counts(chat(client, said("user", text[::-1])))[1] <= OPENING


@pytest.mark.parametrize(
    ("bypass", "finds", "leaves"), [("read", False, True), ("write", True, False), ("all", False, False)]
)
def test_a_bypass(client: OpenAI, text: str, bypass: str, finds: bool, leaves: bool) -> None:
    chat(client, said("user", text))
    body = {"cache": {"bypass": bypass}}
    prompt, found, written = counts(chat(client, said("user", text), extra_body=body))
    assert found == (prompt - 1 if finds else 0)
    assert bypass == "read" or written == 0
    chat(client, said("user", text + " more"), extra_body=body)
    prompt, found, _ = counts(chat(client, said("user", text + " more")))
    assert (found == prompt - 1) == leaves


def test_scoring_reads_nothing_and_leaves_all(client: OpenAI, text: str) -> None:
    def score() -> Any:
        return client.completions.create(model=MODEL, prompt=text, max_tokens=0, echo=True, logprobs=1)

    first, second = score(), score()
    assert first.choices[0].logprobs == second.choices[0].logprobs
    assert counts(second)[1] == 0
    prompt, found, _ = counts(client.completions.create(model=MODEL, prompt=text, max_tokens=1))
    assert found == prompt - 1


@pytest.mark.parametrize("options", [{}, {"n": 3}, {"stop": ["e"], "max_tokens": 60}, {"max_tokens": 60}])
def test_a_stream_counts_like_the_whole(client: OpenAI, text: str, options: dict[str, Any]) -> None:
    asked = {"seed": 5, "temperature": 1, "prompt_cache_options": {"ttl": "1h"}, **options}
    chat(client, said("user", text), **asked)
    whole = chat(client, said("user", text), **asked)
    chunks = list(
        chat(client, said("user", text), stream=True, stream_options={"include_usage": True}, **asked)
    )
    assert chunks[-1].usage == whole.usage
    ours, theirs = told(whole), told(chunks[-1])
    for timed in ("saved_ms", "loading_ms"):
        ours.pop(timed)
        theirs.pop(timed)
    assert ours == theirs
    assert ours["hit_tokens"] == {"device": whole.usage.prompt_tokens - 1, "host": 0, "disk": 0}


def test_headers_on_whole_answers_and_streams(client: OpenAI, text: str) -> None:
    chat(client, said("user", text))
    ask: Any = {"model": MODEL, "messages": [said("user", text)], "max_tokens": 2}
    whole = client.chat.completions.with_raw_response.create(**ask)
    prompt = whole.parse().usage
    assert prompt is not None
    hit = f"hit={prompt.prompt_tokens - 1};write="
    assert whole.headers["x-cache"] == f"{hit}{counts(whole.parse())[2]};reason=hit"
    with client.chat.completions.with_streaming_response.create(**ask, stream=True) as stream:
        assert stream.headers["x-cache"].startswith(hit)
        assert stream.headers["x-cache"].endswith("reason=hit")


@pytest.mark.parametrize("pause", ["120s", "0s"])
def test_a_conversation_that_waits_for_its_tools_is_kept(serve: Serve, text: str, pause: str) -> None:
    """While others fill the cache three times over; one that waits for nothing is not."""
    server = serve("--pages", "200", "--max-model-len", "1536")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    options: Any = {"tools": [tool], "extra_body": {"cache": {"tool_pause_ttl": pause}}}
    with OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=60) as client:
        answer = chat(client, said("user", text), tool_choice="required", max_tokens=200, **options)
        call = answer.choices[0].message.tool_calls[0]
        for other in range(10):
            chat(client, said("user", f"{other} {text}"))
        result = {"role": "tool", "tool_call_id": call.id, "content": "42"}
        found = counts(chat(client, said("user", text), answer.choices[0].message, result, **options))[1]
        if pause == "0s":
            assert found <= 2 * OPENING
        else:
            assert found > counts(answer)[0], "all of the question, and of the answer"


def test_a_cache_object_is_what_a_request_begins_with(server: Server, client: OpenAI, text: str) -> None:
    made = server.post("/v1/caches", {"model": MODEL, "messages": [said("system", text)], "ttl": "5m"}).json()
    answer = chat(client, said("user", "hello"), extra_body={"cache": {"id": made["id"]}})
    prompt, found, _ = counts(answer)
    assert found >= made["tokens"]
    assert made["id"] in told(answer)["entry_ids"]
    spelled = chat(client, said("system", text), said("user", "hello"))
    assert counts(spelled)[:2] == (prompt, prompt - 1)
    assert spelled.choices[0].message.content is not None

    completed = client.completions.create(
        model=MODEL, prompt=" and more", max_tokens=1, extra_body={"cache": {"id": made["id"]}}
    )
    assert counts(completed)[1] >= made["tokens"]

    connection = server.request("DELETE", f"/v1/caches/{made['id']}")
    assert connection.status == 200
    with pytest.raises(APIStatusError) as gone:
        chat(client, said("user", "hello"), extra_body={"cache": {"id": made["id"]}})
    assert (gone.value.status_code, gone.value.code) == (404, "cache_not_found")


def test_more_pins_than_a_tenant_may_have(serve: Serve, tmp_path: Path, text: str) -> None:
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text("default: {pins: 10%}\n")
    server = serve("--tenants", str(tenants), "--pages", "200", "--max-model-len", "1024")
    pin: Any = {"extra_body": {"cache": {"pin": "hard"}}}
    with OpenAI(base_url=server.url, api_key="any", max_retries=0, timeout=60) as client:
        pinned = chat(client, said("user", text[:200]), **pin)
        assert told(pinned)["pin"] == "hard"
        with pytest.raises(APIStatusError) as refused:
            chat(client, said("user", text[200:700]), **pin)
        assert (refused.value.status_code, refused.value.code) == (409, "pin_quota_exceeded")
        assert refused.value.param == "cache.pin"
        assert counts(chat(client, said("user", text[200:700])))[0] > 400, "without a pin it is served"


def test_refusals_reach_the_client_as_its_own_errors(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as error:
        chat(client, said("user", "hi"), extra_body={"cache": {"pinned": True}})
    assert (error.value.param, error.value.code) == ("cache.pinned", "unknown_parameter")

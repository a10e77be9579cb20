"""Requests that can never work: each gets its status, its `param` and its `code`, before anything is queued."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from typing import Any

import openai
import pytest
from openai import OpenAI

from gateway.chat_template import ChatTemplate
from gateway.tokenizer import Tokenizer
from tests.gateway.live import MODEL, Gateway

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def say(**message: Any) -> dict[str, Any]:
    return {"messages": [message]}


def parts(*items: Any) -> dict[str, Any]:
    return say(role="user", content=list(items))


BAD_CHAT: list[tuple[dict[str, Any], str, str]] = [
    # what is changed in a good request, param, code
    ({"model": None}, "model", "missing_required_parameter"),
    ({"model": 5}, "model", "invalid_type"),
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "empty_array"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": ["hi"]}, "messages[0]", "invalid_type"),
    ({"messages": [*USER] * 5000}, "messages", "array_above_max_length"),
    (say(content="x"), "messages[0].role", "missing_required_parameter"),
    (say(role=1, content="x"), "messages[0].role", "invalid_type"),
    (say(role="wizard", content="x"), "messages[0].role", "invalid_value"),
    (say(role="function", content="x", name="f"), "messages[0].role", "invalid_value"),
    (say(role="user"), "messages[0].content", "missing_required_parameter"),
    (say(role="user", content=None), "messages[0].content", "missing_required_parameter"),
    (say(role="assistant", content=None), "messages[0].content", "missing_required_parameter"),
    (say(role="user", content=7), "messages[0].content", "invalid_type"),
    (say(role="user", content=[]), "messages[0].content", "empty_array"),
    (say(role="user", content="x", mood="good"), "messages[0].mood", "unknown_parameter"),
    (say(role="user", content="x", name=7), "messages[0].name", "invalid_type"),
    (say(role="user", content="x", name="n" * 513), "messages[0].name", "string_above_max_length"),
    (say(role="assistant", content="x", audio={"id": "a"}), "messages[0].audio", "unsupported_parameter"),
    (say(role="tool", content="4"), "messages[0].tool_call_id", "missing_required_parameter"),
    (say(role="assistant", tool_calls=[]), "messages[0].tool_calls", "empty_array"),
    (say(role="assistant", tool_calls=[7]), "messages[0].tool_calls[0]", "invalid_type"),
    (
        say(role="assistant", tool_calls=[{"id": "c", "type": "web_search"}]),
        "messages[0].tool_calls[0].type",
        "unsupported_parameter",
    ),
    (
        say(role="assistant", tool_calls=[{"id": "c", "type": "custom"}]),
        "messages[0].tool_calls[0].custom",
        "invalid_type",
    ),
    (
        say(
            role="assistant", tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f", "input": 1}}]
        ),
        "messages[0].tool_calls[0].custom.input",
        "invalid_type",
    ),
    (
        say(role="assistant", content="x", reasoning_content=["x"]),
        "messages[0].reasoning_content",
        "invalid_type",
    ),
    (
        say(role="user", content="x", reasoning_content="x"),
        "messages[0].reasoning_content",
        "unknown_parameter",
    ),
    (
        say(role="assistant", tool_calls=[{"id": "c", "function": {"name": "f", "arguments": {}}}]),
        "messages[0].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    (parts("x"), "messages[0].content[0]", "invalid_type"),
    (parts({"text": "x"}), "messages[0].content[0].type", "missing_required_parameter"),
    (parts({"type": "text"}), "messages[0].content[0].text", "invalid_type"),
    (parts({"type": "text", "text": "x", "x": 1}), "messages[0].content[0].x", "unknown_parameter"),
    (
        parts(
            {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
        ),
        "messages[0].content[1].type",
        "unsupported_parameter",
    ),
    (
        parts({"type": "input_audio", "input_audio": {"data": ""}}),
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": "many"}, "max_tokens", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "invalid_type"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
    ({"max_tokens": 2**63}, "messages", "context_length_exceeded"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "integer_below_min_value"),
    ({"logprobs": 1}, "logprobs", "invalid_type"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"logprobs": True, "top_logprobs": 100_000}, "top_logprobs", "integer_above_max_value"),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "invalid_value",
    ),
    ({"tools": []}, "tools", "empty_array"),
    ({"tools": [{**TOOL, "type": "mcp"}]}, "tools[0].type", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type"),
    ({"tools": [TOOL], "ignore_eos": True}, "ignore_eos", "conflicting_parameters"),
    ({"tools": [TOOL], "min_tokens": 3}, "min_tokens", "conflicting_parameters"),
    ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ({"response_format": {"type": "yaml"}}, "response_format", "invalid_value"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
    ({"prediction": {"type": "content"}}, "prediction", "unsupported_parameter"),
    ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
    ({"verbosity": "low"}, "verbosity", "unsupported_parameter"),
    ({"echo": True}, "echo", "unsupported_parameter"),
    ({"chat_template": "{% for i in range(99999) %}x{% endfor %}"}, "chat_template", "unsupported_parameter"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "invalid_type"),
    ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", "invalid_value"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "invalid_value"),
    ({"chat_template_kwargs": {"eos_token": ""}}, "chat_template_kwargs.eos_token", "invalid_value"),
    (
        {"chat_template_kwargs": {f"v{i}": 1 for i in range(33)}},
        "chat_template_kwargs",
        "object_above_max_properties",
    ),
    ({"chat_template_kwargs": {"v": "x" * 20_000}}, "chat_template_kwargs", "string_above_max_length"),
]

BAD_TEXT: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "missing_required_parameter"),
    ({"prompt": ""}, "prompt", "invalid_value"),
    ({"prompt": []}, "prompt", "empty_array"),
    ({"prompt": [[]]}, "prompt[0]", "empty_array"),
    ({"prompt": {}}, "prompt", "invalid_type"),
    ({"prompt": [True]}, "prompt[0]", "invalid_type"),
    ({"prompt": [1.5]}, "prompt[0]", "invalid_type"),
    ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
    ({"prompt": ["a", [1]]}, "prompt[1]", "invalid_type"),
    ({"prompt": [[1], [[2]]]}, "prompt[1]", "invalid_type"),
    ({"prompt": [-1]}, "prompt", "invalid_value"),
    ({"prompt": [259]}, "prompt", "invalid_value"),
    ({"prompt": [2**31]}, "prompt", "invalid_value"),
    ({"prompt": ["x"] * 100_000}, "prompt", "array_above_max_length"),
    ({"prompt": [1] * 2048}, "prompt", "context_length_exceeded"),
    ({"prompt": "x" * 2048}, "prompt", "context_length_exceeded"),
    ({"prompt": "word " * 300_000}, "prompt", "context_length_exceeded"),
    ({"max_tokens": 2047}, "prompt", "context_length_exceeded"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"suffix": "x"}, "suffix", "unsupported_parameter"),
    ({"best_of": 2}, "best_of", "unsupported_parameter"),
    ({"best_of": 10**9}, "best_of", "unsupported_parameter"),
    ({"messages": USER}, "messages", "unknown_parameter"),
]

BAD_SAMPLING: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": 9}, "temperature", "integer_above_max_value"),
    ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ({"temperature": "0.5"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": [1]}, "temperature", "invalid_type"),
    ({"top_p": 1.1}, "top_p", "decimal_above_max_value"),
    ({"top_k": -2}, "top_k", "integer_below_min_value"),
    ({"min_p": 1.5}, "min_p", "decimal_above_max_value"),
    ({"presence_penalty": 2.5}, "presence_penalty", "decimal_above_max_value"),
    ({"frequency_penalty": -2.5}, "frequency_penalty", "decimal_below_min_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "integer_below_min_value"),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": -1}, "n", "integer_below_min_value"),
    ({"n": True}, "n", "invalid_type"),
    ({"n": 1.5}, "n", "invalid_type"),
    ({"n": 1_000_000}, "n", "integer_above_max_value"),
    ({"seed": 2**63}, "seed", "integer_above_max_value"),
    ({"seed": "x"}, "seed", "invalid_type"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_value"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": [""]}, "stop", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": [1]}, "stop[0]", "invalid_type"),
    ({"stop": ["x"] * 1000}, "stop", "array_above_max_length"),
    ({"stop": "x" * 257}, "stop", "string_above_max_length"),
    ({"stop_token_ids": [259]}, "stop_token_ids", "invalid_value"),
    ({"stop_token_ids": "x"}, "stop_token_ids", "invalid_type"),
    ({"logit_bias": []}, "logit_bias", "invalid_type"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"999999999": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"abc": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"\u0663": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": 1e30}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": True}}, "logit_bias", "invalid_type"),
    ({"logit_bias": {"5": "1"}}, "logit_bias", "invalid_type"),
    ({"user": "a" * 5_000_000}, "user", "string_above_max_length"),
    ({"user": 5}, "user", "invalid_type"),
    ({"cache_salt": ""}, "cache_salt", "invalid_value"),
    ({"cache_salt": "s" * 513}, "cache_salt", "string_above_max_length"),
    ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "object_above_max_properties"),
    ({"service_tier": "priority"}, "service_tier", "unsupported_parameter"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": []}, "stream_options", "invalid_type"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_parameter"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "unsupported_parameter",
    ),
    ({"priority": -1}, "priority", "integer_below_min_value"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds", "unsupported_parameter"),
    ({"prompt_logprobs": 5}, "prompt_logprobs", "unsupported_parameter"),
    ({"guided_json": 5}, "guided_json", "invalid_type"),
    ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
    ({"regex": "a", "ebnf": "b"}, "ebnf", "conflicting_parameters"),
    ({"regex": "a", "ignore_eos": True}, "ignore_eos", "conflicting_parameters"),
    ({"api_base": "http://127.0.0.1:1"}, "api_base", "unknown_parameter"),
    ({"user_config": {"api_base": "x"}}, "user_config", "unknown_parameter"),
]

ENDPOINTS = {CHAT: {"model": MODEL, "messages": USER}, TEXT: {"model": MODEL, "prompt": "hi"}}
CASES = [
    *[(CHAT, *case) for case in BAD_CHAT],
    *[(TEXT, *case) for case in BAD_TEXT],
    *[(path, *case) for path in ENDPOINTS for case in BAD_SAMPLING],
]


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_fields(gateway: Gateway, stream: bool) -> None:
    """One server for the whole table: whatever it was sent before, it still answers the next one right."""
    wrong = []
    for path, change, param, code in CASES:
        body = {
            **ENDPOINTS[path],
            **({"stream": True} if stream and "stream_options" not in change else {}),
            **change,
        }
        status, answer = await gateway.post(path, body)
        error = answer.get("error", {})
        seen = (status, error.get("param"), error.get("code"), error.get("type"))
        if seen != (400, param, code, "invalid_request_error") or set(error) != {
            "message",
            "type",
            "param",
            "code",
        }:
            wrong.append((path, str(change)[:80], answer))
    assert not wrong
    assert gateway.engine.requests == []
    assert (await gateway.post(CHAT, {**ENDPOINTS[CHAT], "max_tokens": 1}))[0] == 200
    await gateway.at_rest()


BAD_BODIES: list[tuple[bytes, dict[str, str], int, str]] = [
    (b"", {}, 400, "invalid_json"),
    (b"{not json", {}, 400, "invalid_json"),
    (b"[]", {}, 400, "invalid_type"),
    (b'"x"', {}, 400, "invalid_type"),
    (b"\xff\xfe{}", {}, 400, "invalid_json"),
    (b"[" * 100_000, {}, 400, "invalid_json"),
    (b'{"model":"\\ud800"}', {}, 400, "invalid_json"),
    (b'{"temperature":NaN}', {}, 400, "invalid_json"),
    (b'{"temperature":Infinity}', {}, 400, "invalid_json"),
    (
        b'{"model":"x","messages":[{"role":"user","content":"x"}],"temperature":1e400}',
        {},
        400,
        "invalid_json",
    ),
    (b'{"model":"x","messages":[],"n":' + b"9" * 5000 + b"}", {}, 400, "invalid_json"),
    (b"{}", {"Content-Type": "multipart/form-data; boundary=x"}, 415, "unsupported_media_type"),
    (b"{}", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    (b"{}", {"Content-Type": "text/plain;charset=UTF-8"}, 415, "unsupported_media_type"),
    (b"\x1f\x8b", {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
    (b"[" + b"0," * 600_000 + b"0]", {}, 413, "request_too_large"),
]


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize"])
async def test_bad_bodies(start: Any, path: str) -> None:
    gateway: Gateway = await start(limits={"max_body": 2**20})
    for body, headers, status, code in BAD_BODIES:
        async with gateway.client.post(
            gateway.url + path, data=io.BytesIO(body), headers=headers
        ) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (status, code), (body[:40], error)
            assert set(error) == {"message", "type", "param", "code"}


async def test_a_body_in_chunks_is_bounded_too(start: Any) -> None:
    gateway: Gateway = await start(limits={"max_body": 2**16})

    async def endless() -> Any:
        for _ in range(64):
            yield b" " * 4096

    async with gateway.client.post(gateway.url + CHAT, data=endless()) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "request_too_large"


async def test_content_type_may_be_missing(gateway: Gateway) -> None:
    async with gateway.client.post(
        gateway.url + TEXT, data=b'{"model":"toy","prompt":"x"}', skip_auto_headers=["Content-Type"]
    ) as response:
        assert response.status == 200


async def test_unknown_model(gateway: Gateway) -> None:
    for path, good in ENDPOINTS.items():
        status, body = await gateway.post(path, {**good, "model": "nope"})
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


async def test_the_context_message_is_the_one_clients_look_for(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "word " * 300_000}]
    started = time.perf_counter()
    status, body = await gateway.post(CHAT, {"model": MODEL, "messages": messages})
    assert time.perf_counter() - started < 2
    assert status == 400
    assert "maximum context length is 2048 tokens" in body["error"]["message"]
    status, body = await gateway.post(
        CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "x" * 2000}], "max_tokens": 100}
    )
    assert status == 400
    assert (
        "you requested 2119 tokens (2019 in the messages, 100 in the completion)" in body["error"]["message"]
    )


@pytest.mark.parametrize(
    ("prompt", "resulted"),
    [
        ("x" * 2048, "resulted in 2048 tokens, which leaves no room for an answer. "),
        ([65] * 2048, "resulted in 2048 tokens, which leaves no room for an answer. "),
        ("x" * 2049, "resulted in 2049 tokens. "),
        ("x" * 300_000, f"resulted in at least {16 * 2048 - 64} tokens. "),
    ],
    ids=["full", "full of ids", "one too many", "far too many"],
)
async def test_the_context_message_says_how_much_was_asked(
    gateway: Gateway, prompt: str | list[int], resulted: str
) -> None:
    status, body = await gateway.post(TEXT, {"model": MODEL, "prompt": prompt})
    assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    assert (
        f"maximum context length is 2048 tokens. However, your prompt {resulted}" in body["error"]["message"]
    )


async def test_a_text_far_too_long_is_not_tokenised_whole(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    encode = Tokenizer.encode

    def spy(self: Tokenizer, text: str, *, add_special: bool) -> list[int]:
        seen.append(len(text))
        return encode(self, text, add_special=add_special)

    monkeypatch.setattr(Tokenizer, "encode", spy)
    monkeypatch.setattr(ChatTemplate, "encode", None)
    text = "word " * 100_000
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        (CHAT, {"messages": called(text)}),
        (TEXT, {"prompt": text}),
    ):
        status, answer = await gateway.post(path, {"model": MODEL, **body})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert seen == [16 * 2048] * 3


def called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("messages", "in_place"),
    [
        ([{"role": "user", "content": "x" * 1000}], True),
        ([{"role": "user", "content": "x" * 5000}], False),
        (called("x" * 5000), False),
        ([{"role": "user", "content": ""}] * 200, False),
    ],
    ids=["short", "text", "arguments", "many"],
)
async def test_what_takes_long_to_render_leaves_the_loop(
    gateway: Gateway,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[dict[str, Any]],
    in_place: bool,
) -> None:
    places = []
    encode = ChatTemplate.encode

    def spy(self: ChatTemplate, *args: Any, **kwargs: Any) -> list[int]:
        places.append(threading.current_thread() is threading.main_thread())
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(ChatTemplate, "encode", spy)
    await gateway.post(CHAT, {"model": MODEL, "messages": messages, "max_tokens": 1})
    assert places == [in_place]


async def test_the_official_client_sees_typed_errors(gateway: Gateway) -> None:
    def ask() -> openai.BadRequestError:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(model=MODEL, messages=USER, temperature=9)  # type: ignore[arg-type]
            return caught.value

    error = await asyncio.to_thread(ask)
    assert (error.code, error.param, error.type) == (
        "integer_above_max_value",
        "temperature",
        "invalid_request_error",
    )


NULLS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "functions",
    "response_format",
    "stop",
    "logit_bias",
    "stream_options",
    "user",
    "audio",
)
HARMLESS: list[dict[str, Any]] = [
    dict.fromkeys(NULLS),
    {"user": "u", "metadata": {"k": "v"}, "store": False, "service_tier": "auto", "safety_identifier": "s"},
    {
        "prompt_cache_key": "k",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "tool_choice": "none",
        "chat_template_kwargs": {"enable_thinking": False},
    },
    {"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 1, "ignore_eos": True},
    {"stop_token_ids": [5], "include_stop_str_in_output": True, "cache_salt": "s", "priority": 3},
    {"temperature": -0.0, "top_p": 0, "seed": -(2**63), "presence_penalty": -2, "frequency_penalty": 2},
    {"temperature": 1, "top_p": 1, "n": 2, "logit_bias": {"15": -100, "16": 3}},
    {"max_tokens": 50, "max_completion_tokens": 1},
    say(role="developer", content="x"),
    parts({"type": "text", "text": "a"}, {"type": "text", "text": "b"}),
    say(
        role="assistant",
        content="",
        refusal=None,
        annotations=[],
        audio=None,
        tool_calls=None,
        function_call=None,
    ),
    {
        "messages": [
            *USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "4C"},
        ]
    },
]


async def test_what_asks_for_nothing_more_is_accepted(gateway: Gateway) -> None:
    for change in HARMLESS:
        status, body = await gateway.post(CHAT, {**ENDPOINTS[CHAT], "max_tokens": 2, **change})
        assert status == 200, (change, body)
    await gateway.at_rest()


async def test_a_body_of_brackets_is_refused_unread(gateway: Gateway) -> None:
    async with gateway.client.post(
        gateway.url + CHAT, data=io.BytesIO(b'{"messages":[' + b"{}," * 600_000 + b"{}]}")
    ) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "array_above_max_length"
    code = "{[" * 200_000
    status, _ = await gateway.post(CHAT, {"model": "nope", "messages": [{"role": "user", "content": code}]})
    assert status == 404, "texts may hold brackets"

"""Tools in chat, whole and streamed: what the engine is asked, what becomes of what it says, and how OpenAI would say it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Start
from tests.gateway.tools.wire import WEATHER, Said, ask, function, hermes, named

OSLO = '{"city": "Oslo"}'
TOOLS = [function("get_weather"), function("stop", {"type": "object", "properties": {}})]
SHELL = {"type": "custom", "custom": {"name": "shell", "description": "Runs it"}}
PICK = {
    "type": "custom",
    "custom": {
        "name": "pick",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "a" | "b"'}},
    },
}

streamed = pytest.mark.parametrize("stream", [False, True])


async def answer(start: Start, text: str, stream: bool, **body: Any) -> Said:
    gateway = await start(FakeEngine(says(text)))
    (said,) = await ask(gateway, {"tools": TOOLS, **body}, stream=stream)
    return said


@streamed
@pytest.mark.parametrize(
    ("text", "content", "calls", "finish"),
    [
        ("No need.", "No need.", [], "stop"),
        ("", None, [], "stop"),
        (hermes("get_weather", OSLO), None, [("function", "get_weather", OSLO)], "tool_calls"),
        (hermes("stop", "{}"), None, [("function", "stop", "{}")], "tool_calls"),
        (
            "Let me see.\n" + hermes("get_weather", OSLO) + "\n" + hermes("stop", "{}"),
            "Let me see.",
            [("function", "get_weather", OSLO), ("function", "stop", "{}")],
            "tool_calls",
        ),
        (
            hermes("get_weather", '{"city": "</tool_call> é\\" }"}'),
            None,
            [("function", "get_weather", '{"city": "</tool_call> é\\" }"}')],
            "tool_calls",
        ),
        ("<tool_call>\n{nothing", "<tool_call>\n{nothing", [], "stop"),
    ],
)
async def test_what_a_model_may_say(
    start: Start, stream: bool, *, text: str, content: str | None, calls: Any, finish: str
) -> None:
    said = await answer(start, text, stream)
    assert (said.content or None, said.calls, said.finish) == (content, calls, finish)
    assert len(set(said.ids)) == len(said.ids)
    assert all(call_id.startswith("call_") for call_id in said.ids)
    assert said.report is None
    assert said.usage["completion_tokens"] == len(text.encode()) + 1


@streamed
@pytest.mark.parametrize(
    ("choice", "finish"),
    [
        (None, "tool_calls"),
        ("auto", "tool_calls"),
        ("required", "tool_calls"),
        (named("get_weather"), "stop"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("get_weather")]}},
            "tool_calls",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("get_weather")]}},
            "tool_calls",
        ),
    ],
)
async def test_why_it_finished(start: Start, stream: bool, choice: Any, finish: str) -> None:
    said = await answer(start, hermes("get_weather", OSLO), stream, tool_choice=choice)
    assert (said.calls, said.finish) == ([("function", "get_weather", OSLO)], finish)


@streamed
async def test_what_may_not_be_called_is_text(start: Start, stream: bool) -> None:
    text = hermes("get_weather", OSLO)
    said = await answer(start, text, stream, tool_choice="none")
    assert (said.content, said.calls, said.finish) == (text, [], "stop")
    only = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("stop")]}}
    said = await answer(start, text, stream, tool_choice=only)
    assert (said.content, said.calls, said.finish) == (text, [], "stop")


@streamed
@pytest.mark.parametrize("limit", range(1, 70, 4))
async def test_what_a_limit_cuts_is_length(start: Start, stream: bool, limit: int) -> None:
    text = hermes("get_weather", OSLO)
    gateway = await start(FakeEngine(lambda request, index: text.encode()[:limit]))
    body = {"tools": TOOLS, "tool_choice": "required", "max_tokens": limit}
    (said,) = await ask(gateway, body, stream=stream)
    assert said.finish == ("length" if limit < len(text) + 1 else "tool_calls")
    for _, name, arguments in said.calls:
        assert name == "get_weather"
        assert OSLO.startswith(arguments)


@streamed
async def test_custom_tools(start: Start, stream: bool) -> None:
    text = hermes("shell", '{"input": "ls \\"a b\\"\\n"}')
    said = await answer(start, text, stream, tools=[*TOOLS, SHELL])
    assert (said.calls, said.finish) == ([("custom", "shell", 'ls "a b"\n')], "tool_calls")


@streamed
async def test_choices_are_apart(start: Start, stream: bool) -> None:
    texts = [hermes("get_weather", OSLO), "No.", hermes("stop", "{}") + "\n" + hermes("stop", "{}")]
    gateway = await start(FakeEngine(lambda request, index: [*texts[index].encode(), 257]))
    said = await ask(gateway, {"tools": TOOLS, "n": 3}, stream=stream)
    assert [len(one.calls) for one in said] == [1, 0, 2]
    assert [one.finish for one in said] == ["tool_calls", "stop", "tool_calls"]
    ids = [call_id for one in said for call_id in one.ids]
    assert len(set(ids)) == 3


@streamed
@pytest.mark.parametrize("strict", [True, False])
async def test_arguments_that_do_not_fit(start: Start, stream: bool, strict: bool) -> None:
    """Never success where they were promised to fit; reported where they were not."""
    gateway = await start(FakeEngine(says(hermes("get_weather", '{"town": 1}'))))
    (said,) = await ask(gateway, {"tools": [function("get_weather", strict=strict)]}, stream=stream)
    if strict:
        assert (said.error["code"], said.error["type"]) == ("schema_violation", "server_error")
    else:
        assert said.finish == "tool_calls"
        assert said.report["valid"] is False
        paths = {problem["path"] for problem in said.report["problems"]}
        assert paths <= {"/tool_calls/0/function/arguments", "/tool_calls/0/function/arguments/town"}
    async with gateway.client.get(gateway.url + "/metrics") as response:
        assert 'headwater_schema_violations_total{model_name="acme/toy-1"} 1.0' in await response.text()


@streamed
@pytest.mark.parametrize("text", ["No.", '<tool_call>\n{"name": "get_weather", "arguments": {"city": '])
async def test_a_call_that_was_required_and_is_not_there(start: Start, stream: bool, text: str) -> None:
    said = await answer(start, text, stream, tool_choice="required")
    assert said.error["code"] == "schema_violation"


@streamed
async def test_calls_or_a_shape(start: Start, stream: bool) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": WEATHER}}
    said = await answer(start, hermes("get_weather", OSLO), stream, response_format=shape)
    assert (said.calls, said.finish) == ([("function", "get_weather", OSLO)], "tool_calls")
    said = await answer(start, OSLO, stream, response_format=shape)
    assert (said.content, said.calls, said.finish) == (OSLO, [], "stop")
    said = await answer(start, '{"town": 1}', stream, response_format=shape)
    assert said.error["code"] == "schema_violation"


@streamed
async def test_stop_strings_are_not_looked_for_in_calls(start: Start, stream: bool) -> None:
    text = "Asking Oslo " + hermes("get_weather", OSLO)
    said = await answer(start, text, stream, stop="city")
    assert (said.content, said.finish) == ("Asking Oslo", "tool_calls")
    said = await answer(start, text, stream, stop="Oslo")
    assert (said.content, said.calls, said.finish) == ("Asking ", [], "stop")


@streamed
async def test_token_details(start: Start, stream: bool) -> None:
    text = "Hé " + hermes("stop", "{}")
    gateway = await start(FakeEngine(says(text)))
    body = {"tools": TOOLS, "logprobs": True, "return_token_ids": True}
    if stream:
        (said,) = await ask(gateway, body, stream=True)
        content = [entry for c in said.chunks if c["logprobs"] for entry in c["logprobs"]["content"]]
        ids = [token for c in said.chunks for token in c.get("token_ids", ())]
    else:
        _, whole = await gateway.post(
            "/v1/chat/completions",
            {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100, **body},
        )
        content = whole["choices"][0]["logprobs"]["content"]
        ids = whole["choices"][0]["token_ids"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "Hé"
    assert bytes(ids).decode() == text


class TestTheRequest:
    """What the engine is asked."""

    async def test_calls_are_constrained_in_every_mode(self, start: Start) -> None:
        gateway = await start(FakeEngine(says("No.")))
        for choice in (None, "none", "required", named("stop")):
            await ask(gateway, {"tools": TOOLS, "tool_choice": choice}, stream=False)
        grammars = [request.grammar for request in gateway.engine.requests]
        assert None not in grammars
        assert len(set(grammars)) == 4

    async def test_without_tools_nothing_is(self, start: Start) -> None:
        gateway = await start()
        await ask(gateway, {}, stream=False)
        await ask(gateway, {"tool_choice": "none"}, stream=False)
        assert [request.grammar for request in gateway.engine.requests] == [None, None]

    async def test_the_prompt_does_not_depend_on_the_choice(self, start: Start) -> None:
        """So that it stays in the cache."""
        gateway = await start(FakeEngine(says(hermes("stop", "{}"))))
        only = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("stop")]}}
        for choice in (None, "none", "required", named("stop"), only):
            await ask(gateway, {"tools": TOOLS, "tool_choice": choice}, stream=False)
        prompts = {bytes(token % 256 for token in request.prompt) for request in gateway.engine.requests}
        assert len(prompts) == 1
        (prompt,) = prompts
        assert b'"name": "get_weather"' in prompt
        assert b"strict" not in prompt

    async def test_the_history_is_said_as_the_model_says_it(self, start: Start) -> None:
        gateway = await start(FakeEngine(says("Cold.")))
        called = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": OSLO}}
        ran = {"id": "d", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [called, ran], "reasoning_content": "hm"},
            {"role": "tool", "tool_call_id": "c", "content": "-4"},
            {"role": "tool", "tool_call_id": "d", "content": "a b"},
        ]
        await ask(gateway, {"tools": TOOLS, "messages": messages}, stream=False)
        prompt = bytes(t for t in gateway.engine.requests[0].prompt if t < 256).decode()
        assert hermes("get_weather", OSLO) + "\n" + hermes("shell", '{"input": "ls"}') in prompt
        assert "<tool_response>\n-4\n</tool_response>\n<tool_response>\na b\n</tool_response>" in prompt

    async def test_special_tokens_in_a_tool_stay_text(self, start: Start) -> None:
        gateway = await start(FakeEngine(says("No.")))
        await ask(gateway, {"tools": [function("f", description="<|im_end|>")]}, stream=False)
        assert [t for t in gateway.engine.requests[0].prompt if t > 255] == [256, 257, 256, 257, 256]

    async def test_a_grammar_of_the_clients_own_is_named_when_refused(self, start: Start) -> None:
        engine = FakeEngine()
        engine.grammar_error = "line 1: no such rule"
        gateway = await start(engine)
        (said,) = await ask(gateway, {"tools": [*TOOLS, PICK]}, stream=False)
        assert (said.error["param"], said.error["code"]) == ("tools[2].custom.format", "invalid_grammar")
        assert "'pick'" in said.error["message"]
        (said,) = await ask(gateway, {"tools": TOOLS}, stream=True)
        assert (said.error["param"], said.error["code"]) == ("tools", "invalid_grammar")


async def test_a_grammar_that_is_too_large_is_refused_before_the_engine_hears_of_it(start: Start) -> None:
    gateway = await start(FakeEngine(says("a"), max_model_len=1_000_000))
    form = {"type": "grammar", "grammar": {"syntax": "lark", "definition": f'start: "{"a" * 70_000}"'}}
    tools = [function("get_weather"), {"type": "custom", "custom": {"name": "c", "format": form}}]
    messages = [{"role": "user", "content": "go"}]
    body = {"model": MODEL, "messages": messages, "tools": tools, "max_tokens": 5}
    status, answer = await gateway.post("/v1/chat/completions", body)
    assert (status, answer["error"]["code"]) == (400, "grammar_too_complex")
    assert answer["error"]["param"] == "tools[1].custom.format"
    assert not gateway.engine.requests

"""Anthropic's own library against /v1/messages: blocks, events, usage, and the rules of `cache_control`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import anthropic
import pytest
from anthropic import Anthropic

from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.tools.wire import WEATHER, hermes

T = TypeVar("T")
HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"name": "get_weather", "description": "Tells it.", "input_schema": WEATHER}
FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


async def with_client(gateway: Gateway, use: Callable[[Anthropic], T], key: str = "any") -> T:
    def work() -> T:
        with Anthropic(base_url=gateway.url, api_key=key, max_retries=0) as client:
            return use(client)

    return await asyncio.to_thread(work)


def text(said: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": said, **({} if mark is None else {"cache_control": mark})}


async def ask(gateway: Gateway, **body: Any) -> Any:
    asked = {"model": MODEL, "max_tokens": 500, "messages": HI, **body}
    return await with_client(gateway, lambda client: client.messages.create(**asked))


async def streamed(gateway: Gateway, **body: Any) -> tuple[list[str], Any]:
    """The events that came over the wire, and the message they add up to."""
    asked = {"model": MODEL, "max_tokens": 500, "messages": HI, **body}

    def work(client: Anthropic) -> tuple[list[str], Any]:
        kinds = [event.type for event in client.messages.create(**asked, stream=True)]
        with client.messages.stream(**asked) as stream:
            return kinds, stream.get_final_message()

    return await with_client(gateway, work)


@pytest.mark.parametrize(
    ("said", "body", "blocks", "reason"),
    [
        ("Hello.", {}, ["text"], "end_turn"),
        ("Hello.", {"max_tokens": 3}, ["text"], "max_tokens"),
        ("Hello.", {"stop_sequences": ["lo"]}, ["text"], "stop_sequence"),
        (hermes("get_weather", '{"city": "Oslo"}'), {"tools": [TOOL]}, ["tool_use"], "tool_use"),
        (
            "So: "
            + hermes("get_weather", '{"city": "Oslo"}')
            + "\n"
            + hermes("get_weather", '{"city": "Rome"}'),
            {"tools": [TOOL]},
            ["text", "tool_use", "tool_use"],
            "tool_use",
        ),
    ],
)
async def test_a_stream_says_what_the_whole_message_says(
    start: Start, said: str, body: dict[str, Any], blocks: list[str], reason: str
) -> None:
    gateway = await start(FakeEngine(says(said)))
    whole = await ask(gateway, **body)
    kinds, message = await streamed(gateway, **body)
    assert [block.type for block in whole.content] == blocks
    assert whole.stop_reason == reason
    assert whole.stop_sequence == ("lo" if reason == "stop_sequence" else None)

    def plain(one: Any) -> Any:
        content = [block.model_dump(exclude={"id", "parsed_output"}) for block in one.content]
        return content, one.stop_reason, one.stop_sequence, one.usage.output_tokens

    assert plain(message) == plain(whole)
    assert (kinds[0], kinds[1]) == ("message_start", "ping") or kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(blocks)


async def test_tools_and_their_results_come_back_as_messages(start: Start) -> None:
    gateway = await start(FakeEngine(says("Cold.")))
    history = [
        *HI,
        {
            "role": "assistant",
            "content": [
                text("Let me see."),
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("4"), text("C")]},
                text("Is that cold?"),
            ],
        },
    ]
    await ask(gateway, messages=history, tools=[TOOL], system=[text("Be "), text("brief.")])
    prompt = bytes(token for token in gateway.engine.requests[0].prompt if token < 256).decode()
    places = [
        prompt.rindex(part)
        for part in ("Be brief.", "hi", "Let me see.", '"get_weather"', "4C", "Is that cold?")
    ]
    assert places == sorted(places)


async def test_an_answer_that_has_begun_goes_on(start: Start) -> None:
    gateway = await start(FakeEngine(says("ello.")))
    message = await ask(gateway, messages=[*HI, {"role": "assistant", "content": "H"}])
    assert message.content[0].text == "ello."
    assert bytes(gateway.engine.requests[0].prompt[-2:]) == b"\nH"


@pytest.mark.parametrize(
    ("found", "body", "usage"),
    [
        (0, {}, {"input": 21, "read": 0, "5m": 0, "1h": 0}),
        (10, {}, {"input": 11, "read": 10, "5m": 0, "1h": 0}),
        (0, {"system": [text("s" * 32, FIVE)]}, {"read": 0, "1h": 0}),
        (0, {"system": [text("s" * 32, HOUR)], "cache_control": FIVE}, {"read": 0}),
    ],
)
async def test_every_token_of_the_prompt_counts_once(
    start: Start, found: int, body: dict[str, Any], usage: dict[str, int]
) -> None:
    engine = FakeEngine(says("Hello."))
    engine.cached_tokens = found
    gateway = await start(engine)
    told = (await ask(gateway, **body)).usage
    counts = {
        "input": told.input_tokens,
        "read": told.cache_read_input_tokens,
        "5m": told.cache_creation.ephemeral_5m_input_tokens,
        "1h": told.cache_creation.ephemeral_1h_input_tokens,
    }
    assert counts.items() >= usage.items()
    assert told.cache_creation_input_tokens == counts["5m"] + counts["1h"]
    prompt = len(engine.requests[0].prompt)
    assert told.input_tokens + told.cache_read_input_tokens + told.cache_creation_input_tokens == prompt
    assert min(counts.values()) >= 0
    if "cache_control" in body:
        assert counts["5m"] > 0
        assert counts["1h"] > 0


async def test_breakpoints_are_promises_as_long_as_they_say(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    await ask(
        gateway, tools=[{**TOOL, "cache_control": HOUR}], system=[text("s" * 40, HOUR)], cache_control=FIVE
    )
    (request,) = gateway.engine.requests
    leases = sorted((entry.tokens, entry.lease.ttl) for entry in request.cache.entries)
    assert [ttl for _, ttl in leases] == [3600.0, 3600.0, 300.0]
    assert leases[-1][0] < len(request.prompt)
    assert request.cache.write_tokens is None, "what lies behind is cached too"
    await ask(gateway)
    assert gateway.engine.requests[1].cache.entries == ()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"system": [text(str(i), FIVE) for i in range(5)]}, "maximum of 4"),
        ({"system": [text(str(i), FIVE) for i in range(4)], "cache_control": FIVE}, "maximum of 4"),
        ({"system": [text("a", FIVE), text("b", HOUR)]}, "must not come after"),
        ({"system": [text("a", FIVE)], "cache_control": HOUR}, "must not come after"),
        (
            {"messages": [{"role": "user", "content": [text("a", HOUR)]}], "cache_control": FIVE},
            "another ttl",
        ),
        ({"system": [text("a", {"type": "ephemeral", "ttl": "2h"})]}, "system.0.cache_control"),
        ({"system": [text("a", {"type": "lasting"})]}, "system.0.cache_control"),
        ({"system": [text("a", "yes")]}, "system.0.cache_control"),
        ({"max_tokens": 0, "stream": True}, "stream"),
        ({"max_tokens": 0, "tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"max_tokens": 0, "thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        (
            {"max_tokens": 0, "output_config": {"format": {"type": "json_schema", "schema": WEATHER}}},
            "output_config.format",
        ),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "no"}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"fast": True}, "fast"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
    ],
)
async def test_what_cannot_be_had_is_named(start: Start, body: dict[str, Any], words: str) -> None:
    gateway = await start()
    status, answer = await gateway.post(
        "/v1/messages", {"model": MODEL, "max_tokens": 5, "messages": HI, **body}
    )
    assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    assert words in answer["error"]["message"]


async def test_equal_times_to_live_on_the_last_block_are_one_breakpoint(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    blocks = [text(str(i) * 20, FIVE) for i in range(4)]
    await ask(gateway, messages=[{"role": "user", "content": blocks}], cache_control=FIVE)


async def test_max_tokens_of_0_brings_the_prompt_into_the_cache(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    message = await ask(gateway, max_tokens=0, cache_control=FIVE)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)


async def test_errors_are_anthropics(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")), http={"api_keys": ("sk-a",)})

    def use(client: Anthropic) -> None:
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.messages.create(model="nope", max_tokens=5, messages=HI)
        assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
        assert client.messages.count_tokens(model=MODEL, messages=HI).input_tokens == 21

    def stranger(client: Anthropic) -> None:
        with pytest.raises(anthropic.AuthenticationError) as wrong:
            client.messages.create(model=MODEL, max_tokens=5, messages=HI)
        assert wrong.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]

    await with_client(gateway, use, key="sk-a")
    await with_client(gateway, stranger, key="sk-b")


async def test_a_failure_in_the_middle_is_an_event(start: Start) -> None:
    engine = FakeEngine(says("Hello, world."))
    engine.fail_after = 5
    gateway = await start(engine)
    with pytest.raises(anthropic.APIStatusError) as failed:
        await streamed(gateway)
    assert failed.value.body["error"]["type"] == "api_error"  # type: ignore[index]

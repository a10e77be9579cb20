"""Stateless chats that go on with the token ids they had, where the operator wants it."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.known_ids import KnownIds
from gateway.spoken import Spoken
from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.tools.wire import function, hermes

ON = {"splice_bytes": 1 << 20}
ODD = '{"city":   "Oslo"}'  # no template writes it so
Message = dict[str, Any]


async def _chat(gateway: Gateway, messages: list[Message], **body: Any) -> tuple[Message, dict[str, Any]]:
    status, answer = await gateway.post(
        "/v1/chat/completions",
        {"model": MODEL, "messages": messages, "tools": [function("get_weather")], "cache": {}, **body},
    )
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    return {k: v for k, v in message.items() if k not in ("refusal", "annotations")}, answer["x_cache"]


async def _turns(gateway: Gateway, **second: Any) -> tuple[list[int], list[int], dict[str, Any]]:
    """The ids of a first turn with its answer, those of the second prompt, and what is told of it."""
    messages: list[Message] = [{"role": "user", "content": "hi"}]
    message, _ = await _chat(gateway, messages)
    messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "4C"}]
    _, told = await _chat(gateway, messages, **second)
    first, following = gateway.engine.requests
    return [*first.prompt, *hermes("get_weather", ODD).encode(), 257], following.prompt, told


async def test_the_answer_is_sent_back_as_it_was_generated(start: Start) -> None:
    said, prompt, told = await _turns(await start(FakeEngine(says(hermes("get_weather", ODD))), limits=ON))
    assert prompt[: len(said)] == said
    assert (told["tokenization"], told["known_tokens"]) == ("spliced", len(said))


async def test_without_it_nothing_is_remembered(start: Start) -> None:
    said, prompt, told = await _turns(await start(FakeEngine(says(hermes("get_weather", ODD)))))
    assert prompt[: len(said)] != said
    assert "tokenization" not in told


@pytest.mark.parametrize(
    "change",
    [{"role": "user", "content": "ho"}, {"role": "system", "content": "hi"}],
)
async def test_another_conversation_is_tokenised_anew(start: Start, change: Message) -> None:
    gateway = await start(FakeEngine(says(hermes("get_weather", ODD))), limits=ON)
    message, _ = await _chat(gateway, [{"role": "user", "content": "hi"}])
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "4C"}
    _, told = await _chat(gateway, [change, message, result])
    assert (told["tokenization"], told["known_tokens"]) == ("canonical", 0)


async def test_an_answer_that_a_stop_string_cut_is_not_remembered(start: Start) -> None:
    gateway = await start(FakeEngine(says("one two three")), limits=ON)
    messages: list[Message] = [{"role": "user", "content": "hi"}]
    message, _ = await _chat(gateway, messages, stop=["two"])
    assert message["content"] == "one "
    _, told = await _chat(gateway, [*messages, message, {"role": "user", "content": "and?"}])
    assert told["known_tokens"] == 0


def test_tenants_find_their_own_and_room_is_bounded() -> None:
    spoken = Spoken(most_bytes=10_000)

    def talk(text: str) -> list[Message]:
        return [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]

    def known(text: str) -> KnownIds:
        return KnownIds.of(range(500), text, 1, [], "v")

    spoken.keep("a", talk("x"), known("x"))
    asked: Message = {"role": "user", "content": "more"}
    assert spoken.find("a", [*talk("x"), asked]) == known("x")
    assert spoken.find("b", [*talk("x"), asked]) is None
    assert spoken.find("a", [*talk("y"), asked]) is None
    for i in range(10):
        spoken.keep("a", talk(str(i)), known(str(i)))
    assert spoken.find("a", talk("x")) is None
    assert spoken.find("a", talk("9")) == known("9")
    assert spoken.find("a", [*talk("9"), *talk("8")]) == known("9"), "the latest turn that is known"

"""Responses with OpenAI's own library: items, events, what is kept, and what goes on from it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from gateway.known_ids import KnownIds
from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.test_chat_sdk import with_client
from tests.gateway.tools.wire import WEATHER, hermes

ODD = '{"city":   "Oslo"}'
WEATHER_TOOL = {"type": "function", "name": "get_weather", "parameters": WEATHER}
SHELL = {"type": "custom", "name": "shell"}
END = 257


def create(client: OpenAI, **body: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "hi", **body})


async def respond(gateway: Gateway, **body: Any) -> Any:
    return await with_client(gateway, lambda client: create(client, **body))


async def events(gateway: Gateway, **body: Any) -> list[Any]:
    return await with_client(gateway, lambda client: list(create(client, stream=True, **body)))


@pytest.mark.parametrize(
    ("text", "body", "items"),
    [
        ("Hello.", {}, ["message"]),
        ("", {}, ["message"]),
        (hermes("get_weather", ODD), {"tools": [WEATHER_TOOL]}, ["function_call"]),
        (hermes("shell", '{"input": "ls"}'), {"tools": [SHELL]}, ["custom_tool_call"]),
        (
            "So: " + hermes("get_weather", ODD) + "\n" + hermes("shell", '{"input": "ls"}'),
            {"tools": [WEATHER_TOOL, SHELL]},
            ["message", "function_call", "custom_tool_call"],
        ),
        ("Hello.", {"max_output_tokens": 3}, ["message"]),
    ],
)
async def test_a_stream_says_what_the_whole_response_says(
    start: Start, text: str, body: dict[str, Any], items: list[str]
) -> None:
    gateway = await start(FakeEngine(says(text)))
    whole = await respond(gateway, **body)
    told = await events(gateway, **body)
    assert [event.sequence_number for event in told] == list(range(len(told)))
    kinds = [event.type for event in told]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{whole.status}"
    last = told[-1].response
    assert [item.type for item in last.output] == items == [item.type for item in whole.output]

    def plain(response: Any) -> Any:
        return response.model_dump(exclude={"id", "created_at", "completed_at", "output"})

    def said(response: Any) -> Any:
        return [item.model_dump(exclude={"id", "call_id"}) for item in response.output]

    assert plain(last) == plain(whole)
    assert said(last) == said(whole)
    for index, item in enumerate(last.output):
        mine = [e for e in told if getattr(e, "output_index", None) == index]
        assert (mine[0].type, mine[-1].type) == ("response.output_item.added", "response.output_item.done")
        assert mine[-1].item == item
        deltas = "".join(e.delta for e in mine if e.type.endswith(".delta"))
        if item.type == "message":
            assert deltas == item.content[0].text
            assert [e.type for e in mine[1:2] + mine[-3:-1]] == [
                "response.content_part.added",
                "response.output_text.done",
                "response.content_part.done",
            ]
        else:
            assert deltas == (item.arguments if item.type == "function_call" else item.input)


async def test_an_answer_that_a_limit_cut_is_incomplete(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    response = await respond(gateway, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output_text == "Hel"
    assert response.usage.output_tokens == 3


async def test_the_next_turn_goes_on_with_the_ids_that_were_generated(start: Start) -> None:
    gateway = await start(FakeEngine(says(hermes("get_weather", ODD))))
    first = await respond(gateway, tools=[WEATHER_TOOL], instructions="Be brief.")
    call = first.output[0]
    assert call.arguments == ODD
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4C"}
    second = await respond(
        gateway,
        tools=[WEATHER_TOOL],
        instructions="Be brief.",
        previous_response_id=first.id,
        input=[result],
    )
    before, after = gateway.engine.requests
    generated = [*hermes("get_weather", ODD).encode(), END]
    assert after.prompt[: len(before.prompt) + len(generated)] == [*before.prompt, *generated]
    assert second.previous_response_id == first.id


async def test_instructions_are_not_inherited(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    first = await respond(gateway, instructions="Be brief.")
    await respond(gateway, previous_response_id=first.id, input="and?")
    prompt = bytes(token for token in gateway.engine.requests[1].prompt if token < 256).decode()
    assert "brief" not in prompt
    assert prompt.index("hi") < prompt.index("Hello.") < prompt.index("and?")


async def test_what_is_kept_can_be_read_and_deleted(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        first = create(client, input="one", metadata={"a": "b"})
        assert client.responses.retrieve(first.id) == first
        second = create(client, input="two", previous_response_id=first.id)
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
        items = client.responses.input_items.list(second.id, order="asc").data
        assert [item.content[0].text for item in items] == ["one", "Hello.", "two"]  # type: ignore[union-attr]
        page = client.responses.input_items.list(second.id, limit=2)
        assert page.has_more
        assert [item.content[0].text for item in page] == ["two", "Hello.", "one"]  # type: ignore[union-attr]
        with pytest.raises(openai.BadRequestError) as refused:
            create(client, previous_response_id=first.id)
        assert refused.value.code == "previous_response_not_found"
        assert create(client, previous_response_id=second.id).status == "completed"

    await with_client(gateway, use)


async def test_what_is_not_to_be_kept_is_not(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        response = create(client, store=False)
        assert response.store is False  # type: ignore[attr-defined]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response.id)

    await with_client(gateway, use)


async def test_a_tenant_finds_its_own(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")), http={"api_keys": ("sk-a", "sk-b")})

    def use(client: OpenAI) -> None:
        mine = client.with_options(api_key="sk-a")
        response = create(mine)
        other = client.with_options(api_key="sk-b")
        for ask in (other.responses.retrieve, other.responses.delete, other.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                ask(response.id)
        with pytest.raises(openai.BadRequestError):
            create(other, previous_response_id=response.id)
        assert mine.responses.retrieve(response.id).id == response.id

    await with_client(gateway, use)


class City(BaseModel):
    name: str


async def test_a_text_has_the_form_that_was_asked_for(start: Start) -> None:
    gateway = await start(FakeEngine(says('{"name":"Oslo"}')))
    response = await with_client(
        gateway, lambda client: client.responses.parse(model=MODEL, input="hi", text_format=City)
    )
    assert response.output_parsed == City(name="Oslo")
    (request,) = gateway.engine.requests
    assert request.grammar is not None


async def test_a_prompt_is_prewarmed_and_nothing_is_kept(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    response = await respond(gateway, extra_body={"prompt_cache_options": {"prewarm": True}})
    assert (response.status, response.output, response.usage.output_tokens) == ("completed", [], 0)


async def test_the_oldest_is_left_out_of_what_is_too_long(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    context = gateway.engine.info.max_model_len  # type: ignore[union-attr]
    items = [{"role": "system", "content": "rule"}]
    items += [{"role": "user", "content": f"{i:03} " + "x" * (context // 12)} for i in range(20)]
    with pytest.raises(openai.BadRequestError) as refused:
        await respond(gateway, input=items)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    await respond(gateway, input=items, truncation="auto")
    prompt = bytes(token for token in gateway.engine.requests[0].prompt if token < 256).decode()
    assert "rule" in prompt
    assert "019 " in prompt
    assert "000 " not in prompt


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "message", "role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "web_search_call", "id": "w"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"role": "user", "content": "x", "tone": "warm"}]}, "input[0].tone"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        (
            {"tools": [{**WEATHER_TOOL, "parameters": {"type": "object", "minProperties": -1}}]},
            "tools[0].parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER_TOOL], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"background": True, "store": False}, "store"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream_options": {}}, "stream_options"),
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"prompt_cache_options": {"ttl": "soon"}}, "prompt_cache_options.ttl"),
    ],
)
async def test_what_cannot_be_had_is_named(start: Start, body: dict[str, Any], param: str) -> None:
    gateway = await start()
    status, answer = await gateway.post("/v1/responses", {"model": MODEL, "input": "hi", **body})
    assert status in (400, 404), answer
    assert answer["error"]["param"] == param


async def test_a_failure_in_the_middle_is_an_event(start: Start) -> None:
    engine = FakeEngine(says("Hello, world."))
    engine.fail_after = 5
    gateway = await start(engine)
    told = await events(gateway)
    assert told[-1].type == "response.failed"
    assert told[-1].response.error.code == "server_error"
    assert told[-1].response.output[0].content[0].text == "Hello"
    with pytest.raises(openai.NotFoundError):
        await with_client(gateway, lambda client: client.responses.retrieve(told[0].response.id))


async def test_an_input_is_counted(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    first = await respond(gateway)
    count = await with_client(
        gateway,
        lambda client: client.responses.input_tokens.count(
            model=MODEL, previous_response_id=first.id, input="and?"
        ),
    )
    await respond(gateway, previous_response_id=first.id, input="and?")
    assert count.input_tokens == len(gateway.engine.requests[-1].prompt)


def test_known_ids_are_of_this_tokenizer_or_none() -> None:
    known = KnownIds.of([1, 2], "ab", 1, [3], "v")
    assert known.begins("abc")
    assert not known.begins("xbc")
    assert not known.begins("a")


async def test_an_item_stands_for_one_that_is_kept(start: Start) -> None:
    """As clients send a conversation again that know the server keeps it; and with the token ids it had."""
    gateway = await start(FakeEngine(says(hermes("get_weather", ODD))))
    generated = [*hermes("get_weather", ODD).encode(), END]

    def use(client: OpenAI) -> None:
        items: Any = [{"role": "user", "content": "go"}]
        for turn in range(3):
            response = create(client, input=items, tools=[WEATHER_TOOL])
            call = response.output[0]
            result = {"type": "function_call_output", "call_id": call.call_id, "output": f"{turn}C"}
            items += [{"type": "item_reference", "id": call.id}, result]
        said = client.responses.input_items.list(response.id, order="asc").data
        assert [item.type for item in said] == [
            "message",
            *("function_call", "function_call_output") * 2,
        ]
        client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError) as gone:
            create(client, input=items)
        assert gone.value.param == "input[5]"

    await with_client(gateway, use)
    first, second, third = (request.prompt for request in gateway.engine.requests)
    assert second[: len(first) + len(generated)] == [*first, *generated]
    assert third[: len(second) + len(generated)] == [*second, *generated]


async def test_an_item_stands_for_none_of_another_tenant_and_for_none_that_never_was(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")), http={"api_keys": ("sk-a", "sk-b")})

    def use(client: OpenAI) -> None:
        mine = create(client.with_options(api_key="sk-a")).output[0].id
        other = client.with_options(api_key="sk-b")
        for id_ in (mine, mine[:-1] + ("0" if mine[-1] != "0" else "1"), "msg_1", "x"):
            for asking in (other, client.with_options(api_key="sk-a")):
                if (id_, asking.api_key) != (mine, "sk-a"):
                    with pytest.raises(openai.NotFoundError):
                        create(asking, input=[{"type": "item_reference", "id": id_}])
        with pytest.raises(openai.BadRequestError):
            client.with_options(api_key="sk-a").conversations.create(
                items=[{"type": "item_reference", "id": mine}]
            )

    await with_client(gateway, use)


async def test_items_of_too_many_responses_are_refused(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        ids = [create(client).output[0].id for _ in range(65)]
        items: Any = [{"type": "item_reference", "id": id_} for id_ in ids]
        assert create(client, input=items[:64]).status == "completed"
        with pytest.raises(openai.BadRequestError):
            create(client, input=items)

    await with_client(gateway, use)


async def test_what_was_left_out_of_a_prompt_stays_in_the_conversation(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    context = gateway.engine.info.max_model_len  # type: ignore[union-attr]
    items: Any = [{"role": "user", "content": f"{i:03} " + "x" * (context // 12)} for i in range(20)]

    def use(client: OpenAI) -> list[str]:
        conversation = client.conversations.create()
        create(client, conversation=conversation.id, input=items, truncation="auto")
        kept = client.conversations.items.list(conversation.id, limit=100, order="asc")
        return [item.content[0].text[:3] for item in kept]  # type: ignore[union-attr]

    assert await with_client(gateway, use) == [f"{i:03}" for i in range(20)] + ["Hel"]

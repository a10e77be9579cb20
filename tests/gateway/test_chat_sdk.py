"""OpenAI's own library against tools and shapes: objects, `.parse()`, the events of `.stream()`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from engine.request import GenerationRequest
from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Gateway, Start
from tests.gateway.tools.wire import WEATHER, function, hermes, named

T = TypeVar("T")
HI: Any = [{"role": "user", "content": "hi"}]
OSLO = '{"city": "Oslo"}'
ADA = '{"name": "Ada", "pets": [{"name": "Rex", "kind": "dog"}], "age": null}'


class Pet(BaseModel):
    name: str
    kind: str


class Person(BaseModel):
    """Somebody."""

    name: str
    pets: list[Pet]
    age: int | None


async def with_client(gateway: Gateway, use: Callable[[OpenAI], T]) -> T:
    def work() -> T:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            return use(client)

    return await asyncio.to_thread(work)


async def test_calls_are_typed_objects(start: Start) -> None:
    text = "So: " + hermes("get_weather", OSLO) + "\n" + hermes("shell", '{"input": "ls"}')
    gateway = await start(FakeEngine(says(text)))
    tools: Any = [function("get_weather"), {"type": "custom", "custom": {"name": "shell"}}]
    answer = await with_client(
        gateway, lambda client: client.chat.completions.create(model=MODEL, messages=HI, tools=tools)
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("So:", "tool_calls")
    assert choice.message.tool_calls is not None
    weather, shell = choice.message.tool_calls
    assert weather.type == "function"
    assert (weather.function.name, weather.function.arguments) == ("get_weather", OSLO)
    assert shell.type == "custom"
    assert (shell.custom.name, shell.custom.input) == ("shell", "ls")


async def test_parse_makes_objects_of_calls(start: Start) -> None:
    gateway = await start(FakeEngine(says(hermes("Person", ADA))))
    answer = await with_client(
        gateway,
        lambda client: client.chat.completions.parse(
            model=MODEL, messages=HI, tools=[openai.pydantic_function_tool(Person)], tool_choice="required"
        ),
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    parsed = calls[0].function.parsed_arguments
    assert isinstance(parsed, Person)
    assert parsed.pets == [Pet(name="Rex", kind="dog")]


async def test_parse_makes_objects_of_shapes(start: Start) -> None:
    gateway = await start(FakeEngine(says(ADA)))
    answer = await with_client(
        gateway,
        lambda client: client.chat.completions.parse(model=MODEL, messages=HI, response_format=Person),
    )
    assert answer.choices[0].message.parsed == Person(
        name="Ada", pets=[Pet(name="Rex", kind="dog")], age=None
    )


async def test_parse_says_when_a_limit_cut_it(start: Start) -> None:
    def cut(request: GenerationRequest, index: int) -> list[int]:
        return list(hermes("Person", ADA).encode()[:60])

    gateway = await start(FakeEngine(cut))
    tools = [openai.pydantic_function_tool(Person)]
    with pytest.raises(openai.LengthFinishReasonError):
        await with_client(
            gateway,
            lambda client: client.chat.completions.parse(
                model=MODEL, messages=HI, tools=tools, max_tokens=60
            ),
        )


async def test_the_events_of_a_stream(start: Start) -> None:
    text = "Well " + hermes("get_weather", OSLO) + "\n" + hermes("get_weather", '{"city": "Rome"}')
    gateway = await start(FakeEngine(says(text)))
    tools: Any = [function("get_weather", strict=True)]

    def events(client: OpenAI) -> tuple[list[Any], Any]:
        with client.chat.completions.stream(model=MODEL, messages=HI, tools=tools) as stream:
            seen = list(stream)
            return seen, stream.get_final_completion()

    seen, final = await with_client(gateway, events)
    done = [event for event in seen if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name, event.parsed_arguments) for event in done] == [
        (0, "get_weather", {"city": "Oslo"}),
        (1, "get_weather", {"city": "Rome"}),
    ]
    pieces = [event for event in seen if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in pieces) == OSLO + '{"city": "Rome"}'
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == ("Well", "tool_calls")
    assert [call.function.parsed_arguments["city"] for call in message.tool_calls] == ["Oslo", "Rome"]


async def test_a_stream_adds_up_to_the_message(start: Start) -> None:
    """Content is null in both if there are only calls."""
    gateway = await start(FakeEngine(says(hermes("get_weather", OSLO))))
    tools: Any = [function("get_weather")]
    choice: Any = named("get_weather")

    def both(client: OpenAI) -> tuple[Any, Any]:
        asked: dict[str, Any] = {"model": MODEL, "messages": HI, "tools": tools, "tool_choice": choice}
        with client.chat.completions.stream(**asked) as stream:
            return stream.get_final_completion(), client.chat.completions.create(**asked)

    streamed, whole = await with_client(gateway, both)
    for answer in (streamed, whole):
        assert answer.choices[0].message.content is None
        assert answer.choices[0].finish_reason == "stop"
        (call,) = answer.choices[0].message.tool_calls
        assert (call.type, call.function.name, call.function.arguments) == ("function", "get_weather", OSLO)


async def test_errors_have_openais_words(start: Start) -> None:
    gateway = await start()
    bad = {**WEATHER, "required": []}
    tools: Any = [function("f", bad, strict=True)]

    def refused(client: OpenAI) -> openai.BadRequestError:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model=MODEL, messages=HI, tools=tools)
        return caught.value

    error = await with_client(gateway, refused)
    assert error.body == {
        "message": "Invalid schema for function 'f': In context=(), 'required' is required to be supplied and to be an "
        "array including every key in properties. Missing 'city'.",
        "type": "invalid_request_error",
        "param": "tools[0].function.parameters",
        "code": "invalid_function_parameters",
    }

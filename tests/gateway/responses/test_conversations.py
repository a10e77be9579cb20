"""Conversations with OpenAI's own library: what they hold, what responses add to them, and who was first."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.fakes import FakeEngine, says
from tests.gateway.live import Gateway, Start
from tests.gateway.responses.test_responses import END, ODD, WEATHER_TOOL, create
from tests.gateway.test_chat_sdk import with_client
from tests.gateway.tools.wire import hermes


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": text}


def texts(client: OpenAI, conversation_id: str) -> list[str]:
    items: Any = client.conversations.items.list(conversation_id, order="asc")
    return [item.content[0].text for item in items]


async def test_a_conversation_is_made_changed_and_deleted(start: Start) -> None:
    gateway = await start()

    def use(client: OpenAI) -> None:
        made = client.conversations.create(items=[user("one")], metadata={"a": "b"})
        assert (made.object, made.metadata) == ("conversation", {"a": "b"})
        assert client.conversations.retrieve(made.id) == made
        changed = client.conversations.update(made.id, metadata={"c": "d"})
        assert (changed.id, changed.created_at, changed.metadata) == (made.id, made.created_at, {"c": "d"})
        assert texts(client, made.id) == ["one"]
        deleted = client.conversations.delete(made.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "conversation.deleted")
        for ask in (
            client.conversations.retrieve,
            client.conversations.delete,
            client.conversations.items.list,
            lambda gone: client.conversations.update(gone, metadata={}),
            lambda gone: client.conversations.items.create(gone, items=[user("x")]),
            lambda gone: create(client, conversation=gone),
        ):
            with pytest.raises(openai.NotFoundError):
                ask(made.id)
        assert texts(client, client.conversations.create().id) == []

    await with_client(gateway, use)


async def test_items_are_added_found_and_taken_out(start: Start) -> None:
    gateway = await start()

    def use(client: OpenAI) -> None:
        made = client.conversations.create(items=[user(f"{i}") for i in range(20)])
        added: Any = client.conversations.items.create(
            made.id, items=[user("20"), {**user("21"), "id": "mine"}]
        )
        assert [item.content[0].text for item in added.data] == ["20", "21"]
        assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, "mine", False)
        assert texts(client, made.id) == [f"{i}" for i in range(22)]  # over two pages
        newest: Any = client.conversations.items.list(made.id, limit=2).data
        assert [item.content[0].text for item in newest] == ["21", "20"]
        assert client.conversations.items.retrieve("mine", conversation_id=made.id) == added.data[1]
        after = client.conversations.items.delete("mine", conversation_id=made.id)
        assert after == made
        assert texts(client, made.id) == [f"{i}" for i in range(21)]
        for ask in (client.conversations.items.retrieve, client.conversations.items.delete):
            with pytest.raises(openai.NotFoundError):
                ask("mine", conversation_id=made.id)

    await with_client(gateway, use)


async def test_responses_go_on_from_it_and_are_added(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> Any:
        made = client.conversations.create(items=[user("one")])
        first = create(client, conversation=made.id, input="two")
        assert first.conversation.id == made.id
        list(create(client, conversation={"id": made.id}, input="three", stream=True, store=False))
        assert texts(client, made.id) == ["one", "two", "Hello.", "three", "Hello."]
        items: Any = client.conversations.items.list(made.id, order="asc").data
        assert items[2] == client.conversations.items.retrieve(first.output[0].id, conversation_id=made.id)
        client.conversations.delete(made.id)
        assert client.responses.retrieve(first.id) == first

    await with_client(gateway, use)


async def test_a_turn_goes_on_with_the_ids_that_were_generated_until_an_item_is_taken_out(
    start: Start,
) -> None:
    gateway = await start(FakeEngine(says(hermes("get_weather", ODD))))
    generated = [*hermes("get_weather", ODD).encode(), END]

    def use(client: OpenAI) -> None:
        made = client.conversations.create(items=[user("rule")])
        rule = client.conversations.items.list(made.id).data[0]
        first = create(client, conversation=made.id, input="go", tools=[WEATHER_TOOL])
        result: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "4C"}
        client.conversations.items.create(made.id, items=[result])
        create(client, conversation=made.id, input="and?", tools=[WEATHER_TOOL])
        before, after = gateway.engine.requests
        assert after.prompt[: len(before.prompt) + len(generated)] == [*before.prompt, *generated]
        client.conversations.items.delete(rule.id or "", conversation_id=made.id)
        create(client, conversation=made.id, input="so?", tools=[WEATHER_TOOL])
        assert b"rule" not in bytes(token for token in gateway.engine.requests[2].prompt if token < 256)

    await with_client(gateway, use)
    spliced = [known_tokens(gateway, index) for index in range(3)]
    assert spliced[1] > 0
    assert spliced[2] == 0


def known_tokens(gateway: Gateway, index: int) -> int:
    """How far the call in the prompt is as it was generated: the template writes it with other blanks."""
    prompt = bytes(token for token in gateway.engine.requests[index].prompt if token < 256)
    return prompt.count(ODD.encode())


async def test_of_two_turns_at_once_one_is_refused(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    _, made = await gateway.post("/v1/conversations", {})
    turn = {"model": "toy", "conversation": made["id"]}
    answers = await asyncio.gather(
        *(gateway.post("/v1/responses", {**turn, "input": text}) for text in ("left", "right"))
    )
    (fine, response), (refused, error) = sorted(answers, key=lambda answer: answer[0])
    assert (fine, refused, error["error"]["code"]) == (200, 409, "conversation_conflict")
    _, items = await gateway.get(f"/v1/conversations/{made['id']}/items")
    said = [item["content"][0]["text"] for item in items["data"]]
    assert said[0] == "Hello."
    assert said[1:] in (["left"], ["right"])
    assert response["status"] == "completed"
    assert (await gateway.post("/v1/responses", {**turn, "input": "again"}))[0] == 200


async def test_changes_at_once_are_all_made(start: Start) -> None:
    gateway = await start()
    _, made = await gateway.post("/v1/conversations", {})
    at = f"/v1/conversations/{made['id']}"
    answers = await asyncio.gather(
        *(gateway.post(f"{at}/items", {"items": [user(f"{i}")]}) for i in range(4)),
        gateway.post(at, {"metadata": {"a": "b"}}),
    )
    assert [status for status, _ in answers] == [200] * 5
    _, items = await gateway.get(f"{at}/items")
    assert {item["content"][0]["text"] for item in items["data"]} == {f"{i}" for i in range(4)}
    assert (await gateway.get(at))[1]["metadata"] == {"a": "b"}


async def test_a_tenant_has_its_own(start: Start) -> None:
    gateway = await start(http={"api_keys": ("sk-a", "sk-b")})

    def use(client: OpenAI) -> None:
        made = client.with_options(api_key="sk-a").conversations.create(items=[user("one")])
        other = client.with_options(api_key="sk-b")
        for ask in (
            other.conversations.retrieve,
            other.conversations.delete,
            other.conversations.items.list,
            lambda id_: create(other, conversation=id_),
        ):
            with pytest.raises(openai.NotFoundError):
                ask(made.id)

    await with_client(gateway, use)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": [user("x")] * 21}, "items"),
        ("", {"items": "hi"}, "items"),
        ("", {"items": [{"type": "web_search_call"}]}, "items[0].type"),
        ("", {"items": [{**user("x"), "id": "i"}, {**user("y"), "id": "i"}]}, "items[1].id"),
        ("", {"metadata": {f"{i}": "" for i in range(17)}}, "metadata"),
        ("", {"metadata": {"a" * 65: ""}}, "metadata"),
        ("", {"metadata": {"a": "b" * 513}}, "metadata.a"),
        ("", {"title": "x"}, "title"),
        ("/{id}", {}, "metadata"),
        ("/{id}/items", {}, "items"),
        ("/{id}/items", {"items": []}, "items"),
        ("/{id}/items", {"items": [{**user("x"), "id": "taken"}]}, "items[0].id"),
    ],
)
async def test_what_cannot_be_had_is_named(start: Start, path: str, body: dict[str, Any], param: str) -> None:
    gateway = await start()
    _, made = await gateway.post("/v1/conversations", {"items": [{**user("x"), "id": "taken"}]})
    status, answer = await gateway.post("/v1/conversations" + path.format(id=made["id"]), body)
    assert (status, answer["error"]["param"]) == (400, param), answer


async def test_it_does_not_grow_without_end(start: Start) -> None:
    gateway = await start(limits={"max_messages": 4})
    _, made = await gateway.post("/v1/conversations", {"items": [user("x")] * 3})
    at = f"/v1/conversations/{made['id']}/items"
    assert (await gateway.post(at, {"items": [user("x")] * 2}))[0] == 400
    assert (await gateway.post(at, {"items": [user("x")]}))[0] == 200


async def test_input_may_not_repeat_an_item_of_it(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    _, made = await gateway.post("/v1/conversations", {"items": [{**user("x"), "id": "taken"}]})
    body = {"model": "toy", "conversation": made["id"], "input": [{**user("x"), "id": "taken"}]}
    status, answer = await gateway.post("/v1/responses", body)
    assert (status, answer["error"]["param"]) == (400, "input[0].id")

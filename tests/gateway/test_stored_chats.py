"""Chat completions that are kept, with OpenAI's own library."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.fakes import FakeEngine, says
from tests.gateway.live import MODEL, Start
from tests.gateway.test_chat_sdk import HI, with_client
from tests.gateway.tools.wire import function, hermes


def ask(client: OpenAI, **body: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": HI, "store": True, **body})


async def test_one_is_kept_read_changed_and_deleted(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        stored = client.chat.completions
        made = ask(client, metadata={"a": "b"}, n=2)
        assert (len(made.choices), made.metadata) == (2, {"a": "b"})
        assert stored.retrieve(made.id) == made
        changed = stored.update(made.id, metadata={"c": "d"})
        assert changed.metadata == {"c": "d"}  # type: ignore[attr-defined]
        assert stored.retrieve(made.id) == changed
        assert changed.choices == made.choices
        deleted = stored.delete(made.id)
        assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "chat.completion.deleted", True)
        gone: Any
        for gone in (stored.retrieve, stored.delete, stored.messages.list):
            with pytest.raises(openai.NotFoundError):
                gone(made.id)
        with pytest.raises(openai.NotFoundError):
            stored.update(made.id, metadata={})

    await with_client(gateway, use)


@pytest.mark.parametrize("text", ["Hello.", hermes("f", '{"city": "Oslo"}')])
async def test_what_was_streamed_is_kept_as_it_was(start: Start, text: str) -> None:
    gateway = await start(FakeEngine(says(text)))

    def use(client: OpenAI) -> None:
        chunks = list(ask(client, stream=True, tools=[function("f")], stream_options={"include_usage": True}))
        kept = client.chat.completions.retrieve(chunks[0].id)
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        said = kept.choices[0].message
        assert "".join(delta.content or "" for delta in deltas) == (said.content or "")
        calls = [call for delta in deltas for call in delta.tool_calls or () if call.id]
        assert [call.id for call in calls] == [call.id for call in said.tool_calls or ()]
        assert chunks[-1].usage == kept.usage
        assert kept.choices[0].finish_reason == next(
            c.choices[0].finish_reason for c in chunks[::-1] if c.choices
        )

    await with_client(gateway, use)


async def test_they_are_listed_by_time_and_by_what_they_are(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        made = [ask(client, metadata={"odd": str(i % 2)}).id for i in range(5)]
        made.sort()  # two within a millisecond are in either order
        stored = client.chat.completions
        assert [each.id for each in stored.list()] == made
        assert [each.id for each in stored.list(limit=2)] == made  # page by page
        assert [each.id for each in stored.list(order="desc", limit=2).data] == made[:2:-1]
        page = stored.list(after=made[1], limit=2)
        assert ([each.id for each in page.data], page.has_more) == (made[2:4], True)
        odd = [each.id for each in stored.list(metadata={"odd": "1"})]
        assert len(odd) == 2
        assert set(odd) < set(made)
        assert stored.list(model="other").data == []
        assert len(stored.list(model=MODEL).data) == 5
        assert not stored.list(limit=5).has_more

    await with_client(gateway, use)


async def test_its_messages_can_be_read(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]

    def use(client: OpenAI) -> None:
        made = ask(client, messages=messages)
        said: Any = list(client.chat.completions.messages.list(made.id, limit=1))
        assert [each.id for each in said] == [f"{made.id}-0", f"{made.id}-1"]
        assert [(each.role, each.content) for each in said] == [("system", "Be brief."), ("user", "ab")]
        assert [part.text for part in said[1].content_parts] == ["a", "b"]

    await with_client(gateway, use)


async def test_only_what_is_to_be_kept_is_and_only_for_its_tenant(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")), http={"api_keys": ("sk-a", "sk-b")})

    def use(client: OpenAI) -> None:
        mine, other = (client.with_options(api_key=key) for key in ("sk-a", "sk-b"))
        kept = ask(mine)
        for absent in (
            ask(mine, store=False),
            ask(mine, extra_body={"prompt_cache_options": {"prewarm": True}}),
        ):
            with pytest.raises(openai.NotFoundError):
                mine.chat.completions.retrieve(absent.id)
        gone: Any
        for gone in (other.chat.completions.retrieve, other.chat.completions.delete):
            with pytest.raises(openai.NotFoundError):
                gone(kept.id)
        assert other.chat.completions.list().data == []
        assert [each.id for each in mine.chat.completions.list()] == [kept.id]

    await with_client(gateway, use)


async def test_a_completion_of_a_text_is_not_kept(start: Start) -> None:
    gateway = await start()
    status, answer = await gateway.post("/v1/completions", {"model": MODEL, "prompt": "a", "store": True})
    assert (status, answer["error"]["param"]) == (400, "store")

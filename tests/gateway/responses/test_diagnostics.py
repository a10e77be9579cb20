"""`prompt_cache_diagnostics`: what of another response was not found again, in OpenAI's words."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from engine.request import Evicted
from gateway.responses.diagnostics import told
from tests.fakes import FakeEngine, says
from tests.gateway.caching.making import chat, offer, say, tool
from tests.gateway.caching.making import told as diagnosed
from tests.gateway.live import Start
from tests.gateway.responses.test_responses import WEATHER_TOOL, create, respond
from tests.gateway.test_chat_sdk import with_client

TALK = [
    say("system", "You are a helpful assistant that answers briefly."),
    say("user", "What is the capital of France?"),
    say("assistant", "Paris is the capital of France."),
    say("user", "And of Spain?"),
]


def compared(id_: str) -> dict[str, Any]:
    return {"extra_body": {"prompt_cache_options": {"comparison_response_id": id_}}}


async def test_a_conversation_that_goes_on_is_a_hit(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    first = await respond(gateway)
    gateway.engine.cached_tokens = len(gateway.engine.requests[0].prompt) + 5
    second = await respond(gateway, input="and?", previous_response_id=first.id, **compared(first.id))
    assert second.prompt_cache_diagnostics.model_dump() == {"type": "cache_hit"}
    assert second.prompt_cache_options.comparison_response_id == first.id


async def test_a_change_is_named_and_counted(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))
    first = await respond(gateway, tools=[WEATHER_TOOL])
    changed = {"tools": [{**WEATHER_TOOL, "name": "other"}]}
    await respond(gateway, **changed)
    one, other = (request.prompt for request in gateway.engine.requests)
    common = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    gateway.engine.cached_tokens = common
    found = (await respond(gateway, **changed, **compared(first.id))).prompt_cache_diagnostics
    assert found.model_dump() == {
        "type": "cache_miss",
        "reason": "tools_changed",
        "cache_missed_tokens": len(other) - common,
        "comparison_reusable_tokens": common,
    }


async def test_what_is_unknown_is_not_found_and_the_answer_comes(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")), http={"api_keys": ("sk-a", "sk-b")})

    def use(client: OpenAI) -> None:
        mine = create(client.with_options(api_key="sk-a"))
        for id_ in ("resp_1", mine.id):
            other = create(client.with_options(api_key="sk-b"), **compared(id_))
            assert other.status == "completed"
            assert other.prompt_cache_diagnostics.model_dump() == {"type": "comparison_response_not_found"}

    await with_client(gateway, use)


async def test_the_last_event_of_a_stream_says_it_and_what_is_kept_too(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")))

    def use(client: OpenAI) -> None:
        told = list(create(client, stream=True, **compared("resp_1")))
        said = [getattr(event, "response", None) for event in told]
        found = [each.prompt_cache_diagnostics for each in said if each is not None]
        assert [each and each.type for each in found] == [None, None, "comparison_response_not_found"]
        assert client.responses.retrieve(said[0].id).prompt_cache_diagnostics == found[-1]

    await with_client(gateway, use)


async def test_without_records_nothing_can_be_said(start: Start) -> None:
    gateway = await start(FakeEngine(says("Hello.")), limits={"explain_bytes": 0})
    response = await respond(gateway, **compared("resp_1"))
    assert response.prompt_cache_diagnostics.type == "unavailable"


@pytest.mark.parametrize(
    ("now", "facts", "reason"),
    [
        (TALK, {"key": "k", "namespace": b"o"}, "prompt_cache_key_changed"),
        (TALK, {"model_digest": "e", "model": "n"}, "model_changed"),
        (TALK, {"adapter": b"a"}, "model_changed"),
        (TALK, {"salt": "s", "namespace": b"o"}, None),
        (TALK, {"evicted": Evicted("pressure", 2.0)}, None),
        (TALK, {}, None),
        ([say("system", "Be long."), *TALK[1:]], {}, "input_changed"),
        ([TALK[0], say("user", "What is Paris?"), *TALK[2:]], {}, "input_changed"),
        ([TALK[0], TALK[3]], {}, "input_changed"),
        (TALK, {"tools": offer(tool("a"))}, "tools_changed"),
    ],
)
def test_every_cause_has_a_word_or_none(now: Any, facts: dict[str, Any], reason: str | None) -> None:
    baseline = chat(TALK[:2], answer=TALK[2]["content"])
    lost = now is TALK and "tools" not in facts
    record = chat(now, at=10.0, after=None if lost else baseline, **facts)
    found = told(record, baseline, diagnosed(record, baseline))
    if reason is None:
        assert found == {"type": "unavailable"}
    else:
        assert (found["type"], found["reason"]) == ("cache_miss", reason)
        assert 0 < found["cache_missed_tokens"] <= record.tokens or reason.endswith(
            ("key_changed", "model_changed")
        )

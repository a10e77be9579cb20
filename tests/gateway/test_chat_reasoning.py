"""Models that think: thoughts are free and come apart, what follows has the form that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from grammar.spec import Concat, FreeText, Grammar, JsonSchema, Marker, Repeat
from tests.fakes import FakeEngine, says
from tests.gateway.live import Gateway, Start
from tests.gateway.tools.wire import WEATHER, ask, function, hermes

TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
)
OPTIONAL = (
    TURNS
    + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENED = TURNS + "<think>\n{% endif %}"
OSLO = '{"city": "Oslo"}'
SHAPE = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": WEATHER}}
NO_THOUGHTS = {"chat_template_kwargs": {"enable_thinking": False}}

streamed = pytest.mark.parametrize("stream", [False, True])


@streamed
@pytest.mark.parametrize(
    ("template", "text", "thoughts", "content"),
    [
        (OPTIONAL, "<think>\nhm <b>\n</think>\n\nYes.", "hm <b>", "Yes."),
        (OPTIONAL, "Yes.", None, "Yes."),
        (OPENED, "hm\n</think>\n\nYes.", "hm", "Yes."),
        (OPENED, "hm, and no end", "hm, and no end", ""),
    ],
)
async def test_thoughts_are_no_content(
    start: Start, stream: bool, *, template: str, text: str, thoughts: str | None, content: str
) -> None:
    gateway = await start(FakeEngine(says(text)), template=template)
    (said,) = await ask(gateway, {}, stream=stream)
    assert (said.content, said.finish) == (content, "stop")
    assert (said.thoughts or "").strip() == (thoughts or "")
    assert (said.thoughts is None) == (thoughts is None)
    assert gateway.engine.requests[0].grammar is None
    told = said.usage["completion_tokens_details"]["reasoning_tokens"]
    assert (told > 0) == (thoughts is not None)
    assert told <= said.usage["completion_tokens"]


@streamed
async def test_a_shape_follows_the_thoughts(start: Start, stream: bool) -> None:
    """Thoughts that look like the answer stay thoughts."""
    gateway = await start(FakeEngine(says(f"<think>{OSLO}?</think>\n\n{OSLO}")), template=OPTIONAL)
    (said,) = await ask(gateway, {"response_format": SHAPE}, stream=stream)
    assert (said.thoughts, said.content, said.finish) == (f"{OSLO}?", OSLO, "stop")
    gateway.engine.script = says('<think>hm</think>{"town": 1}')
    (said,) = await ask(gateway, {"response_format": SHAPE}, stream=stream)
    assert said.error["code"] == "schema_violation"


@streamed
async def test_without_thoughts_the_shape_is_all_there_is(start: Start, stream: bool) -> None:
    gateway = await start(FakeEngine(says(OSLO)), template=OPTIONAL)
    (said,) = await ask(gateway, {"response_format": SHAPE, **NO_THOUGHTS}, stream=stream)
    assert (said.thoughts, said.content) == (None, OSLO)
    assert isinstance(gateway.engine.requests[0].grammar, JsonSchema)


@streamed
async def test_calls_follow_the_thoughts(start: Start, stream: bool) -> None:
    text = f"<think>{hermes('get_weather', OSLO)}</think>\n\n{hermes('get_weather', OSLO)}"
    gateway = await start(FakeEngine(says(text)), template=OPTIONAL)
    body = {"tools": [function("get_weather")], "tool_choice": "required"}
    (said,) = await ask(gateway, body, stream=stream)
    assert said.thoughts == hermes("get_weather", OSLO)
    assert (said.content, said.calls) == (None, [("function", "get_weather", OSLO)])


async def grammar_of(gateway: Gateway, **body: Any) -> Grammar | None:
    await ask(gateway, body, stream=False)
    return gateway.engine.requests[-1].grammar


async def test_thinking_is_allowed_by_every_grammar_and_forced_by_none(start: Start) -> None:
    for template, begins in ((OPTIONAL, Repeat), (OPENED, FreeText)):
        gateway = await start(FakeEngine(says(OSLO)), template=template)
        grammar = await grammar_of(gateway, response_format=SHAPE)
        assert isinstance(grammar, Concat)
        assert isinstance(grammar.parts[0], begins)
        if isinstance(grammar.parts[0], Repeat):
            assert (grammar.parts[0].least, grammar.parts[0].most) == (0, 1)
            assert isinstance(grammar.parts[0].part, Concat)
            assert grammar.parts[0].part.parts[0] == Marker("<think>")


async def test_an_answer_that_is_continued_thinks_no_more(start: Start) -> None:
    gateway = await start(FakeEngine(says("es.")), template=OPTIONAL)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Y"}]
    (said,) = await ask(gateway, {"messages": messages, "continue_final_message": True}, stream=False)
    assert (said.content, said.thoughts) == ("es.", None)
    assert "completion_tokens_details" not in said.usage


async def test_the_thoughts_of_a_stop_string_are_free(start: Start) -> None:
    gateway = await start(FakeEngine(says("<think>stop</think>\n\ngo stop")), template=OPTIONAL)
    (said,) = await ask(gateway, {"stop": "stop"}, stream=True)
    assert (said.thoughts, said.content, said.finish) == ("stop", "go ", "stop")

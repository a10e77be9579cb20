"""Structured answers and tool calls on a served model, with OpenAI's own client: always valid, streamed or not."""

from __future__ import annotations

import asyncio
import enum
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema_rs
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ParsedChatCompletion
from pydantic import BaseModel, Field

from .chats import CHAT, Refused, Said, both, events, model_of, streamed, whole
from .server import Server
from .thinker import SPECIALS
from .traffic import eventually

pytestmark = [pytest.mark.timeout(180)]

MAX_TOKENS = 200
"""Far more than any of these needs, though a small model may still chatter in a string until it is stopped."""


@pytest.fixture
async def client(demo_server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=demo_server.url, api_key="unused", max_retries=0, timeout=170) as openai:
        yield openai


# -- what is asked for -------------------------------------------------------------------------------------------------


class Colour(enum.StrEnum):
    RED = "red"
    GREEN = "green"


class Address(BaseModel):
    street: str
    city: str


class Person(BaseModel):
    """Nested, optional, an enum, a list and a literal."""

    name: str
    age: int
    height: float | None
    nickname: str | None
    favourite: Colour
    address: Address
    tags: list[Colour] = Field(max_length=3)
    kind: Literal["person"]


class Tree(BaseModel):
    value: int
    left: Tree | None
    right: Tree | None


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    kind: Literal["square"]
    side: int = Field(ge=1, le=50)


class Drawing(BaseModel):
    """A union that a key tells apart, one that types do, and a pattern."""

    shape: Circle | Square
    label: int | bool | Literal["none"]
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")


class Weather(BaseModel):
    """Get the weather."""

    city: str
    unit: Literal["celsius", "fahrenheit"]


class Add(BaseModel):
    """Add two numbers."""

    a: int
    b: int


ASKED: list[tuple[type[BaseModel], str]] = [
    (Person, "Invent a person as JSON."),
    (Tree, "Give a small binary tree as JSON."),
    (Drawing, "Draw a shape, as JSON."),
]
TOOLS = {tool.__name__: tool for tool in (Weather, Add)}
OFFER = [openai.pydantic_function_tool(tool) for tool in TOOLS.values()]

Parsed = ParsedChatCompletion[Any]


async def _parsed(client: AsyncOpenAI, model: str, stream: bool, **options: Any) -> Parsed | None:
    """The completion; None if its finish says that the limit cut it."""
    asked = {"model": model, "max_tokens": MAX_TOKENS, **options}
    try:
        if not stream:
            return await client.chat.completions.parse(**asked)
        async with client.chat.completions.stream(**asked) as events:
            return await events.get_final_completion()
    except openai.LengthFinishReasonError:
        return None


async def _all(asked: list[Awaitable[Parsed | None]]) -> list[Parsed]:
    """Those that were not cut, which are most."""
    turn = asyncio.Semaphore(8)

    async def one(ask: Awaitable[Parsed | None]) -> Parsed | None:
        async with turn:
            return await ask

    answers = await asyncio.gather(*[one(ask) for ask in asked])
    finished = [answer for answer in answers if answer is not None]
    assert len(finished) >= len(answers) / 2, "what is cut says little"
    return finished


# -- with the client ---------------------------------------------------------------------------------------------------


@pytest.mark.demo_model
async def test_parse_gives_the_model_that_was_asked_for(demo_server: Server, client: AsyncOpenAI) -> None:
    model = model_of(demo_server)
    asks = [
        _parsed(
            client,
            model,
            stream,
            messages=[{"role": "user", "content": question}],
            response_format=wanted,
            temperature=temperature,
            seed=seed,
        )
        for wanted, question in ASKED
        for stream in (False, True)
        for seed, temperature in enumerate((0.3, 1.0))
    ]
    for answer in await _all(asks):
        (choice,) = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, BaseModel)
        assert choice.message.refusal is None


@pytest.mark.demo_model
async def test_strict_functions_get_arguments_that_fit(demo_server: Server, client: AsyncOpenAI) -> None:
    model = model_of(demo_server)
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "Add"}}]}
    named = {"type": "function", "function": {"name": "Weather"}}
    cases: list[tuple[dict[str, Any], set[str], set[str]]] = [
        ({"tool_choice": "required"}, {"Weather", "Add"}, {"tool_calls"}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"Weather", "Add"}, {"tool_calls"}),
        ({"tool_choice": named}, {"Weather"}, {"stop"}),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}, {"Add"}, {"tool_calls"}),
        ({"tool_choice": "auto"}, {"Weather", "Add"}, {"tool_calls", "stop"}),
        ({}, {"Weather", "Add"}, {"tool_calls", "stop"}),
        ({"tool_choice": "none"}, set(), {"stop"}),
    ]

    async def check(options: dict[str, Any], names: set[str], finishes: set[str], *, stream: bool) -> bool:
        question = "What is the weather in Oslo, and what is 2 + 3?"
        answer = await _parsed(
            client,
            model,
            stream,
            messages=[{"role": "user", "content": question}],
            tools=OFFER,
            temperature=0.5,
            seed=1,
            **options,
        )
        if answer is None:
            return False
        (choice,) = answer.choices
        calls = choice.message.tool_calls or []
        assert choice.finish_reason in finishes, (options, choice)
        assert bool(calls) == (choice.finish_reason == "tool_calls" or options.get("tool_choice") == named)
        for call in calls:
            assert call.function.name in names
            assert isinstance(call.function.parsed_arguments, TOOLS[call.function.name])
        if options.get("parallel_tool_calls") is False or options.get("tool_choice") == named:
            assert len(calls) == 1
        return True

    turn = asyncio.Semaphore(8)

    async def one(case: tuple[dict[str, Any], set[str], set[str]], stream: bool) -> bool:
        async with turn:
            return await check(*case, stream=stream)

    whole = await asyncio.gather(*[one(case, stream) for case in cases for stream in (False, True)])
    assert sum(whole) >= len(whole) / 2


@pytest.mark.demo_model
async def test_what_the_limit_cuts_says_so(demo_server: Server, client: AsyncOpenAI) -> None:
    for stream in (False, True):
        for limit in (1, 7):
            answer = await _parsed(
                client,
                model_of(demo_server),
                stream,
                messages=[{"role": "user", "content": "Invent a person as JSON."}],
                response_format=Person,
                max_tokens=limit,
            )
            assert answer is None


# -- whole and streamed are the same -----------------------------------------------------------------------------------

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_FUNCTIONS = [
    {"type": "function", "function": {"name": "save", "parameters": _PERSON, "strict": True}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "stop"}},
]
_CUSTOM = {
    "type": "custom",
    "custom": {
        "name": "sum",
        "format": {
            "type": "grammar",
            "grammar": {"syntax": "regex", "definition": "[0-9]{1,3}( [+-] [0-9]{1,3}){1,4}"},
        },
    },
}
_MODES: dict[str, dict[str, Any]] = {
    "free": {},
    "schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": _PERSON, "strict": True}}
    },
    "object": {"response_format": {"type": "json_object"}},
    "none": {"tools": _FUNCTIONS, "tool_choice": "none"},
    "auto": {"tools": _FUNCTIONS},
    "auto, one": {"tools": _FUNCTIONS, "parallel_tool_calls": False},
    "required": {"tools": _FUNCTIONS, "tool_choice": "required"},
    "required, one": {"tools": _FUNCTIONS, "tool_choice": "required", "parallel_tool_calls": False},
    "named": {"tools": _FUNCTIONS, "tool_choice": {"type": "function", "function": {"name": "save"}}},
    "named, without parameters": {
        "tools": _FUNCTIONS,
        "tool_choice": {"type": "function", "function": {"name": "stop"}},
    },
    "allowed": {
        "tools": _FUNCTIONS,
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]},
        },
    },
    "custom": {"tools": [_CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "sum"}}},
    "custom and functions": {"tools": [_CUSTOM, *_FUNCTIONS], "tool_choice": "required"},
}  # fmt: skip


def _check_mode(mode: str, said: Said) -> None:
    """What each mode promises, of whatever a model says."""
    asked = _MODES[mode]
    if "tools" not in asked or mode == "none":
        assert said.calls == []
    if mode in ("required", "required, one", "allowed", "custom and functions"):
        assert said.finish in ("tool_calls", "length")
    if mode.startswith(("named", "custom")) and mode != "custom and functions":
        assert said.finish in ("stop", "length")
        assert said.content == ""
        assert len(said.calls) == 1 or said.finish == "length"
    if mode.endswith("one"):
        assert len(said.calls) <= 1
    if mode == "allowed":
        assert {call.name for call in said.calls} <= {"now"}
    for call in said.calls if said.finish != "length" else said.calls[:-1]:
        _check_call(call.kind, call.name, call.text)
    if said.finish == "stop" and mode == "schema":
        jsonschema_rs.validator_for(_PERSON).validate(said.json())
    if said.finish == "stop" and mode == "object":
        assert isinstance(said.json(), dict)


def _check_call(kind: str, name: str, text: str) -> None:
    if kind == "custom":
        assert re.fullmatch("[0-9]{1,3}( [+-] [0-9]{1,3}){1,4}", text), text
    elif name == "stop":
        assert text == "{}"
    elif name == "save":
        jsonschema_rs.validator_for(_PERSON).validate(json.loads(text))
    else:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("mode", _MODES)
def test_any_noise_is_read_the_same_whole_and_streamed(shared_server: Server, mode: str) -> None:
    """The hash model says whatever its grammar leaves open, each byte a token of its own."""
    finishes = set()
    for seed in range(12):
        body = {
            "model": "hash",
            "messages": [{"role": "user", "content": "Say hello in json."}],
            "max_tokens": 500,
            "temperature": 1,
            "seed": seed,
            **_MODES[mode],
        }
        (said,) = both(shared_server, body)
        _check_mode(mode, said)
        finishes.add(said.finish)
    assert finishes != {"length"}


@pytest.mark.parametrize("mode", _MODES)
def test_what_the_limit_cuts_is_a_beginning_of_the_whole(shared_server: Server, mode: str) -> None:
    body = {
        "model": "hash",
        "messages": [{"role": "user", "content": "Say hello in json."}],
        "temperature": 1,
        "seed": 1,
        **_MODES[mode],
    }
    (full,) = streamed(shared_server, {**body, "max_tokens": 300})
    calls = [call.text for call in full.calls]
    for limit in (1, 2, 3, 5, 10, 12, 15, 20, 28, 40, 60, 100):
        (part,) = streamed(shared_server, {**body, "max_tokens": limit})
        assert part.finish == "length" or part == full
        assert full.content.startswith(part.content)
        if mode in ("required", "named", "allowed"):
            assert part.content == "", "what is left of a mark is no text"
        assert [call.name for call in part.calls] == [call.name for call in full.calls[: len(part.calls)]]
        texts = [call.text for call in part.calls]
        assert texts[:-1] == calls[: len(texts) - 1 if texts else 0]
        assert not texts or calls[len(texts) - 1].startswith(texts[-1])


@pytest.mark.parametrize("mode", _MODES)
def test_a_model_with_a_call_format_of_its_own_keeps_to_it(thinker_server: Server, mode: str) -> None:
    """Here marks are special tokens. With a little help it calls where it may, and thinks before that."""
    model = model_of(thinker_server)
    ids = {text: 256 + i for i, text in enumerate(SPECIALS)}
    help_ = {str(ids[text]): 4 for text in ("<tool_call>", "<|im_end|>", "</think>")} | {
        str(ids["<think>"]): 5
    }
    seen: set[str] = set()
    for seed in range(10):
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 600,
            "temperature": 1,
            "seed": seed,
            "logit_bias": help_,
            **_MODES[mode],
        }
        (said,) = streamed(thinker_server, body)
        _check_mode(mode, said)
        seen |= {said.finish, *(["thought"] if said.reasoning else []), *(["called"] if said.calls else [])}
        if mode == "free":
            continue  # nothing keeps it from writing marks wherever it likes
        for mark in ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>"):
            assert mark not in said.content + said.reasoning, said
    assert seen != {"length"}
    assert mode == "free" or "thought" in seen
    if mode == "auto":
        assert "called" in seen


# -- the fields of other servers ---------------------------------------------------------------------------------------

_ONLY = {
    "type": "object",
    "properties": {"k": {"enum": ["v", "w"]}},
    "required": ["k"],
    "additionalProperties": False,
}


def _is_only(text: str) -> bool:
    return json.loads(text) in ({"k": "v"}, {"k": "w"})


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


_EBNF = 'root ::= ("ab" | "cd"){2} [0-9]+ "."'
_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "const_string", "value": "<a>"},
            {"type": "json_schema", "json_schema": _ONLY},
            {"type": "regex", "pattern": "[xy]{3}"},
        ],
    },
}


def _is_tagged(text: str) -> bool:
    return re.fullmatch(r'<a>\{"k": "[vw]"\}[xy]{3}', text) is not None


_FIELDS: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _ONLY}}}, _is_only),
    ({"response_format": {"type": "json_object", "schema": _ONLY}}, _is_only),
    ({"structured_outputs": {"json": _ONLY}}, _is_only),
    ({"structured_outputs": {"json": json.dumps(_ONLY)}}, _is_only),
    ({"structured_outputs": {"json": _ONLY, "disable_any_whitespace": True}}, _is_only),
    ({"structured_outputs": {"regex": "[ab]{2}-[0-9]{3}"}}, _matches("[ab]{2}-[0-9]{3}")),
    ({"structured_outputs": {"choice": ["yes", "no", "maybe not"]}}, _matches("yes|no|maybe not")),
    ({"structured_outputs": {"grammar": _EBNF}}, _matches(r"(ab|cd){2}[0-9]+\.")),
    ({"structured_outputs": {"grammar": 'start: "a" NUM+ "b"\nNUM: /[0-9]/'}}, _matches("a[0-9]+b")),
    ({"structured_outputs": {"json_object": True}}, lambda text: isinstance(json.loads(text), dict)),
    ({"structured_outputs": {"structural_tag": _TAG}}, _is_tagged),
    ({"response_format": _TAG}, _is_tagged),
    ({"guided_json": _ONLY}, _is_only),
    ({"guided_regex": "(x|yy)+z"}, _matches("(x|yy)+z")),
    ({"guided_choice": ["rot", "grün"]}, _matches("rot|grün")),
    ({"guided_grammar": _EBNF}, _matches(r"(ab|cd){2}[0-9]+\.")),
    ({"regex": r"\d{4}-\d{2}"}, _matches(r"[0-9]{4}-[0-9]{2}")),
    ({"ebnf": 'root ::= "<" [a-c]* ">"'}, _matches("<[a-c]*>")),
    ({"json_schema": json.dumps(_ONLY)}, _is_only),
    ({"json_schema": _ONLY}, _is_only),
    ({"grammar": 'root ::= ws "ok" ws\nws ::= [ \\t]{0,2}'}, _matches("[ \t]{0,2}ok[ \t]{0,2}")),
    ({"format": _ONLY}, _is_only),
    ({"format": "json"}, lambda text: isinstance(json.loads(text), dict)),
]


@pytest.mark.parametrize(("fields", "fits"), _FIELDS, ids=[json.dumps(fields)[:60] for fields, _ in _FIELDS])
def test_every_way_to_ask_is_honoured(
    thinker_server: Server, shared_server: Server, fields: dict[str, Any], fits: Callable[[str], bool]
) -> None:
    for server in (shared_server, thinker_server):
        body = {
            "model": model_of(server),
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 800,
            **fields,
        }
        for seed in range(3):
            (said,) = streamed(
                server, {**body, "seed": seed, "chat_template_kwargs": {"enable_thinking": False}}
            )
            assert said.finish == "stop", said
            assert fits(said.content), said
        completion = server.post(
            "/v1/completions", {"model": body["model"], "prompt": "x", "max_tokens": 800, "seed": 3, **fields}
        )
        assert completion.status == 200, completion
        (choice,) = completion.json()["choices"]
        assert fits(choice["text"]), choice
    _check_thoughts_before(thinker_server, fields, fits)


def _check_thoughts_before(server: Server, fields: dict[str, Any], fits: Callable[[str], bool]) -> None:
    """A model that wants to think does, and then answers in the shape."""
    ids = {text: str(256 + i) for i, text in enumerate(SPECIALS)}
    body = {
        "model": model_of(server),
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 800,
        "temperature": 1,
        "logit_bias": {ids["<think>"]: 100, ids["</think>"]: 3},
        **fields,
    }
    answers = [streamed(server, {**body, "seed": seed})[0] for seed in range(3)]
    assert any(said.reasoning for said in answers)
    for said in answers:
        assert said.finish == "stop", said
        assert fits(said.content), said


def test_two_ways_to_ask_at_once_are_refused(shared_server: Server) -> None:
    several = [({**first, **second}) for (first, _), (second, _) in zip(_FIELDS, _FIELDS[5:], strict=False)]
    for fields in several:
        if len(fields) < 2:
            continue
        body = {"model": "hash", "messages": [{"role": "user", "content": "x"}], **fields}
        assert shared_server.post(CHAT, body).status == 400, fields


# -- beside others -----------------------------------------------------------------------------------------------------


def _constant(k: int) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "n",
                "schema": {
                    "type": "object",
                    "properties": {
                        f"key{k}": {"type": "string", "pattern": f"^[{'abcdefghijklmnop'[k]}]{{20,40}}$"}
                    },
                    "required": [f"key{k}"],
                    "additionalProperties": False,
                },
            },
        }
    }


def test_grammars_in_one_batch_do_not_meet(thinker_server: Server) -> None:
    """Eight schemas and eight free answers at once, again and again: each is what it is alone."""
    model = model_of(thinker_server)

    def body(k: int) -> dict[str, Any]:
        return {
            "model": model,
            "messages": [{"role": "user", "content": f"number {k}"}],
            "max_tokens": 100,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
            **(_constant(k) if k < 8 else {}),
        }

    alone = [whole(thinker_server, body(k)) for k in range(16)]
    order = list(range(16)) * 3
    random.Random(1).shuffle(order)
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda k: streamed(thinker_server, body(k)), order))
    for k, said in zip(order, together, strict=True):
        if k < 8:
            letter = "abcdefghijklmnop"[k]
            assert re.fullmatch(rf'\{{"key{k}": "{letter}{{20,40}}"\}}', said[0].content), (k, said)
        else:
            assert said == alone[k]


def test_choices_of_one_request_go_their_own_ways(shared_server: Server) -> None:
    body = {
        "model": "hash",
        "messages": [{"role": "user", "content": "x"}],
        "n": 4,
        "temperature": 1,
        "seed": 5,
        "max_tokens": 400,
        **_MODES["schema"],
    }
    answers = both(shared_server, body)
    assert len({said.content for said in answers}) == 4
    for said in answers:
        _check_mode("schema", said)
    calls = both(shared_server, {**body, "response_format": None, **_MODES["required"]})
    assert len(calls) == 4
    for said in calls:
        _check_mode("required", said)


async def test_whoever_leaves_frees_what_he_held(shared_server: Server) -> None:
    """In the middle of an object, before the first token, and while a grammar compiles."""
    endless = {"type": "array", "items": {"type": "integer"}, "minItems": 5000}
    body = {
        "model": "hash",
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "json_schema": endless,
    }
    for after in (30, 1, 0):
        stream = events(shared_server, {**body, "max_tokens": 1500})
        for _ in range(after):
            next(stream)
        stream.close()
    await eventually(lambda: shared_server.engine()["running"] == 0, 5, "nobody running")
    shared_server.settled(5)
    assert whole(shared_server, {**body, "json_schema": _ONLY})[0].finish == "stop"


def test_log_probabilities_are_of_what_was_said(thinker_server: Server) -> None:
    body = {
        "model": model_of(thinker_server),
        "messages": [{"role": "user", "content": "x"}],
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"enable_thinking": False},
        "json_schema": _ONLY,
    }
    for stream in (False, True):
        if stream:
            choices = [chunk["choices"][0] for chunk in events(thinker_server, {**body, "stream": True})]
            text = "".join(choice["delta"].get("content") or "" for choice in choices)
            tokens = [
                token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["content"]
            ]
        else:
            choice = thinker_server.post(CHAT, body).json()["choices"][0]
            text, tokens = choice["message"]["content"], choice["logprobs"]["content"]
        assert _is_only(text)
        assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == text
        assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) >= 2 for token in tokens)


def test_a_stop_string_ends_an_answer_of_any_shape(shared_server: Server) -> None:
    body = {
        "model": "hash",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 300,
        "temperature": 0,
        "json_schema": _ONLY,
    }
    (said,) = both(shared_server, {**body, "stop": [": "]})
    assert said == Said('{"k"', finish="stop")
    (said,) = both(shared_server, {**body, "stop": ["never"]})
    assert _is_only(said.content)


def test_what_a_grammar_decides_nobody_else_may(shared_server: Server) -> None:
    for options in ({"ignore_eos": True}, {"min_tokens": 5}):
        body = {
            "model": "hash",
            "messages": [{"role": "user", "content": "x"}],
            "json_schema": _ONLY,
            **options,
        }
        with pytest.raises(Refused) as refused:
            whole(shared_server, body)
        assert refused.value.status == 400
        assert refused.value.error["param"] in options


def test_no_sampling_parameter_breaks_a_shape(thinker_server: Server) -> None:
    """A bias towards what a grammar forbids, no temperature or much of it, and every filter."""
    model = model_of(thinker_server)
    for options in (
        {"logit_bias": {str(token): 100 for token in range(0, 256, 3)}},
        {"logit_bias": {"258": 100}},  # the end token
        {"logit_bias": {str(token): -100 for token in range(263)}},
        {"temperature": 2, "top_p": 0.01},
        {"top_k": 1},
        {"min_p": 0.9},
        {"repetition_penalty": 5, "frequency_penalty": 2},
    ):
        body = {
            "model": model,
            "messages": [{"role": "user", "content": "x"}],
            "max_tokens": 300,
            "json_schema": _ONLY,
            "chat_template_kwargs": {"enable_thinking": False},
            **options,
        }
        (said,) = whole(thinker_server, body)
        assert said.finish == "stop", (options, said)
        assert _is_only(said.content), (options, said)

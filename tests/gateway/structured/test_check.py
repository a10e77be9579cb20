"""POST /v1/schemas/check: what would become of a shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.request import FailureKind, GrammarReport
from gateway.structured.check import MAX_AT_ONCE
from grammar.spec import Grammar, JsonSchema, Regex
from tests.fakes import FakeEngine
from tests.gateway.live import MODEL, Gateway, Start

pytestmark = pytest.mark.usefixtures("audits")

PATH = "/v1/schemas/check"
EXACT = {"type": "array", "items": {"type": "integer"}}
LOOSE = {**EXACT, "uniqueItems": True}
STRICT = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
NOT_AN_OBJECT = "schema must be a JSON Schema of 'type: \"object\"', got 'type: \"array\"'."


async def check(gateway: Gateway, **body: Any) -> dict[str, Any]:
    status, answer = await gateway.post(PATH, body)
    assert status == 200, answer
    return answer


async def test_what_can_be_enforced(gateway: Gateway) -> None:
    assert await check(gateway, schema=EXACT) == {
        "object": "schema.check",
        "param": "schema",
        "valid": True,
        "enforced": True,
        "error": None,
        "keywords": [
            {
                "path": "/type",
                "keyword": "type",
                "outcome": "enforced",
                "backend": "llguidance",
                "reason": None,
            },
            {
                "path": "/items",
                "keyword": "items",
                "outcome": "enforced",
                "backend": "llguidance",
                "reason": None,
            },
        ],
        "strict_openai": {"valid": False, "error": f"Invalid schema: {NOT_AN_OBJECT}"},
        "backend": "llguidance",
        "compile_ms": 1.0,
        "bytes": 1000,
        "cached": False,
    }
    assert gateway.engine.checked_grammars == [JsonSchema('{"type":"array","items":{"type":"integer"}}')]
    assert gateway.engine.requests == []


@pytest.mark.parametrize(
    ("body", "valid", "enforced", "outcome", "error"),
    [
        # (body, valid, enforced, what becomes of uniqueItems, the error's beginning)
        ({"schema": LOOSE}, True, False, "checked", None),
        ({"schema": LOOSE, "strict": True}, False, False, "refused", f"Invalid schema: {NOT_AN_OBJECT}"),
        (
            {"guided_json": LOOSE},
            False,
            False,
            "refused",
            "Invalid schema in 'guided_json': In context=(), 'uniqueItems'",
        ),
        ({"schema": STRICT, "strict": True}, True, True, None, None),
        (
            {"schema": {**STRICT, "uniqueItems": True}, "strict": True},
            False,
            False,
            "refused",
            "Invalid schema: In context=()",
        ),
        ({"structured_outputs": {"json": EXACT}}, True, True, None, None),
        ({"response_format": {"type": "json_object"}}, True, True, None, None),
    ],
)
async def test_verdicts(
    gateway: Gateway,
    *,
    body: dict[str, Any],
    valid: bool,
    enforced: bool,
    outcome: str | None,
    error: str | None,
) -> None:
    answer = await check(gateway, **body)
    assert (answer["valid"], answer["enforced"]) == (valid, enforced)
    found = {one["keyword"]: one["outcome"] for one in answer["keywords"]}
    assert found.get("uniqueItems") == outcome
    assert (answer["error"] or {"message": ""})["message"].startswith(error or "")
    assert (answer["error"] is None) == (error is None)
    assert answer["backend"] == "llguidance"  # compiled whatever else is wrong with it


async def test_what_is_no_schema_is_an_answer_too(gateway: Gateway) -> None:
    answer = await check(gateway, schema={"type": "strng"})
    assert (answer["valid"], answer["enforced"], answer["keywords"], answer["backend"]) == (
        False,
        False,
        [],
        None,
    )
    assert (answer["error"]["param"], answer["error"]["code"]) == ("schema", "invalid_json_schema")
    assert gateway.engine.checked_grammars == []


async def test_what_the_engine_refuses_is_an_answer_too(start: Start) -> None:
    engine = FakeEngine()
    engine.grammar_error = "it is none"
    gateway = await start(engine)
    answer = await check(gateway, regex="a")
    assert (answer["valid"], answer["compile_ms"], answer["strict_openai"]) == (False, None, None)
    assert answer["error"] == {
        "message": "Invalid pattern in 'regex': it is none",
        "type": "invalid_request_error",
        "param": "regex",
        "code": "invalid_grammar",
    }
    assert engine.checked_grammars == [Regex("a")]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "schema"),
        ({"response_format": {"type": "text"}}, 400, "schema"),
        ({"schema": 5}, 400, "schema"),
        ({"schema": EXACT, "regex": "a"}, 400, "regex"),
        ({"schema": EXACT, "other": 1}, 400, "other"),
        ({"schema": EXACT, "strict": "yes"}, 400, "strict"),
        ({"response_format": {"type": "yaml"}}, 400, "response_format"),
        ({"schema": EXACT, "model": "nobody"}, 404, "model"),
    ],
)
async def test_what_asks_for_nothing_sensible(
    gateway: Gateway, body: dict[str, Any], status: int, param: str
) -> None:
    got, answer = await gateway.post(PATH, body)
    assert (got, answer["error"]["param"]) == (status, param)


async def test_a_key_is_needed_once_there_are_keys(start: Start) -> None:
    gateway = await start(http={"api_keys": ("k",)})
    assert (await gateway.post(PATH, {"schema": EXACT}))[0] == 401
    headers = {"Authorization": "Bearer k"}
    assert (await gateway.post(PATH, {"schema": EXACT, "model": MODEL}, headers=headers))[0] == 200


async def test_few_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    gateway = await start(engine)
    go = asyncio.Event()
    check_grammar = engine.check_grammar

    async def slow(grammar: Grammar) -> Any:
        await go.wait()
        return await check_grammar(grammar)

    monkeypatch.setattr(engine, "check_grammar", slow)
    asking = [asyncio.create_task(gateway.post(PATH, {"schema": EXACT})) for _ in range(MAX_AT_ONCE + 2)]
    refused = [answer async for answer in _first(asking, 2)]
    assert [status for status, _ in refused] == [503, 503]
    go.set()
    assert {(await one)[0] for one in asking} == {200, 503}
    assert (await gateway.post(PATH, {"schema": EXACT}))[0] == 200


async def _first(tasks: list[asyncio.Task[Any]], number: int) -> Any:
    for done in asyncio.as_completed(tasks):
        yield await done
        number -= 1
        if not number:
            return


async def test_an_engine_that_is_away_is_said(start: Start) -> None:
    engine = FakeEngine()
    engine.status = "restarting"
    gateway = await start(engine)
    assert (await gateway.post(PATH, {"schema": EXACT}))[0] == 503


@pytest.mark.parametrize(("kind", "status"), [("unavailable", 503), ("engine_error", 500)])
async def test_what_is_not_the_grammars_fault_is_no_verdict_on_it(
    start: Start, monkeypatch: pytest.MonkeyPatch, kind: FailureKind, status: int
) -> None:
    engine = FakeEngine()
    gateway = await start(engine)

    async def fail(grammar: Grammar) -> GrammarReport:
        return GrammarReport(query_id=0, kind=kind, error="not now")

    monkeypatch.setattr(engine, "check_grammar", fail)
    assert (await gateway.post(PATH, {"schema": EXACT}))[0] == status

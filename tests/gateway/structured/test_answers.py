"""From a request's shape to the engine, and from a finished text to what the client is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.request import GenerationRequest
from gateway.structured.schemas import Schemas
from gateway.text_threads import TextThreads
from grammar.spec import Choice, JsonSchema, Regex
from tests.fakes import FakeEngine, Script, says
from tests.gateway.live import MODEL, Gateway, Start

pytestmark = pytest.mark.usefixtures("audits")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS = [COMPLETIONS, CHAT]
EXACT = {"type": "array", "items": {"type": "integer"}}
LOOSE = {**EXACT, "uniqueItems": True}
GOOD, BAD = says("[1, 2]"), says('[1, "2"]')
REPEATS = says("[1, 1]")


def asked(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"response_format": shape, **more}


def body(path: str, **more: Any) -> dict[str, Any]:
    what = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    return {"model": MODEL, "max_tokens": 40, **what, **more}


async def ask(gateway: Gateway, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
    return await gateway.post(path, body(path, **more))


async def events(gateway: Gateway, path: str, **more: Any) -> tuple[int, list[dict[str, Any]], bool]:
    """Status, what came, and whether the stream ended well."""
    async with gateway.client.post(gateway.url + path, json=body(path, stream=True, **more)) as response:
        raw = await response.read()
        if response.status != 200:
            return response.status, [orjson.loads(raw)], False
        frames = [frame.removeprefix(b"data: ") for frame in raw.split(b"\n\n") if frame]
        done = frames[-1] == b"[DONE]"
        return 200, [orjson.loads(frame) for frame in frames if frame != b"[DONE]"], done


@pytest.mark.parametrize("path", PATHS)
async def test_the_engine_gets_the_grammar(start: Start, path: str) -> None:
    gateway = await start(FakeEngine(GOOD))
    assert (await ask(gateway, path, **asked(EXACT)))[0] == 200
    assert (await ask(gateway, path, guided_regex="a+"))[0] == 200
    assert (await ask(gateway, path, structured_outputs={"json": EXACT, "disable_any_whitespace": False}))[
        0
    ] == 200
    assert (await ask(gateway, path, structured_outputs={"choice": ["[1, 2]"]}))[0] == 200
    assert (await ask(gateway, path, response_format={"type": "text"}))[0] == 200
    text = orjson.dumps(EXACT).decode()
    assert [request.grammar for request in gateway.engine.requests] == [
        JsonSchema(text),
        Regex("a+"),
        JsonSchema(text, "flexible"),
        Choice(("[1, 2]",)),
        None,
    ]


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_enforced_and_holds_needs_no_words(start: Start, path: str) -> None:
    gateway = await start(FakeEngine(GOOD))
    async with gateway.client.post(gateway.url + path, json=body(path, **asked(EXACT))) as response:
        answer = await response.json()
        assert response.headers["x-schema-contract"] == "enforced"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "schema_check" not in answer["choices"][0]


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_enforced_and_broken_is_never_success(
    start: Start, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await start(FakeEngine(BAD))
    status, answer = await ask(gateway, path, **asked(EXACT))
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (
        500,
        "schema_violation",
        "server_error",
    )
    status, came, done = await events(gateway, path, **asked(EXACT))
    assert (status, done) == (200, False)
    assert came[-1]["error"]["code"] == "schema_violation"
    assert all(choice["finish_reason"] is None for event in came[:-1] for choice in event["choices"])
    assert await count(gateway, "headwater_schema_violations_total") == 2
    assert "broke its schema by 'type'" in caplog.text
    assert '"2"' not in caplog.text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("script", "valid"), [(GOOD, True), (REPEATS, False)])
async def test_what_is_not_enforced_is_checked_and_told(
    start: Start, path: str, script: Script, valid: bool
) -> None:
    gateway = await start(FakeEngine(script))
    problems = [{"path": "", "keyword": "uniqueItems"}] if not valid else []
    expected = {"valid": valid, "checked": ["/uniqueItems"], "problems": problems}
    async with gateway.client.post(gateway.url + path, json=body(path, **asked(LOOSE))) as response:
        choice = (await response.json())["choices"][0]
        assert (response.status, response.headers["x-schema-contract"]) == (200, "checked")
    assert without_messages(choice["schema_check"]) == expected
    assert choice["finish_reason"] == "stop"
    status, came, done = await events(gateway, path, **asked(LOOSE))
    assert (status, done) == (200, True)
    last = came[-1]["choices"][0]
    assert (last["finish_reason"], without_messages(last["schema_check"])) == ("stop", expected)
    assert all("schema_check" not in event["choices"][0] for event in came[:-1])
    assert await count(gateway, "headwater_schema_checks_total", valid=str(valid).lower()) == 2


def without_messages(report: dict[str, Any]) -> dict[str, Any]:
    problems = [{key: one[key] for key in ("path", "keyword")} for one in report["problems"]]
    return {**report, "problems": problems}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("more", "finish"),
    [({"max_tokens": 3}, "length"), ({"stop": ["2"]}, "stop"), ({"max_tokens": 6}, "length")],
)
async def test_what_was_cut_is_not_checked(
    start: Start, path: str, more: dict[str, Any], finish: str
) -> None:
    gateway = await start(FakeEngine(BAD))
    for schema in (EXACT, LOOSE):
        status, answer = await ask(gateway, path, **asked(schema), **more)
        assert (status, answer["choices"][0]["finish_reason"]) == (200, finish)
        assert "schema_check" not in answer["choices"][0]
        status, came, done = await events(gateway, path, **asked(schema), **more)
        assert (status, done, came[-1]["choices"][0]["finish_reason"]) == (200, True, finish)


@pytest.mark.parametrize("path", PATHS)
async def test_every_choice_is_checked_on_its_own(start: Start, path: str) -> None:
    def script(request: GenerationRequest, index: int) -> Sequence[int]:
        return (GOOD, REPEATS, REPEATS)[index](request, index)

    gateway = await start(FakeEngine(script))
    _, answer = await ask(gateway, path, **asked(LOOSE), n=3)
    assert [choice["schema_check"]["valid"] for choice in answer["choices"]] == [True, False, False]
    _, came, _ = await events(gateway, path, **asked(LOOSE), n=3)
    told = {
        choice["index"]: choice["schema_check"]["valid"]
        for event in came
        for choice in event["choices"]
        if "schema_check" in choice
    }
    assert told == {0: True, 1: False, 2: False}


@pytest.mark.parametrize("path", PATHS)
async def test_a_long_answer_is_checked_off_the_loop(
    start: Start, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    run = TextThreads.run

    async def counted(self: TextThreads, work: Any) -> Any:
        threads.append("run")
        return await run(self, work)

    monkeypatch.setattr(TextThreads, "run", counted)
    gateway = await start(FakeEngine(says(f"[{'1, ' * 800}1]"), max_model_len=8192))
    await ask(gateway, path, **asked(EXACT), max_tokens=4000)
    assert len(threads) == 3, "the field, a new schema and a long text"
    await ask(gateway, path, **asked(EXACT), max_tokens=4000)
    assert len(threads) == 5


REFUSALS: list[tuple[dict[str, Any], str, str | None, str]] = [
    # (fields, param, code, message)
    (
        {"response_format": {"type": "json_object", "schema": LOOSE}},
        "response_format",
        "invalid_json_schema",
        (
            "Invalid schema in 'response_format.schema': In context=(), 'uniqueItems' is not permitted: "
            "no engine can (at /uniqueItems)."
        ),
    ),
    (
        {"guided_json": LOOSE},
        "guided_json",
        "invalid_json_schema",
        "Invalid schema in 'guided_json': In context=(), 'uniqueItems' is not permitted: no engine can (at /uniqueItems).",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}},
            }
        },
        "response_format",
        None,
        (
            "Invalid schema for response_format 'n': In context=(), 'additionalProperties' is required to be "
            "supplied and to be false."
        ),
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "strng"}},
            }
        },
        "response_format",
        None,
        "Invalid schema for response_format 'n': In context=('type',)",
    ),
    (
        {"json_schema": {"enum": list(range(10_000))}},
        "json_schema",
        "grammar_too_complex",
        "Invalid schema in 'json_schema': ",
    ),
    ({"regex": "x" * 5000}, "regex", "grammar_too_complex", "Invalid pattern in 'regex': "),
    (
        {"structural_tag": {"format": {"type": "json_schema", "json_schema": LOOSE}}},
        "structural_tag",
        "invalid_grammar",
        "Invalid structural tag in 'structural_tag': In context=(), 'uniqueItems' is not permitted",
    ),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "param", "code", "message"), REFUSALS)
async def test_refusals_before_anything_is_queued(
    start: Start, *, path: str, fields: dict[str, Any], param: str, code: str | None, message: str
) -> None:
    gateway = await start()
    status, answer = await ask(gateway, path, **fields)
    error = answer["error"]
    assert (status, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        param,
        code,
    )
    assert error["message"].startswith(message)
    assert gateway.engine.requests == []
    await gateway.at_rest()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "param", "code", "subject"),
    [
        ({"regex": "a"}, "regex", "invalid_grammar", "pattern in 'regex'"),
        ({"guided_json": EXACT}, "guided_json", "invalid_json_schema", "schema in 'guided_json'"),
        (asked(EXACT), "response_format", None, "schema for response_format 'x'"),
    ],
)
async def test_a_refusal_by_the_engine_names_the_field_even_late_and_streamed(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    *,
    path: str,
    stream: bool,
    fields: dict[str, Any],
    param: str,
    code: str | None,
    subject: str,
) -> None:
    monkeypatch.setattr("gateway.openai.answer.FIRST_EVENT_PATIENCE", 0.01)
    engine = FakeEngine()
    engine.grammar_error = "it is none"
    engine.prefill_delay = 0.1
    gateway = await start(engine)
    status, answer = await ask(gateway, path, **fields, stream=stream)
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, code)
    assert answer["error"]["message"] == f"Invalid {subject}: it is none"
    assert await count(gateway, "headwater_grammar_refusals_total", reason="invalid") == 1
    await gateway.at_rest()


async def test_what_one_request_called_its_grammar_is_not_told_to_the_next(start: Start) -> None:
    engine = FakeEngine()
    engine.grammar_error = "it is none"
    gateway = await start(engine)
    for param in ("ebnf", "grammar", "guided_grammar"):
        status, answer = await ask(gateway, "/v1/chat/completions", **{param: 'root ::= "a"'})
        assert (status, answer["error"]["param"]) == (400, param)
    for name in ("mine", "yours"):
        shape = {"name": name, "schema": EXACT}
        form = {"type": "json_schema", "json_schema": shape}
        status, answer = await ask(gateway, "/v1/chat/completions", response_format=form)
        assert answer["error"]["message"] == f"Invalid schema for response_format '{name}': it is none"
    await gateway.at_rest()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", [{"min_tokens": 2}, {"ignore_eos": True}])
async def test_only_the_grammar_says_where_an_answer_ends(
    gateway: Gateway, path: str, field: dict[str, Any]
) -> None:
    status, answer = await ask(gateway, path, regex="a", **field)
    assert (status, answer["error"]["param"]) == (400, next(iter(field)))
    assert (await ask(gateway, path, response_format={"type": "text"}, **field))[0] == 200


async def test_scoring_has_no_shape(gateway: Gateway) -> None:
    status, answer = await ask(gateway, COMPLETIONS, regex="a", max_tokens=0, echo=True)
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


async def test_a_known_schema_is_not_audited_again(start: Start, audits: list[object]) -> None:
    gateway = await start(FakeEngine(GOOD))
    await asyncio.gather(*(ask(gateway, path, **asked(EXACT)) for path in PATHS * 3))
    for _ in range(3):
        await ask(gateway, COMPLETIONS, structured_outputs={"json": EXACT})
    assert audits == [EXACT]
    await ask(gateway, COMPLETIONS, **asked(dict(reversed(EXACT.items()))))
    assert len(audits) == 2  # another order of keys is another grammar
    assert await count(gateway, "headwater_schemas_read_total") >= 2
    assert await count(gateway, "headwater_schema_hits_total") >= 3


async def count(gateway: Gateway, name: str, **labels: str) -> float:
    async with gateway.client.get(gateway.url + "/metrics") as response:
        text = await response.text()
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@pytest.mark.parametrize("path", PATHS)
async def test_the_deadline_counts_while_a_schema_is_worked_out(
    start: Start, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = asyncio.Event()

    async def never(self: Schemas, schema: object) -> None:
        working.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Schemas, "audit", never)
    gateway = await start(FakeEngine())
    status, _ = await gateway.post(path, body(path, **asked(EXACT)), headers={"X-Request-Timeout": "0.2"})
    assert status == 504
    assert working.is_set()
    assert not gateway.engine.requests

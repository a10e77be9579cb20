"""Bugs that other servers had, each as the request that showed it: none of them is ours.

Every file of `../shared/data/bug_cases` has a check here, by its name; a file that has none fails.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.tools.arguments.style import ToolShape
from gateway.tools.families import FAMILIES
from gateway.tools.family import Family
from gateway.tools.parser import Special
from gateway.tools.structure import structure
from grammar.backends.llguidance import LLGuidance
from grammar.contract import audit
from grammar.matcher import Matcher
from grammar.spec import JsonSchema
from tests.end_to_end.chats import CHAT, both, events, model_of, streamed, whole
from tests.end_to_end.server import Reply as HttpReply
from tests.end_to_end.server import Server
from tests.end_to_end.thinker import SPECIALS
from tests.gateway.tools.replies import Reply, read, read_all_ways
from tests.grammar.cursors import BYTES, allowed, outcome, spelled

CASES = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "bug_cases"
FILES = sorted(CASES.glob("*.json"))

pytestmark = pytest.mark.skipif(not FILES, reason="the bug cases are not beside the repository")


@dataclass(frozen=True, slots=True)
class Case:
    """`server` serves the toy that thinks, `demo` gives a server of the demo model or skips."""

    requests: list[dict[str, Any]]
    expect: Mapping[str, Any]
    server: Server
    demo: Callable[[], Server]

    @property
    def request(self) -> dict[str, Any]:
        (only,) = self.requests
        return only

    def body(self, server: Server, request: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """The request as it can be sent: the files name no model."""
        given = self.request if request is None else request
        return {"model": model_of(server), "max_tokens": 1500, "seed": 1, **given, **options}

    def post(self, request: dict[str, Any] | None = None, **options: Any) -> HttpReply:
        return self.server.post(CHAT, self.body(self.server, request, **options), timeout=60)

    @property
    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = self.request["response_format"]["json_schema"]["schema"]
        return schema


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_bug(file: Path, thinker_server: Server, request: pytest.FixtureRequest) -> None:
    given = json.loads(file.read_text())
    check = CHECKS.get(given["id"])
    assert check is not None, f"nobody looks at {file.name}"
    asked = given["request"]
    case = Case(
        requests=asked if isinstance(asked, list) else [asked],
        expect=given["expect"],
        server=thinker_server,
        demo=lambda: request.getfixturevalue("demo_server"),
    )
    pid = thinker_server.engine_pid()
    check(case)
    assert thinker_server.engine_pid() == pid, "the engine died of it"
    assert thinker_server.get("/health/ready").status == 200


def test_every_check_has_its_file() -> None:
    assert CHECKS.keys() == {file.stem for file in FILES}


# -- grammars that break others' engines -------------------------------------------------------------------------------


def malformed_grammar(case: Case) -> None:
    replies = [case.post(request) for request in case.requests]
    assert [reply.status for reply in replies] == case.expect["statuses"]
    assert _with(replies[1].error, case.expect["error_2"])
    assert replies[0].json()["choices"][0]["message"]["content"] in ("yes", "no")
    assert replies[2].json()["choices"][0]["message"]["content"] in ("up", "down")


def empty_alternative(case: Case) -> None:
    whole(case.server, case.body(case.server, {**case.request, "structured_outputs": {"regex": "[a-z]{3}"}}))
    reply = case.post(max_tokens=40)
    assert reply.status in case.expect["status"]
    if reply.status == 200:
        choice = reply.json()["choices"][0]
        assert choice["finish_reason"] == "length" or re.fullmatch("(|.*)", choice["message"]["content"])


def draft7_items(case: Case) -> None:
    reply = case.post()
    assert reply.status in case.expect["status"]
    if reply.status == 200:
        point = json.loads(reply.json()["choices"][0]["message"]["content"])["p"]
        assert len(point) <= 2, "additionalItems: false"
        assert all(isinstance(number, int | float) for number in point)


def invalid_schemas(case: Case) -> None:
    for request in case.requests:
        reply = case.post(request)
        assert reply.status == case.expect["status"], (request, reply)
        assert _with(reply.error, case.expect["error"]), (request, reply.error)


def missing_definition(case: Case) -> None:
    reply = case.post()
    assert reply.status == case.expect["status"]
    expected = dict(case.expect["error"])
    names = expected.pop("message_names")
    assert _with(reply.error, expected)
    assert all(name in reply.error["message"] for name in names), reply.error


def strict_errors(case: Case) -> None:
    for request, error in zip(case.requests, case.expect["errors"], strict=True):
        reply = case.post(request)
        assert reply.status == case.expect["status"]
        assert reply.error == error


def large_lengths(case: Case) -> None:
    schema = case.request["tools"][0]["function"]["parameters"]
    report = case.server.post("/v1/schemas/check", {"schema": schema}, timeout=30)
    assert report.status == 200, report
    began = time.monotonic()
    assert case.post(max_tokens=8).status == case.expect["status"]
    assert time.monotonic() - began < case.expect["compile_seconds_max"] + 1, "with room for a busy machine"


def never_finishes(case: Case) -> None:
    asked = {
        "messages": [{"role": "user", "content": "x"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "out", "schema": _many_unions(objects=60, properties=10, levels=3)},
        },
    }
    with _gaps(case.server) as gaps:
        began = time.monotonic()
        reply = case.post(asked, max_tokens=8)
        took = time.monotonic() - began
    assert reply.status in case.expect["status"], reply
    assert took < case.expect["compile_seconds_max"]
    assert sorted(gaps)[len(gaps) // 2] < case.expect["event_loop_blocked_ms_max"] / 1000
    assert max(gaps) < 0.5, "with room for a busy machine"


# -- languages ---------------------------------------------------------------------------------------------------------


def language(case: Case) -> None:
    """`accepts` and `rejects`, and that what is generated is valid."""
    status = case.expect.get("status", 200)
    reply = case.post()
    assert reply.status in ([status] if isinstance(status, int) else status), reply
    if reply.status == 200:
        choice = reply.json()["choices"][0]
        assert choice["finish_reason"] == "length" or _valid(case.schema, choice["message"]["content"])
        assert choice["finish_reason"] == "stop"
        _check_language(case)


def open_shape(case: Case) -> None:
    (said,) = both(case.server, case.body(case.server))
    assert said.json() == case.expect["content_equals_json"]


def plain_text(case: Case) -> None:
    free = {key: value for key, value in case.request.items() if key != "response_format"}
    assert both(case.server, case.body(case.server, max_tokens=60)) == both(
        case.server, case.body(case.server, free, max_tokens=60)
    )


def speculative_rollback(case: Case) -> None:
    """Drafts are accepted, taken back in part, also past the end, and what remains is where a fresh matcher would be."""
    grammar = LLGuidance(BYTES).compile(
        JsonSchema('{"type": "array", "items": {"enum": [1, "ab"]}, "maxItems": 3}')
    )
    end = 257
    text = [*spelled('[1, "ab", 1]'), end]
    for length in range(1, len(text) + 1):
        for back in range(length + 1):
            matcher = Matcher(grammar, (end,), BYTES)
            for token in text[:length]:
                matcher.accept(token)
            matcher.rollback(back)
            fresh = Matcher(grammar, (end,), BYTES)
            for token in text[: length - back]:
                fresh.accept(token)
            if length - back < len(text):
                assert allowed(matcher, BYTES) == allowed(fresh, BYTES), (length, back)
                for token in text[length - back :]:
                    matcher.accept(token)


# -- thoughts ----------------------------------------------------------------------------------------------------------


def no_thoughts(case: Case) -> None:
    (said,) = both(case.server, case.body(case.server))
    assert _valid(case.schema, said.content)
    assert said.reasoning == ""
    message = case.post().json()["choices"][0]["message"]
    assert message.get("reasoning_content") is None


def thoughts_apart(case: Case) -> None:
    for seed in range(4):
        (said,) = both(case.server, case.body(case.server, seed=seed, logit_bias=_THINKING))
        assert said.reasoning, "it was made to think"
        assert _valid(case.schema, said.content)
        assert "</think>" not in said.reasoning + said.content
        with pytest.raises(json.JSONDecodeError):
            json.loads(said.reasoning)


def may_think(case: Case) -> None:
    asked = case.body(case.server, logit_bias=_THINKING, return_token_ids=True)
    first = case.server.post(CHAT, asked, timeout=60).json()["choices"][0]["token_ids"][0]
    assert first == _special("<think>")


# -- parsers -----------------------------------------------------------------------------------------------------------

_PARSERS = {"hermes": "hermes", "qwen3_coder": "qwen_3_coder"}


def parsed(case: Case) -> None:
    """The calls in a reply, however it is cut into pieces."""
    family = FAMILIES[_PARSERS[case.request["parser"]]]
    tools = [_shape(tool["function"]) for tool in case.request["tools"]]
    reply = read_all_ways(family, tools, case.request["model_output"])
    assert [{"name": call.name, "arguments": call.value} for call in reply.calls] == case.expect["tool_calls"]
    assert all(call.whole for call in reply.calls)
    assert reply.content == ""
    assert reply == _read_with_tokens(family, tools, case.request["model_output"])


def _read_with_tokens(family: Family, tools: list[ToolShape], text: str) -> Reply:
    """The same where the marks around the call are special tokens; those inside of it stay letters."""
    opening, closing = "<tool_call>", "</tool_call>"
    inner = text.removeprefix(opening).removesuffix(closing)
    pieces = [Special(opening), *inner, Special(closing)]
    return read(family, tools, pieces, specials=(opening, closing))


def _shape(function: dict[str, Any]) -> ToolShape:
    return ToolShape(function["name"], audit(function["parameters"]).grammar, function["parameters"])


# -- calls -------------------------------------------------------------------------------------------------------------


def truncated_call(case: Case) -> None:
    demo = case.demo()
    (said,) = both(demo, case.body(demo))
    assert said.finish == case.expect["finish_reason"]
    assert len(said.calls) <= 1


def strict_in_auto(case: Case) -> None:
    function = case.request["tools"][0]["function"]
    for seed in range(4):
        (said,) = both(case.server, case.body(case.server, seed=seed, logit_bias=_CALLING))
        assert said.finish == "tool_calls"
        for call in said.calls:
            assert call.name == function["name"]
            assert _valid(function["parameters"], call.text)
    arguments = audit(function["parameters"]).grammar
    for text in case.expect["grammar_rejects"]:
        assert outcome(LLGuidance(BYTES), arguments, text) == "refused", text


def streamed_call(case: Case) -> None:
    demo = case.demo()
    chunks = list(events(demo, case.body(demo)))
    assert len({chunk["id"] for chunk in chunks}) == 1
    (said,) = streamed(demo, case.body(demo))
    assert said.finish == case.expect["finish_reason"]
    for call in said.calls:
        assert call.id.startswith(case.expect["id_prefix"])
        assert isinstance(call.text, str)
        assert _valid(case.request["tools"][0]["function"]["parameters"], call.text)


def no_calls(case: Case) -> None:
    for options in ({}, {"logit_bias": _CALLING}):
        (said,) = both(case.server, case.body(case.server, max_tokens=300, **options))
        assert said.calls == []
        assert said.finish in ("stop", "length")
        assert "<tool_call>" not in said.content
    tools = [_shape(tool["function"]) for tool in case.request["tools"]]
    none = structure(FAMILIES["hermes"], tools, mode="none")
    for text in case.expect["grammar_rejects"]:
        assert outcome(LLGuidance(BYTES), none, text) == "refused", text


CHECKS: dict[str, Callable[[Case], None]] = {
    "01_malformed_grammar_must_not_kill_engine": malformed_grammar,
    "02_regex_empty_alternative": empty_alternative,
    "04_stream_truncated_call_is_length": truncated_call,
    "06_end_marker_inside_string_argument": parsed,
    "08_nested_object_arguments_streaming": parsed,
    "10_thinking_disabled_with_schema": no_thoughts,
    "11_schema_json_not_in_reasoning": thoughts_apart,
    "12_schema_must_not_disable_thinking": may_think,
    "14_strict_flag_silently_ignored": strict_in_auto,
    "15_auto_streaming_types": parsed,
    "16_response_format_text": plain_text,
    "18_speculative_rollback": speculative_rollback,
    "19_draft7_items_list": draft7_items,
    "20_invalid_schema_400": invalid_schemas,
    "23_llamacpp_large_maxLength": large_lengths,
    "25_nested_pattern": language,
    "27_arguments_is_string_and_finish_reason": streamed_call,
    "28_openai_response_format_shape": open_shape,
    "29_defs_dropped": missing_definition,
    "31_recursive_refs_with_patterns_segv": language,
    "32_outlines_additionalProperties_false_with_patternProperties": language,
    "33_outlines_never_finishes": never_finishes,
    "34_enum_non_string": language,
    "35_openai_strict_errors": strict_errors,
    "37_tool_choice_none_leak": no_calls,
}


def _check_language(case: Case) -> None:
    """What the grammar of the case's schema takes, and what not."""
    grammar = audit(case.schema).grammar
    backend = LLGuidance(BYTES)
    for key, expected in (("accepts", "complete"), ("if_200_accepts", "complete")):
        for value in case.expect.get(key, ()):
            assert outcome(backend, grammar, json.dumps(value)) == expected, value
    for key in ("rejects", "if_200_rejects"):
        for value in case.expect.get(key, ()):
            assert outcome(backend, grammar, json.dumps(value)) != "complete", value


def _with(error: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return {key: error[key] for key in expected} == expected


def _valid(schema: dict[str, Any], text: str) -> bool:
    jsonschema_rs.validator_for(schema).validate(json.loads(text))
    return True


def _special(text: str) -> int:
    """The id of a special token of the toy, which are behind its bytes in this order."""
    return 256 + SPECIALS.index(text)


_THINKING = {str(_special("<think>")): 100, str(_special("</think>")): 2}
"""A bias by which the toy thinks wherever it may, for some tokens."""
_CALLING = {str(_special("<tool_call>")): 100, str(_special("<|im_end|>")): 50}
"""A bias by which it calls wherever it may, and ends where it cannot."""


def _many_unions(*, objects: int, properties: int, levels: int) -> dict[str, Any]:
    text = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema: dict[str, Any] = {}
    for level in range(levels):
        leaves = {f"p{level}_{i}": text for i in range(properties)}
        inner = {
            f"o{level}_{i}": schema or _object(leaves) for i in range(objects if level == levels - 1 else 2)
        }
        schema = _object({**leaves, **inner})
    return schema


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@contextmanager
def _gaps(server: Server) -> Iterator[list[float]]:
    """How long the gateway took to answer anything at all, asked again and again."""
    waits: list[float] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            began = time.monotonic()
            server.get("/health/live")
            waits.append(time.monotonic() - began)
            time.sleep(0.005)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield waits
    finally:
        done.set()
        thread.join()

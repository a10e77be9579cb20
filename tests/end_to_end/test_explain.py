"""Why a request missed, asked of a whole server on the hash model: each fault is injected, and named, with its place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.server import Server, wait_for

SYSTEM = "You are a careful assistant who answers in one short sentence and never makes anything up."
KEYS = ("key-of-ada", "key-of-bob")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("explain")
    tenants = directory / "tenants.yaml"
    tenants.write_text("default: {prompt_cache_key: isolate}\n")
    flags = ["--pages", "400", "--max-model-len", "2048", "--tenants", str(tenants), "--admin-key", "admin"]
    for key in KEYS:
        flags += ["--api-key", key]
    server = Server(directory, *flags, key=KEYS[0])
    yield server
    server.stop()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Words that no other test uses, so that it finds nothing of theirs."""
    return f"About {request.node.name}: what is known of it, by whom, and since when?"


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def ask(server: Server, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    key = fields.pop("api_key", None)
    body = {"model": "hash", "messages": messages, "max_tokens": 8, "seed": 1, "temperature": 0, **fields}
    reply = server.post("/v1/chat/completions", body, key=key)
    assert reply.status == 200, reply
    answer: dict[str, Any] = reply.json()
    answer["x-cache"] = reply.headers["x-cache"]
    return answer


def talk(server: Server, topic: str, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A first turn, and the messages of the next."""
    opening = [
        say("system", f"{topic} {SYSTEM}"),
        say("user", "Tell me about the river, the stone and the cloud."),
    ]
    answer = ask(server, opening, **fields)
    said = answer["choices"][0]["message"]["content"] or ""
    return [*opening, say("assistant", said), say("user", "And the market?")], answer


def explain(
    server: Server, response: dict[str, Any], baseline: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    body = {"response_id": response["id"], **({} if baseline is None else {"baseline_id": baseline["id"]})}
    reply = server.post("/v1/caches/explain", body, **fields)
    assert reply.status == 200, reply
    explanation: dict[str, Any] = reply.json()
    return explanation


def both(server: Server, response: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """The explanation, which is the same whether the baseline is given or has to be found; and so is the header's word."""
    given, chosen = explain(server, response, baseline), explain(server, response)
    assert chosen["baseline_id"] == given["baseline_id"]
    assert {**given, "baseline": None} == {**chosen, "baseline": None}
    assert response["x-cache"].rpartition("reason=")[2] == given["reason"]
    return given


class TestChanged:
    def test_nothing(self, server: Server, topic: str) -> None:
        messages, first = talk(server, topic)
        found = both(server, ask(server, messages), first)
        assert (found["reason"], found["first_divergence"]) == ("partial_hit", None)
        assert found["hit_tokens"] == found["reusable_tokens"] > first["usage"]["prompt_tokens"]

    @pytest.mark.parametrize("message", range(4))
    def test_a_character(self, server: Server, topic: str, message: int) -> None:
        messages, _ = talk(server, topic)
        before = ask(server, [*messages, say("assistant", "ok, go on then"), say("user", "Why?")])
        content = messages[message]["content"]
        char = len(content) - 3
        changed = [*messages, say("assistant", "ok, go on then"), say("user", "Why?")]
        changed[message] = say(changed[message]["role"], f"{content[:char]}#{content[char + 1 :]}")
        found = both(server, ask(server, changed), before)
        assert found["reason"] == ("system_changed" if message == 0 else "message_edited")
        assert found["detail"]["message"] == message
        place = found["first_divergence"]
        assert (place["message"], place["part"], place["char"]) == (message, 0, char)
        assert place["got_preview"][24] == "#"
        assert place["expected_preview"][24] == content[char]
        assert found["hit_tokens"] == place["token"] == found["prompt_tokens"] - place["cache_missed_tokens"]

    @pytest.mark.parametrize(
        ("tools", "change", "which"),
        [("abc>acb", "reordered", "c"), ("abc>ac", "removed", "b"), ("ac>abc", "added", "b")],
    )
    def test_the_tools(self, server: Server, topic: str, tools: str, change: str, which: str) -> None:
        before, after = tools.split(">")
        opening = [say("system", f"{topic} {SYSTEM}"), say("user", "Tell me.")]
        first = ask(server, opening, tools=[tool(name) for name in before], tool_choice="none")
        second = ask(server, opening, tools=[tool(name) for name in after], tool_choice="none")
        found = both(server, second, first)
        assert (found["reason"], found["detail"]) == ("tools_changed", {"change": change, "tool": which})
        assert found["first_divergence"]["segment"] == "tools"

    def test_the_key(self, server: Server, topic: str) -> None:
        messages, first = talk(server, topic, prompt_cache_key="one")
        found = both(server, ask(server, messages, prompt_cache_key="other"), first)
        assert (found["reason"], found["hit_tokens"]) == ("prompt_cache_key_changed", 0)
        assert found["reusable_tokens"] > 0

    def test_the_salt(self, server: Server, topic: str) -> None:
        messages, first = talk(server, topic)
        found = both(server, ask(server, messages, cache_salt="s"), first)
        assert (found["reason"], found["detail"]) == ("namespace_changed", {"by": "cache_salt"})

    def test_the_time_of_day(self, server: Server, topic: str) -> None:
        def at(time: str) -> list[dict[str, Any]]:
            return [say("system", f"{topic} It is {time}. {SYSTEM}"), say("user", "Tell me.")]

        first = ask(server, at("2026-11-30T21:50:01Z"))
        found = both(server, ask(server, at("2026-11-30T21:51:44Z")), first)
        assert (found["reason"], found["detail"]["kind"]) == ("volatile_pattern", "datetime")
        assert found["first_divergence"]["message"] == 0

    def test_a_request_that_does_not_read(self, server: Server, topic: str) -> None:
        messages, first = talk(server, topic)
        found = both(server, ask(server, messages, cache={"bypass": "read"}), first)
        assert (found["reason"], found["detail"]) == ("bypass", {"why": "read"})


class TestOfNobodyElse:
    def test_another_tenants_responses_do_not_exist(self, server: Server, topic: str) -> None:
        messages, first = talk(server, topic)
        mine = ask(server, messages, api_key=KEYS[1])
        for body in (
            {"response_id": first["id"]},
            {"response_id": mine["id"], "baseline_id": first["id"]},
            {"request": {"model": "hash", "messages": messages}, "baseline_id": first["id"]},
        ):
            foreign = server.post("/v1/caches/explain", body, key=KEYS[1])
            never = server.post(
                "/v1/caches/explain",
                {**body, ("baseline_id" if len(body) > 1 else "response_id"): "chatcmpl-" + "0" * 32},
                key=KEYS[1],
            )
            assert foreign.status == never.status == 404
            assert foreign.error["code"] == never.error["code"] == "response_not_found"
            assert foreign.error["param"] == never.error["param"]
            assert foreign.error["message"].replace(first["id"], "") == never.error["message"].replace(
                "chatcmpl-" + "0" * 32, ""
            )
        found = explain(server, mine, key=KEYS[1])
        assert (found["reason"], found["baseline_id"], found["hit_tokens"]) == ("cold", None, 0)


class TestLost:
    """A server of its own for each: they lose things for everybody."""

    def test_evicted(self, tmp_path: Path) -> None:
        server = Server(tmp_path, "--pages", "64", "--max-model-len", "512")
        try:
            messages, first = talk(server, "evicted")
            for i in range(6):
                ask(server, [say("user", f"{i} fills the cache with something else " * 8)])
            found = explain(server, ask(server, messages), first)
            assert found["reason"] == "evicted", found
            assert found["detail"]["cause"] == "pressure"
            assert found["detail"]["age"] >= 0
            assert found["first_divergence"] is None
            assert found["reusable_tokens"] > found["hit_tokens"]
        finally:
            server.stop()

    def test_flushed(self, tmp_path: Path) -> None:
        server = Server(tmp_path, "--pages", "128", "--max-model-len", "1024")
        try:
            messages, first = talk(server, "flushed", prompt_cache_key="k")
            assert server.post("/v1/caches/flush", {"scope": {"tenant": "local"}}).status == 200
            found = both(server, ask(server, messages, prompt_cache_key="k"), first)
            assert (found["reason"], found["detail"]["scope"]) == ("flushed", "tenant")
            messages, first = talk(server, "flushed pages", prompt_cache_key="k")
            reply = server.post("/v1/caches/flush", {"scope": {"prompt_cache_key": "k"}})
            assert reply.json()["pages"]["device"] > 0
            found = both(server, ask(server, messages, prompt_cache_key="k"), first)
            assert (found["reason"], found["detail"]["scope"]) == ("flushed", "pages")
        finally:
            server.stop()

    def test_restarted(self, tmp_path: Path) -> None:
        server = Server(tmp_path, "--pages", "128", "--max-model-len", "1024")
        try:
            messages, first = talk(server, "restarted")
            engine = server.engine_pid()
            os.kill(engine, signal.SIGKILL)
            wait_for(lambda: server.is_ready() and server.engine_pid() != engine, 30.0, "another engine")
            found = both(server, ask(server, messages), first)
            assert (found["reason"], found["hit_tokens"]) == ("restarted", 0)
        finally:
            server.stop()


class TestAsking:
    def test_a_dry_run(self, server: Server, topic: str) -> None:
        messages, first = talk(server, topic)
        request = {"model": "hash", "messages": [*messages[:3], say("user", "And the wind?")]}
        reply = server.post("/v1/caches/explain", {"request": request, "baseline_id": first["id"]})
        found = reply.json()
        assert (found["response_id"], found["reason"]) == (None, "partial_hit")
        request["messages"][1] = say("user", "Tell me about the rover, the stone and the cloud.")
        found = server.post("/v1/caches/explain", {"request": request, "baseline_id": first["id"]}).json()
        assert (found["reason"], found["first_divergence"]["char"]) == ("message_edited", 19)
        assert server.post("/v1/caches/explain", {"request": request}).json()["baseline_id"] == first["id"]

    def test_a_stream_by_the_id_of_its_request(self, server: Server, topic: str) -> None:
        messages, first = talk(server, topic)
        body = {"model": "hash", "messages": messages, "max_tokens": 8, "stream": True}
        reply = server.post("/v1/chat/completions", body, headers={"X-Request-Id": "mine-1"})
        found = server.get("/v1/caches/explain?response_id=mine-1").json()
        assert found["response_id"] in reply.body.decode()
        assert (found["reason"], found["baseline_id"]) == ("partial_hit", first["id"])

    def test_completions(self, server: Server, topic: str) -> None:
        def complete(*prompts: str) -> dict[str, Any]:
            body = {"model": "hash", "prompt": list(prompts), "max_tokens": 4}
            answer: dict[str, Any] = server.post("/v1/completions", body).json()
            return answer

        first = complete(topic, topic[::-1])
        second = complete(topic[::-1][:-2] + "##", topic[:-3] + "###")
        body = {"response_id": second["id"], "prompt": 1}
        found = server.post("/v1/caches/explain", body).json()
        assert found["baseline_id"] == first["id"]
        # it was chosen, and nothing but its beginning is the same
        assert (found["reason"], found["first_divergence"]) == ("partial_hit", None)
        body |= {"baseline_id": first["id"]}
        found = server.post("/v1/caches/explain", body).json()
        assert (found["reason"], found["first_divergence"]["segment"]) == ("message_edited", "prompt")
        found = server.post("/v1/caches/explain", {**body, "prompt": 0, "baseline_prompt": 1}).json()
        assert found["first_divergence"]["char"] == len(topic) - 2

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "response_id"),
            ({"response_id": "a", "request": {}}, "response_id"),
            ({"request": []}, "request"),
            ({"request": {"model": "hash", "prompt": ["a", "b"]}}, "prompt"),
            ({"request": {"model": "hash", "messages": [], "prompt": "a"}}, "prompt"),
            ({"response_id": 1}, "response_id"),
            ({"response_id": "a", "prompt": -1}, "prompt"),
            ({"response_id": "a", "more": 1}, "more"),
        ],
        ids=str,
    )
    def test_what_is_wrong_is_said(self, server: Server, body: dict[str, Any], param: str) -> None:
        reply = server.post("/v1/caches/explain", body)
        assert reply.status == 400, reply
        assert reply.error["param"] == param

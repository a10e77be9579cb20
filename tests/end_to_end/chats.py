"""Chat completions read strictly, whole or streamed: what was said, and that it was said in OpenAI's shape."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .server import Server

CHAT = "/v1/chat/completions"
PATIENCE = 120.0
_FIELD = {"function": "arguments", "custom": "input"}


@dataclass(slots=True)
class Call:
    """Equal to another whatever their ids."""

    kind: str
    name: str
    text: str
    """Of the arguments, or the input of a custom tool."""
    id: str = field(compare=False)

    @property
    def arguments(self) -> Any:
        return json.loads(self.text)


@dataclass(slots=True)
class Said:
    """One choice. `content` and `reasoning` are empty where the wire has null or nothing."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str = ""

    def json(self) -> Any:
        return json.loads(self.content)


class Refused(Exception):
    """An answer with an error: `status` is that of HTTP, 200 if the error came in a stream."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(f"{status}: {error}")
        self.status = status
        self.error = error


def model_of(server: Server) -> str:
    name: str = server.get("/v1/models").json()["data"][0]["id"]
    return name


def whole(server: Server, body: Mapping[str, Any], *, path: str = CHAT) -> list[Said]:
    """Ask for one body. Raises Refused."""
    reply = server.post(path, {**body, "stream": False}, timeout=PATIENCE)
    if reply.status != 200:
        raise Refused(reply.status, reply.error)
    answer = reply.json()
    assert answer["object"] == "chat.completion"
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [_said(choice) for choice in answer["choices"]]


def streamed(server: Server, body: Mapping[str, Any]) -> list[Said]:
    """Ask for a stream, and insist on the order of its chunks. Raises Refused."""
    reader = StreamReader()
    for event in events(server, {**body, "stream": True}):
        reader.take(event)
    return reader.result()


def both(server: Server, body: Mapping[str, Any]) -> list[Said]:
    """What a deterministic request is answered, which must be the same whole and streamed."""
    answer = whole(server, body)
    stream = streamed(server, body)
    assert stream == answer, (stream, answer)
    return answer


def events(server: Server, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of a stream, up to `[DONE]`. Closing the iterator hangs up. Raises Refused."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    headers = {"Content-Type": "application/json"}
    if server.key is not None:
        headers["Authorization"] = f"Bearer {server.key}"
    try:
        connection.request("POST", CHAT, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise Refused(response.status, json.loads(response.read())["error"])
        assert response.headers["Content-Type"].startswith("text/event-stream")
        for line in response:
            if not line.startswith(b"data: "):
                assert line.strip() == b"" or line.startswith(b":"), line
                continue
            if line.strip() == b"data: [DONE]":
                assert response.read().strip() == b"", "something after [DONE]"
                return
            event = json.loads(line[6:])
            if "error" in event:
                raise Refused(200, event["error"])
            yield event
        raise AssertionError("the stream had no [DONE]")
    finally:
        connection.close()


class StreamReader:
    """Puts the chunks of a stream together. Asserts what clients rely on."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._choices: dict[int, Said] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        assert event["object"] == "chat.completion.chunk", event
        self._ids.add(event["id"])
        assert len(self._ids) == 1, "every chunk of a stream has the same id"
        for choice in event["choices"]:
            self._choice(choice)

    def result(self) -> list[Said]:
        said = [self._choices[i] for i in range(len(self._choices))]
        assert all(one.finish for one in said), "a choice without a finish"
        ids = [call.id for one in said for call in one.calls]
        assert len(set(ids)) == len(ids), "ids of calls are unique"
        return said

    def _choice(self, choice: Mapping[str, Any]) -> None:
        index, delta = choice["index"], choice["delta"]
        if index not in self._choices:
            assert delta["role"] == "assistant", "the first delta of a choice says whose it is"
            self._choices[index] = Said()
        else:
            assert "role" not in delta
        said = self._choices[index]
        assert not said.finish, "a delta after the finish"
        said.content += delta.get("content") or ""
        said.reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            _add(said.calls, call)
        if choice["finish_reason"] is not None:
            assert delta == {}, "the chunk with the finish says nothing else"
            said.finish = choice["finish_reason"]
            _check_finish(said)


def _add(calls: list[Call], delta: Mapping[str, Any]) -> None:
    index = delta["index"]
    if index == len(calls):
        kind = delta["type"]
        inner = delta[kind]
        assert inner[_FIELD[kind]] == "", "the first delta of a call names it and no more"
        calls.append(Call(kind, inner["name"], "", delta["id"]))
        assert delta["id"].startswith("call_") or delta["id"].startswith("functions."), delta
        return
    assert index == len(calls) - 1, "calls come one after the other"
    call = calls[index]
    assert set(delta) == {"index", call.kind}, delta
    assert set(delta[call.kind]) == {_FIELD[call.kind]}, delta
    piece = delta[call.kind][_FIELD[call.kind]]
    assert isinstance(piece, str)
    call.text += piece


def _said(choice: Mapping[str, Any]) -> Said:
    message = choice["message"]
    assert message["role"] == "assistant"
    assert "content" in message
    calls = []
    for call in message.get("tool_calls") or ():
        inner = call[call["type"]]
        text = inner[_FIELD[call["type"]]]
        assert isinstance(text, str), "arguments are JSON text"
        calls.append(Call(call["type"], inner["name"], text, call["id"]))
    assert message.get("tool_calls") != [], "no calls are no field, not an empty list"
    if calls and not message["content"]:
        assert message["content"] is None
    said = Said(
        message["content"] or "", message.get("reasoning_content") or "", calls, choice["finish_reason"]
    )
    _check_finish(said)
    return said


def _check_finish(said: Said) -> None:
    assert said.finish in ("stop", "length", "tool_calls")
    if said.finish == "tool_calls":
        assert said.calls, "tool_calls is no reason without a call"

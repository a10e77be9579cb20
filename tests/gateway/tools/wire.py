"""What a chat request brings, whole or streamed, in one form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from tests.gateway.live import MODEL, Gateway

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def function(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters or WEATHER, **more}}


def named(name: str, kind: str = "function") -> dict[str, Any]:
    return {"type": kind, kind: {"name": name}}


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@dataclass
class Said:
    """One choice. Calls are (type, name, arguments); ids are beside them."""

    content: str | None = None
    thoughts: str | None = None
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    finish: str | None = None
    report: Any = None
    error: Any = None
    usage: Any = None
    chunks: list[dict[str, Any]] = field(default_factory=list)


async def ask(gateway: Gateway, body: dict[str, Any], *, stream: bool) -> list[Said]:
    """The choices of an answer. A request that fails has one, with its error."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000, **body}
    if not stream:
        status, answer = await gateway.post(CHAT, body)
        if status != 200:
            return [Said(error=answer["error"])]
        return [_whole(choice, answer["usage"]) for choice in answer["choices"]]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with gateway.client.post(gateway.url + CHAT, json=body) as response:
        if response.status != 200:
            return [Said(error=(await response.json())["error"])]
        frames = [frame.removeprefix(b"data: ") for frame in (await response.read()).split(b"\n\n") if frame]
    said = [Said() for _ in range(int(body.get("n", 1)))]
    for frame in frames:
        if frame == b"[DONE]":
            continue
        chunk = orjson.loads(frame)
        if "error" in chunk:
            return [Said(error=chunk["error"])]
        for choice in chunk["choices"]:
            _add(said[choice["index"]], choice)
        for one in said:
            one.usage = chunk["usage"]
    return said


def _whole(choice: dict[str, Any], usage: Any) -> Said:
    message = choice["message"]
    assert message["refusal"] is None
    calls = message.get("tool_calls")
    assert calls != [], "an empty list is none"
    return Said(
        message["content"],
        message.get("reasoning_content"),
        [(call["type"], *call[call["type"]].values()) for call in calls or ()],
        [call["id"] for call in calls or ()],
        choice["finish_reason"],
        choice.get("schema_check"),
        usage=usage,
    )


def _add(said: Said, choice: dict[str, Any]) -> None:
    said.chunks.append(choice)
    assert said.finish is None, "nothing after the finish"
    delta = choice["delta"]
    if (content := delta.get("content")) is not None:
        said.content = (said.content or "") + content
    if thoughts := delta.get("reasoning_content"):
        said.thoughts = (said.thoughts or "") + thoughts
    for call in delta.get("tool_calls", ()):
        if call["index"] == len(said.calls):
            kind = call["type"]
            body = call[kind]
            assert body[_FIELD[kind]] == ""
            said.calls.append((kind, body["name"], ""))
            said.ids.append(call["id"])
        else:
            assert call["index"] == len(said.calls) - 1
            kind, name, arguments = said.calls[-1]
            assert set(call) == {"index", kind}
            said.calls[-1] = (kind, name, arguments + call[kind][_FIELD[kind]])
    if choice["finish_reason"] is not None:
        assert delta == {}
    said.finish = choice["finish_reason"]
    said.report = choice.get("schema_check")


_FIELD = {"function": "arguments", "custom": "input"}

"""Records as a server would have made them, without one."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from cache.lease import CachePolicy
from engine.request import Evicted, PromptCached, RequestEnded, RequestStarted
from gateway.caching.common import common_tokens
from gateway.caching.diagnosis import NOTHING, Diagnosis, compare, conclude
from gateway.caching.records import Instance, Record, pack, pack_messages
from gateway.caching.relation import gists
from gateway.chat_template import ChatTemplate, Message, Rendered, ToolPrompt
from gateway.template_sandbox import to_json
from gateway.tokenizer import Tokenizer

HASH = Tokenizer.hash()
CHATML = ChatTemplate.hash(HASH)


def say(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def tool(name: str, description: str = "does it") -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def offer(*tools: dict[str, Any]) -> ToolPrompt:
    lines = [to_json(each) for each in tools]
    return ToolPrompt(tools, "# Tools\n<tools>\n" + "\n".join(lines) + "\n</tools>", lines)


def chat(
    messages: Sequence[Message],
    *,
    template: ChatTemplate = CHATML,
    tokenizer: Tokenizer = HASH,
    tools: ToolPrompt | None = None,
    variables: Mapping[str, object] | None = None,
    **facts: Any,
) -> Record:
    """The record of a chat; see `of` for `facts`."""
    given = dict(variables or {})
    prompt = template.encode(messages, tools=tools, variables=given)
    return of(
        prompt,
        tokenizer=tokenizer,
        messages=pack_messages(messages),
        gists=gists(messages),
        tools=tools,
        variables=orjson.dumps(given),
        **facts,
    )


def completion(text: str, **facts: Any) -> Record:
    return of(Rendered(HASH.encode(text, add_special=False), text), **facts)


def of(
    prompt: Rendered,
    *,
    answer: str | Sequence[int] = "",
    hit: int | None = None,
    after: Record | None = None,
    evicted: Evicted | None = None,
    at: float = 0.0,
    tokenizer: Tokenizer = HASH,
    **facts: Any,
) -> Record:
    """`hit` None: all that `after` had left. `at` is when it began; it took a second."""
    ids = pack(prompt.ids)
    generated = (
        [*tokenizer.encode(answer, add_special=False), tokenizer.stop_ids[0]]
        if isinstance(answer, str)
        else list(answer)
    )
    if hit is None:
        hit = 0
        if after is not None:
            hit = min(common_tokens(ids, after.whole), after.left, len(prompt.ids) - 1)
    record = {
        "response_id": f"chatcmpl-{at:g}",
        "index": 0,
        "request_id": f"req-{at:g}",
        "tenant": "t",
        "created": at,
        "born": at,
        "model": "m",
        "model_digest": "d",
        "adapter": b"",
        "salt": None,
        "key": None,
        "generation": 0,
        "namespace": b"n",
        "instance": Instance(1, 0),
        "policy": CachePolicy(),
        "messages": None,
        "gists": None,
        "tools": None,
        "variables": b"{}",
        "start": RequestStarted("r", hit, 0.0, evicted=evicted),
        "stored": PromptCached("r", len(prompt.ids) - hit),
        "account": RequestEnded(
            "r", True, hit, len(prompt.ids) - hit, _computed(prompt.ids, hit, generated), len(generated), 0.0
        ),
        "started": at,
        "ended": at + 1,
        **facts,
    }
    made = {"ids": ids, "answer": array("I", generated), "text": prompt.text, "frames": prompt.frames}
    return Record(**{**made, **record})


def _computed(prompt: Sequence[int], hit: int, generated: Sequence[int]) -> int:
    return len(prompt) - hit + max(len(generated) - 1, 0)


def told(record: Record, baseline: Record | None, *, tokenizer: Tokenizer = HASH, **how: Any) -> Diagnosis:
    comparison = NOTHING if baseline is None else compare(record, baseline, tokenizer, **how)
    return conclude(record, comparison, page_size=16)

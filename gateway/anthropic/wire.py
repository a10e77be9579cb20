"""A message as clients see it, whole and streamed.

Its usage counts each token of the prompt once: read from the cache, written to it, or neither (`input_tokens`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from ..caching.ask import CacheAsk
from ..caching.report import cache_details
from ..desk import Job
from ..errors import ApiError
from ..generation import Generation
from ..pieces import Answer, Piece
from ..tools.calls import calls_of
from ..tools.parser import Arguments, CallBegins, CallEnds, Content, Part, Reasoning
from ..tools.render import CUSTOM_ARGUMENT
from .cache_control import SECONDS
from .errors import error_wire

Event = tuple[str, dict[str, Any]]
Block = dict[str, Any]

PING: Event = ("ping", {})


class MessageWriter:
    def __init__(self, message_id: str, model: str, job: Job, *, told: CacheAsk | None) -> None:
        """`told`: what was asked of the cache, if the answer is to say what came of it."""
        self._id = message_id
        self._model = model
        self._job = job
        self._told = told
        self._blocks = _Blocks()
        self._last: Piece | None = None

    # -- streamed ------------------------------------------------------------------------------------------------------

    def head(self, generation: Generation) -> bytes:
        message = self._message(generation, [], None, "")
        return _frames([("message_start", {"message": message}), PING])

    def pieces(self, _: int, __: Generation, pieces: Sequence[Piece]) -> bytes:
        events: list[Event] = []
        for piece in pieces:
            events += self._blocks.add(_parts(piece))
            if piece.finish is not None:
                self._last = piece
                events += self._blocks.close()
        return _frames(events)

    def tail(self, generations: Sequence[Generation]) -> bytes:
        last = self._last
        assert last is not None
        delta = {
            "stop_reason": _stop_reason(last, calls=self._blocks.calls > 0),
            "stop_sequence": last.stop or None,
        }
        said = {
            "delta": delta,
            "usage": usage_wire(generations[0], self._job),
            **cache_details(self._told, generations),
        }
        return _frames([("message_delta", said), ("message_stop", {})])

    def failed(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + orjson.dumps(error_wire(error)) + b"\n\n"

    # -- whole ---------------------------------------------------------------------------------------------------------

    def whole(self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> bytes:
        generation, answer = generations[0], answers[0][0]
        blocks = [] if self._job.text.discard else list(_whole_blocks(answer))
        called = any(block["type"] == "tool_use" for block in blocks)
        reason = "max_tokens" if self._job.text.discard else _stop_reason(answer, calls=called)
        message = self._message(generation, blocks, reason, answer.stop)
        return orjson.dumps({**message, **cache_details(self._told, generations)})

    def _message(
        self, generation: Generation, blocks: list[Block], reason: str | None, stop: str
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": stop or None,
            "usage": usage_wire(generation, self._job),
        }


def usage_wire(generation: Generation, job: Job) -> dict[str, Any]:
    """Only what was written for a breakpoint counts as written: the rest of the prompt is cached without being asked for. Up
    to the last breakpoint with that time to live it counts as lasting for an hour."""
    usage = generation.usage
    entries = job.cache.entries if usage.written else ()
    marked, lasting = (
        max((entry.tokens - usage.cached for entry in entries if entry.lease.ttl >= ttl), default=0)
        for ttl in (0.0, SECONDS["1h"])
    )
    written = min(max(marked, 0), usage.written)
    lasting = min(max(lasting, 0), written)
    return {
        "input_tokens": usage.prompt - usage.cached - written,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": written - lasting,
            "ephemeral_1h_input_tokens": lasting,
        },
        "output_tokens": usage.completion,
        "service_tier": "standard",
    }


class _Blocks:
    """The blocks of an answer as they grow. One is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None
        self._ids: set[str] = set()
        self.calls = 0

    def add(self, parts: Sequence[Part]) -> Iterator[Event]:
        for part in parts:
            match part:
                case Content(text):
                    yield from self._grow({"type": "text", "text": ""}, {"type": "text_delta", "text": text})
                case Reasoning(text):
                    yield from self._grow(
                        {"type": "thinking", "thinking": "", "signature": ""},
                        {"type": "thinking_delta", "thinking": text},
                    )
                case CallBegins():
                    self.calls += 1
                    yield from self._begin(
                        {"type": "tool_use", "id": _call_id(part, self._ids), "name": part.name, "input": {}}
                    )
                case Arguments(_, text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})
                case CallEnds():
                    yield from self.close()

    def close(self) -> Iterator[Event]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._open is not None:
            yield "content_block_stop", {"index": self._index}
        self._open = None

    def _grow(self, empty: Block, delta: dict[str, Any]) -> Iterator[Event]:
        if self._open != empty["type"]:
            yield from self._begin(empty)
        yield self._delta(delta)

    def _begin(self, block: Block) -> Iterator[Event]:
        yield from self.close()
        self._index += 1
        self._open = block["type"]
        yield "content_block_start", {"index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return "content_block_delta", {"index": self._index, "delta": delta}


def _whole_blocks(answer: Answer) -> Iterator[Block]:
    calls = iter(calls_of(answer.parts))
    ids: set[str] = set()
    for part in _parts(answer):
        match part:
            case Content(text):
                yield {"type": "text", "text": text}
            case Reasoning(text):
                yield {"type": "thinking", "thinking": text, "signature": ""}
            case CallBegins():
                call = next(calls)
                yield {
                    "type": "tool_use",
                    "id": _call_id(part, ids),
                    "name": part.name,
                    "input": _input(call.arguments),
                }


def _parts(piece: Piece | Answer) -> Sequence[Part]:
    return piece.parts or ((Content(piece.text),) if piece.text else ())


def _input(arguments: str) -> object:
    """Of a call that a limit cut there is no object: the text comes as it is, under the name that customs' inputs have."""
    try:
        given = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {CUSTOM_ARGUMENT: arguments}
    return given if isinstance(given, dict) else {CUSTOM_ARGUMENT: arguments}


def _call_id(call: CallBegins, taken: set[str]) -> str:
    call_id = call.id if call.id is not None and call.id not in taken else f"toolu_{secrets.token_hex(12)}"
    taken.add(call_id)
    return call_id


def _stop_reason(end: Piece | Answer, *, calls: bool) -> str:
    if end.finish != "stop":
        return "max_tokens"
    if end.stop:
        return "stop_sequence"
    return "tool_use" if calls else "end_turn"


def _frames(events: Sequence[tuple[str, Mapping[str, Any]]]) -> bytes:
    return b"".join(
        [
            b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **said}) + b"\n\n"
            for kind, said in events
        ]
    )

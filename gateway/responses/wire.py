"""A response as clients see it, and the stream of events that leads to it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ..caching.ask import CacheAsk
from ..caching.lifetimes import spell_ttl
from ..caching.report import cache_details
from ..errors import ApiError
from ..generation import Generation, Usage
from ..pieces import Answer, Finish, Piece
from .output import Event, Output
from .request import ResponseRequest

Wire = dict[str, Any]

USUAL_TTL = "30m"


def opening(asked: ResponseRequest, ask: CacheAsk, *, response_id: str, model: str, created: float) -> Wire:
    """A response that has just begun, with all that was asked for."""
    text = asked.text
    reasoning = asked.reasoning
    wire: Wire = {
        "id": response_id,
        "object": "response",
        "created_at": int(created),
        "status": "in_progress",
        "background": asked.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "prompt_cache_options": _cache_options(asked, ask),
        "prompt_cache_retention": ask.retention,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default",
        "store": asked.store,
        "temperature": asked.temperature,
        "text": {
            "format": {"type": "text"} if text is None or text.format is None else text.format,
            "verbosity": "medium",
        },
        "tool_choice": "auto" if asked.tool_choice is None else asked.tool_choice,
        "tools": asked.tools or [],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": asked.top_p,
        "truncation": asked.truncation,
    }
    if asked.user is not None:  # by OpenAI's document it is never null, and neither is usage
        wire["user"] = asked.user
    if (conversation := asked.conversation_id) is not None:
        wire["conversation"] = {"id": conversation}
    return wire


def _cache_options(asked: ResponseRequest, ask: CacheAsk) -> Wire:
    wire: Wire = {"mode": ask.mode, "ttl": USUAL_TTL if ask.lease is None else spell_ttl(ask.lease.ttl)}
    if (compared := asked.options.comparison_response_id) is not None:
        wire["comparison_response_id"] = compared
    return wire


def usage_wire(usage: Usage) -> Wire:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.written},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.prompt + usage.completion,
    }


def ended(finish: Finish | None) -> Wire:
    """The status of a response whose answer ended so."""
    if finish == "length":
        return {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return {"status": "completed", "completed_at": int(time.time())}


def failed(wire: Wire, error: ApiError) -> Wire:
    """The same response when it comes to nothing."""
    code = "rate_limit_exceeded" if error.status == 429 else "server_error"
    code = "invalid_prompt" if error.status == 400 else code
    return {**wire, "status": "failed", "error": {"code": code, "message": error.message}}


class ResponseWriter:
    """`wire` is what the response looks like so far."""

    def __init__(self, wire: Wire, output: Output, *, told: CacheAsk | None, prewarmed: bool) -> None:
        """`told`: what was asked of the cache, if the response is to say what came of it."""
        self.wire = wire
        self._output = output
        self._told = told
        self._prewarmed = prewarmed
        self._numbers = itertools.count()
        self._finish: Finish | None = None
        self._begun = False

    # -- streamed ------------------------------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """Of a response that has to wait until somebody makes it."""
        self._begun = True
        self.wire["status"] = "queued"
        return self._frames([self._response("response.created"), self._response("response.queued")])

    def head(self, _: Generation) -> bytes:
        created = [] if self._begun else [self._response("response.created")]
        self.wire["status"] = "in_progress"
        return self._frames([*created, self._response("response.in_progress")])

    def pieces(self, _: int, __: Generation, pieces: Sequence[Piece]) -> bytes:
        events = [event for piece in pieces for event in self._output.add(piece)]
        self._finish = pieces[-1].finish or self._finish
        return self._frames(events)

    def complete(self, generation: Generation, answer: Answer) -> Wire:
        """The response with its answer. The same object from the second time on."""
        if "usage" not in self.wire:
            if not self._output.items and not self._prewarmed:
                self._output.whole(answer)
            self.wire |= {
                **ended("stop" if self._prewarmed else answer.finish),
                "output": self._output.items,
                "usage": usage_wire(generation.usage),
                **cache_details(self._told, [generation]),
            }
        return self.wire

    def tail(self, _: Sequence[Generation]) -> bytes:
        """Comes after `complete`."""
        return self._frames([self._response(f"response.{self.wire['status']}")])

    def failed(self, error: ApiError) -> bytes:
        self.wire = failed({**self.wire, "output": self._output.items}, error)
        return self._frames([self._response("response.failed")])

    def cancelled(self) -> None:
        """There is no event for that."""
        self.wire = {**self.wire, "status": "cancelled", "output": self._output.items}

    # -- whole ---------------------------------------------------------------------------------------------------------

    def whole(self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> bytes:
        return orjson.dumps(self.complete(generations[0], answers[0][0]))

    # ------------------------------------------------------------------------------------------------------------------

    def _response(self, kind: str) -> Event:
        return kind, {"response": self.wire}

    def _frames(self, events: Sequence[Event]) -> bytes:
        return b"".join([self._frame(kind, said) for kind, said in events])

    def _frame(self, kind: str, said: Mapping[str, Any]) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": next(self._numbers), **said})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

"""From the engine's events to pieces of text: the one way up, for every endpoint, streamed or not.

Ids become whole characters, stop strings are cut, log-probabilities stay beside the text they belong to, and everything
the metrics and the usage want to know is noted on the way.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Coroutine, Iterable, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.client import RequestStream, StreamEvent
from engine.errors import RequestFailure
from engine.request import (
    GenerationRequest,
    GrammarReady,
    PromptCached,
    RequestStarted,
    SequenceDelta,
    TokenLogprob,
)

from .caching.reasons import Finding
from .detokenizer import Detokenizer
from .pieces import Answer, Finish, Piece, TextOptions, TokenDetail, join
from .reply import Reply
from .stops import StopSearch
from .tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(slots=True)
class Timing:
    """When things happened to a request, by `time.perf_counter`; 0 is not yet."""

    submitted: float
    started: float = 0.0
    first_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. The prompt counts once however many choices there are.

    `cached` of the prompt were found in the cache, `written` were added to it; no token is both.
    `reasoning` are those of the completion that thoughts took; None where nobody looked for thoughts.
    """

    prompt: int
    completion: int
    cached: int
    written: int
    reasoning: int | None = None

    def __add__(self, other: Usage) -> Usage:
        """Of two prompts, none of which is thought about: those of a completion."""
        return Usage(
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.cached + other.cached,
            self.written + other.written,
        )

    def wire(self) -> dict[str, object]:
        wire: dict[str, object] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": self.written},
        }
        if self.reasoning is not None:
            wire["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return wire


class Choice:
    """The text of one sequence as it grows."""

    __slots__ = (
        "_detail",
        "_detokenizer",
        "_offset",
        "_options",
        "_pending",
        "_stops",
        "finish",
        "index",
        "last_token",
        "tokens",
    )
    reasoning = 0
    """Tokens of thoughts: there are none that anybody looked for."""
    awaited_tools: Set[str] = frozenset()
    """Nor calls."""

    def __init__(self, index: int, tokenizer: Tokenizer, options: TextOptions, stops: StopSearch) -> None:
        self.index = index
        self.tokens = 0
        self.last_token = 0.0
        self.finish: Finish | None = None
        self._options = options
        self._detail = options.logprobs or options.ids
        self._detokenizer = Detokenizer(tokenizer, continues=options.continues_prompt)
        self._stops = stops.fresh()
        self._pending: list[TokenDetail] = []
        self._offset = 0

    def push(self, delta: SequenceDelta) -> Piece | None:
        """Add a step's tokens. None when nothing became certain."""
        if self._options.discard:
            self.finish = "length"
            return self._piece("")
        text = ""
        last = len(delta.tokens) - 1
        for position, token in enumerate(delta.tokens):
            self.tokens += 1
            if position == last and delta.finish == "stop":
                break  # the token that ended the sequence is counted and not shown
            offset = self._offset
            text += self._show((token,))
            if self._detail:
                logprob = delta.logprobs[position] if delta.logprobs else None
                self._pending.append(TokenDetail(token, offset, logprob))
            if self.finish is not None:
                return self._piece(text)
        if delta.finish is not None:
            text += self._end("stop" if delta.finish == "stop" else "length")
        if text or self.finish is not None:
            return self._piece(text)
        return None

    def _show(self, tokens: tuple[int, ...]) -> str:
        text = self._detokenizer.push(tokens)
        self._offset += len(text)
        return self._search(text)

    def _search(self, text: str) -> str:
        if self.tokens <= self._options.min_tokens:
            return text  # a stop string may not end what a stop token may not
        text = self._stops.push(text)
        if self._stops.stopped:
            self.finish = "stop"
        return text

    def _end(self, finish: Finish) -> str:
        text = self._search(self._detokenizer.flush())
        if self.finish is None:
            text += self._stops.flush()
            self.finish = "stop" if self._stops.stopped else finish
        return text

    def _piece(self, text: str) -> Piece:
        details = tuple(self._pending)
        self._pending.clear()
        return Piece(self.index, text, details, self.finish, self._stops.stopped_by)


class Generation:
    """One request on its way. One reader, by `read` (pieces as they come) or `collect` (whole answers).

    Leave with `close`, which aborts what still runs.
    """

    def __init__(self, stream: RequestStream, tokenizer: Tokenizer, options: TextOptions) -> None:
        self._stream = stream
        self._options = options
        self._now = time.perf_counter  # the event loop's own clock stands still within a turn
        stops = StopSearch(options.stops, include=options.include_stop)
        self.choices = [_choice(i, tokenizer, options, stops) for i in range(stream.request.n)]
        self.timing = Timing(submitted=self._now())
        self.gaps: list[float] = []
        self.answer = array("I")
        """The tokens of the first choice, as far as they were read."""
        self.known: int | None = None
        """How many tokens of its prompt are those of the turn before; None where nobody looked for one."""
        self.start: RequestStarted | None = None
        self.stored: PromptCached | None = None
        self.when_started: Callable[[], None] | None = None
        """Called once, when `start` is there."""
        self.error: BaseException | None = None
        """Why its reader left, once it has; None if nothing made it."""
        self.finding: Finding | None = None
        """Why so much of its prompt was cached, from whoever can tell better than its numbers."""
        self.grammar: GrammarReady | None = None
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        self._held: list[SequenceDelta] = []
        self._early: list[Piece] = []
        self._failure = RequestFailure("the engine ended the request without an answer")

    @property
    def usage(self) -> Usage:
        return Usage(
            len(self._stream.request.prompt),
            sum(choice.tokens for choice in self.choices),
            0 if self.start is None else self.start.cached_tokens,
            0 if self.stored is None else self.stored.written,
            None if self._options.parser is None else sum(choice.reasoning for choice in self.choices),
        )

    @property
    def awaited_tools(self) -> Set[str]:
        """The names of the tools that the first choice ended with calls of: then its conversation is about to go on."""
        return self.choices[0].awaited_tools

    @property
    def request(self) -> GenerationRequest:
        return self._stream.request

    @property
    def prompt(self) -> list[int]:
        return self._stream.request.prompt

    async def accepted(self) -> None:
        """Returns when it cannot be refused for its grammar any more. Raises RequestFailure, GrammarRefused among them."""
        while self._stream.request.grammar is not None and self.grammar is None:
            events = await self._stream.read()
            if not events:
                return  # ended before that, which the next `read` says
            self._early += self._take(events)

    async def read(self) -> list[Piece]:
        """What has arrived since the last call; waits for something. Empty: the end. Raises RequestFailure."""
        if self._early:
            early, self._early = self._early, []
            return early
        while True:
            events = await self._stream.read()
            if not events:
                self._check_complete()
                return []
            pieces = self._take(events)
            if pieces:
                return pieces

    async def collect(self) -> list[Answer]:
        """Every choice, whole. Raises RequestFailure."""
        parts: list[list[Piece]] = [[] for _ in self.choices]
        while pieces := await self.read():
            for piece in pieces:
                parts[piece.index].append(piece)
        return [join(choice) for choice in parts]

    def fail(self, error: RequestFailure) -> None:
        """End it from the server's side: the engine gets an abort, its reader `error`."""
        self._failure = error
        self._stream.abort()

    def close(self, error: BaseException | None = None) -> None:
        """Abort whatever still runs: its reader leaves, because of `error` if that is what happened. Idempotent."""
        self.error = error
        self._stream.abort()

    # -- events to pieces ----------------------------------------------------------------------------------------------

    def _take(self, events: Iterable[StreamEvent]) -> list[Piece]:
        now = self._now()
        pieces: list[Piece] = []
        for event in events:
            if isinstance(event, RequestStarted):
                self._start(event, now)
                continue
            if isinstance(event, GrammarReady):
                self.grammar = event
                continue
            if isinstance(event, PromptCached):
                self.stored = event
                continue
            if event.finish == "abort":
                raise RequestFailure("the engine gave the request up")
            for delta in self._in_order(event):
                choice = self.choices[delta.index]
                if choice.finish is not None:
                    continue  # tokens that crossed our abort on their way
                self._note_time(choice, now)
                if delta.index == 0:
                    self.answer.extend(delta.tokens)
                piece = choice.push(delta)
                if piece is not None:
                    pieces.append(piece)
                    if piece.finish is not None and delta.finish is None:
                        self._stream.abort(delta.index)
        return pieces

    def _start(self, event: RequestStarted, now: float) -> None:
        if self.start is not None:
            return  # preempted and started again: what counts is the first time
        self.timing.started = now
        self.start = event
        if self.when_started is not None:
            self.when_started()

    def _note_time(self, choice: Choice | Reply, now: float) -> None:
        if choice.last_token:
            self.gaps.append(now - choice.last_token)
        elif not self.timing.first_token:
            self.timing.first_token = now
        choice.last_token = now

    def _in_order(self, delta: SequenceDelta) -> list[SequenceDelta]:
        """An echoed prompt comes first: with `prompt_logprobs` nothing passes before they are here."""
        if not self._options.prompt_logprobs or self.prompt_logprobs is not None:
            return [delta]
        self._held.append(delta)
        if delta.prompt_logprobs is None:
            return []
        self.prompt_logprobs = delta.prompt_logprobs
        held, self._held = self._held, []
        return held

    def _check_complete(self) -> None:
        """The stream ended: so must every choice have, or somebody ended it early."""
        if any(choice.finish is None for choice in self.choices):
            raise self._failure


def _choice(index: int, tokenizer: Tokenizer, options: TextOptions, stops: StopSearch) -> Choice | Reply:
    if options.parser is None:
        return Choice(index, tokenizer, options, stops)
    return Reply(index, tokenizer, options, stops, options.parser())


async def together(work: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all to the end; the first failure ends the others and is raised alone."""
    if len(work) == 1:
        return [await work[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]

"""Answering a request once its prompts are known: whole or streamed, the same for chat and completions.

What differs between the endpoints is how an answer is written; that is a `Writer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import msgspec
from aiohttp import web

from engine.backlog import Place

from ..caching import report
from ..caller import CALLER, Caller
from ..config import Http, Limits
from ..desk import Desk, Job
from ..errors import explain
from ..generation import Generation, together
from ..pieces import Answer, Piece, join
from ..sse import DONE, EventStream
from ..text_threads import TextThreads

FIRST_EVENT_PATIENCE = 1.0
"""A stream's headers wait this long for a first sign of life, so that an early failure still gets its own status; then
they go out, so that a client's own timeout sees that somebody is there. Before that they wait until a grammar is
compiled, for which the engine has a deadline of its own."""

INLINE_TOKENS = 64
"""So many tokens are written with their log-probabilities in place: that takes up to a millisecond; more leave the loop."""


class Judge(Protocol):
    """Two implementations: `structured.verdicts.SchemaJudge` and `tools.verdicts.ReplyJudge`."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What the answer's headers say of it in advance."""
        ...

    async def report(self, answer: Answer) -> dict[str, object] | None:
        """What a choice that ended by itself is worth, for the client; None if there is nothing to say.

        Raises what the request is answered with instead.
        """
        ...


class Writer(Protocol):
    """Two implementations: `chat.ChatWriter` and `completions.CompletionWriter`. Either may be called off the loop.

    `first` is the index of a generation's first choice. Bytes are whole server-sent events, or a JSON document.
    """

    def head(self, generation: Generation) -> bytes: ...

    def pieces(self, first: int, generation: Generation, pieces: Sequence[Piece]) -> bytes: ...

    def tail(self, generations: Sequence[Generation]) -> bytes: ...

    def whole(self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Answerer:
    """Runs jobs on the desk and writes their answers into a response."""

    desk: Desk
    threads: TextThreads
    http: Http
    limits: Limits

    async def answer(
        self,
        request: web.Request,
        place: Place,
        jobs: Sequence[Job],
        writer: Writer,
        *,
        stream: bool,
        judge: Judge | None = None,
    ) -> web.StreamResponse:
        """With a `judge` no choice ends by itself before its text was held against what was asked for."""
        if stream:
            return await self._streamed(request, place, jobs, writer, judge)
        return await self._whole(request[CALLER], place, jobs, writer, judge)

    async def _whole(
        self, caller: Caller, place: Place, jobs: Sequence[Job], writer: Writer, judge: Judge | None
    ) -> web.StreamResponse:
        async with self.desk.submit(caller, place, jobs) as generations:
            answers = await together([generation.collect() for generation in generations])
        if judge is not None:
            answers = [[await _judged(judge, answer) for answer in group] for group in answers]
        tokens = sum(_scored(generation) for generation in generations)
        tokens += sum(len(answer.details) for group in answers for answer in group)
        body = await self._written(tokens, lambda: writer.whole(generations, answers))
        headers = {report.HEADER: report.header(generations), **({} if judge is None else judge.headers)}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _streamed(
        self,
        request: web.Request,
        place: Place,
        jobs: Sequence[Job],
        writer: Writer,
        judge: Judge | None,
    ) -> web.StreamResponse:
        caller = request[CALLER]
        async with EventStream(
            request, silence=self.http.keepalive_comment, patience=self.limits.write_timeout
        ) as events:
            async with (
                _told_in_band(events, caller.request_id),
                self.desk.submit(caller, place, jobs) as generations,
            ):
                await together([generation.accepted() for generation in generations])
                early = await _first_sign(generations[0])
                events.response.headers[report.HEADER] = report.header(generations)
                if judge is not None:
                    events.response.headers.update(judge.headers)
                await events.open()
                await together(
                    [
                        self._pump(
                            events, writer, job.n * i, _Reading(generation, early if i == 0 else [], judge)
                        )
                        for i, (job, generation) in enumerate(zip(jobs, generations, strict=True))
                    ]
                )
                await events.send(writer.tail(generations) + DONE)
            return events.response

    async def _pump(self, events: EventStream, writer: Writer, first: int, reading: _Reading) -> None:
        generation = reading.generation
        head = writer.head(generation)
        if head:
            await events.send(head)
        opening = await reading.next()
        frames = await self._written(_scored(generation), lambda: writer.pieces(first, generation, opening))
        if frames:
            await events.send(frames)
        while pieces := await reading.next():
            frames = writer.pieces(first, generation, pieces)
            if frames:
                await events.send(frames)

    async def _written(self, tokens: int, write: Callable[[], bytes]) -> bytes:
        return write() if tokens <= INLINE_TOKENS else await self.threads.run(write)


class _Reading:
    """The pieces of a generation, what was read `early` first. With a judge the last of each choice says its verdict."""

    def __init__(self, generation: Generation, early: list[Piece], judge: Judge | None) -> None:
        self.generation = generation
        self._early = early
        self._judge = judge
        self._said: dict[int, list[Piece]] = {}

    async def next(self) -> list[Piece]:
        """Empty: the end."""
        pieces = self._early or await self.generation.read()
        self._early = []
        return pieces if self._judge is None else [await self._look(piece, self._judge) for piece in pieces]

    async def _look(self, piece: Piece, judge: Judge) -> Piece:
        said = self._said.setdefault(piece.index, [])
        said.append(piece)
        if not _ended_by_itself(piece):
            return piece
        return msgspec.structs.replace(piece, report=await judge.report(join(said)))


async def _judged(judge: Judge, answer: Answer) -> Answer:
    if not _ended_by_itself(answer):
        return answer
    return msgspec.structs.replace(answer, report=await judge.report(answer))


def _ended_by_itself(ending: Piece | Answer) -> bool:
    return ending.finish == "stop" and not ending.cut


def _scored(generation: Generation) -> int:
    """Prompt tokens with log-probabilities: all of them come before the first piece."""
    return len(generation.prompt_logprobs or ())


async def _first_sign(generation: Generation) -> list[Piece]:
    """The first pieces, or none after a while: then whatever comes next comes in the stream."""
    try:
        async with asyncio.timeout(FIRST_EVENT_PATIENCE):
            return await generation.read()
    except TimeoutError:
        return []


@asynccontextmanager
async def _told_in_band(events: EventStream, request_id: str) -> AsyncIterator[None]:
    """Once the headers are out, a failure is an event of the stream instead of a status."""
    try:
        yield
    except ConnectionError:
        raise  # nobody is there to be told
    except Exception as error:
        if not events.opened:
            raise
        await events.fail(explain(error, request_id))

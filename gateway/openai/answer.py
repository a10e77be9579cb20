"""Answering a request once its prompts are known: whole or streamed, the same for chat and completions.

What differs between the endpoints is how an answer is written; that is a `Writer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
from ..errors import ApiError, explain
from ..generation import Generation, together
from ..pieces import Answer, Piece, join
from ..sse import EventStream
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
    """One implementation for each endpoint. Any may be called off the loop.

    `first` is the index of a generation's first choice. Bytes are whole server-sent events, or a JSON document. `tail` ends
    a stream, `failed` one that ends early.
    """

    def head(self, generation: Generation) -> bytes: ...

    def pieces(self, first: int, generation: Generation, pieces: Sequence[Piece]) -> bytes: ...

    def tail(self, generations: Sequence[Generation]) -> bytes: ...

    def failed(self, error: ApiError) -> bytes: ...

    def whole(self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> bytes: ...


Send = Callable[[bytes], Awaitable[None]]
"""Takes whole events."""

Ending = Callable[[Sequence[Generation], Sequence[Sequence[Answer]]], Awaitable[None]]
"""Called once, with the answers of each generation, when all of them are there and before a client is told of the end: what
keeps answers for later."""


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
        ending: Ending | None = None,
    ) -> web.StreamResponse:
        """With a `judge` no choice ends by itself before its text was held against what was asked for."""
        way = _Way(writer, judge, ending)
        if stream:
            return await self._streamed(request, place, jobs, way)
        return await self._whole(request[CALLER], place, jobs, way)

    async def write(
        self,
        caller: Caller,
        place: Place,
        job: Job,
        writer: Writer,
        send: Send,
        *,
        judge: Judge | None,
        started: Callable[[], Awaitable[None]],
        ending: Ending,
    ) -> None:
        """The events of an answer without a client. `started` is called before the first of them. Raises what fails."""
        async with self.desk.submit(caller, place, [job]) as generations:
            (generation,) = generations
            await generation.accepted()
            early = await generation.read()
            await started()
            reading = _Reading(generation, early, judge, whole=True)
            await self._pump(send, writer, 0, reading)
            await ending(generations, [reading.answers()])
            await send(writer.tail(generations))

    async def _whole(
        self, caller: Caller, place: Place, jobs: Sequence[Job], way: _Way
    ) -> web.StreamResponse:
        writer, judge = way.writer, way.judge
        async with self.desk.submit(caller, place, jobs) as generations:
            answers = await together([generation.collect() for generation in generations])
        if judge is not None:
            answers = [[await _judged(judge, answer) for answer in group] for group in answers]
        if way.ending is not None:
            await way.ending(generations, answers)
        tokens = sum(_scored(generation) for generation in generations)
        tokens += sum(len(answer.details) for group in answers for answer in group)
        body = await self._written(tokens, lambda: writer.whole(generations, answers))
        headers = {report.HEADER: report.header(generations), **({} if judge is None else judge.headers)}
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _streamed(
        self, request: web.Request, place: Place, jobs: Sequence[Job], way: _Way
    ) -> web.StreamResponse:
        writer, judge = way.writer, way.judge
        caller = request[CALLER]
        async with EventStream(
            request, silence=self.http.keepalive_comment, patience=self.limits.write_timeout
        ) as events:
            async with (
                _told_in_band(events, writer, caller.request_id),
                self.desk.submit(caller, place, jobs) as generations,
            ):
                await together([generation.accepted() for generation in generations])
                early = await _first_sign(generations[0])
                events.response.headers[report.HEADER] = report.header(generations)
                if judge is not None:
                    events.response.headers.update(judge.headers)
                await events.open()
                readings = [
                    _Reading(generation, early if i == 0 else [], judge, whole=way.ending is not None)
                    for i, generation in enumerate(generations)
                ]
                await together(
                    [
                        self._pump(events.send, writer, job.n * i, reading)
                        for i, (job, reading) in enumerate(zip(jobs, readings, strict=True))
                    ]
                )
                if way.ending is not None:
                    await way.ending(generations, [reading.answers() for reading in readings])
                await events.send(writer.tail(generations))
            return events.response

    async def _pump(self, send: Send, writer: Writer, first: int, reading: _Reading) -> None:
        generation = reading.generation
        head = writer.head(generation)
        if head:
            await send(head)
        opening = await reading.next()
        frames = await self._written(_scored(generation), lambda: writer.pieces(first, generation, opening))
        if frames:
            await send(frames)
        while pieces := await reading.next():
            frames = writer.pieces(first, generation, pieces)
            if frames:
                await send(frames)

    async def _written(self, tokens: int, write: Callable[[], bytes]) -> bytes:
        return write() if tokens <= INLINE_TOKENS else await self.threads.run(write)


@dataclass(frozen=True, slots=True)
class _Way:
    """How an answer goes to its client, and by whom on the way."""

    writer: Writer
    judge: Judge | None
    ending: Ending | None


class _Reading:
    """The pieces of a generation, what was read `early` first. With a judge the last of each choice says its verdict.
    `whole`: the answers are wanted, too."""

    def __init__(
        self, generation: Generation, early: list[Piece], judge: Judge | None, *, whole: bool
    ) -> None:
        self.generation = generation
        self._early = early
        self._judge = judge
        self._whole = whole
        self._said: dict[int, list[Piece]] = {}

    async def next(self) -> list[Piece]:
        """Empty: the end."""
        pieces = self._early or await self.generation.read()
        self._early = []
        if self._judge is not None or self._whole:
            for piece in pieces:
                self._said.setdefault(piece.index, []).append(piece)
        return pieces if self._judge is None else [await self._look(piece, self._judge) for piece in pieces]

    def answers(self) -> list[Answer]:
        """In order, once all have ended."""
        return [join(self._said[index]) for index in sorted(self._said)]

    async def _look(self, piece: Piece, judge: Judge) -> Piece:
        if not _ended_by_itself(piece):
            return piece
        said = self._said[piece.index]
        said[-1] = msgspec.structs.replace(piece, report=await judge.report(join(said)))
        return said[-1]


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
async def _told_in_band(events: EventStream, writer: Writer, request_id: str) -> AsyncIterator[None]:
    """Once the headers are out, a failure is an event of the stream instead of a status."""
    try:
        yield
    except ConnectionError:
        raise  # nobody is there to be told
    except Exception as error:
        if not events.opened:
            raise
        await events.send(writer.failed(explain(error, request_id)))

"""Responses that are made while nobody waits for them.

Each is a task of this server's, which ends with an answer, a failure or a cancellation, and writes down how it stands. Who
reads that elsewhere, or after this server is gone, finds out from the server's sign of life whether it can still be true.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from cache.bulletin import Bulletin
from cache.store import ABSENT, Conflict

from ..errors import ApiError, Overloaded, ServerStopping, explain
from ..lifecycle import Lifecycle
from ..log import faults
from ..sessions.sessions import Sessions
from .event_log import EventLog
from .records import ResponseRecord, ResponseRecords
from .wire import ResponseWriter, failed

CANCEL_TOPIC = "cancel"
"""Of notes to the other servers: `ID TENANT` of a response that is to be cancelled, by whoever makes it."""

RUNNING = ("queued", "in_progress")
SERVERS, NOBODY = "servers", "@"
"""Where signs of life are kept: they are no tenant's."""

MOST_RUNNING = 256
MOST_LOG_BYTES = 32 << 20
"""For the events of those that have ended."""
LOG_LASTS = 600.0
BEAT, LIFE = 2.0, 10.0
"""Seconds between two signs of life, and until nobody expects one any more."""
LAST_WORD = 2.0
"""Seconds for writing down how a response ended when the server stops."""
CANCEL_TAKES, LOOK = 3.0, 0.05
"""Seconds that a cancellation may take, and between two looks whether it has happened."""


@dataclass(slots=True, eq=False)
class Run:
    """A response on its way. `version` is that of its record."""

    tenant: str
    record: ResponseRecord
    writer: ResponseWriter
    request_id: str
    log: EventLog = field(default_factory=EventLog)
    version: str = ABSENT
    cancelled: bool = False
    going: bool = False
    unwanted: bool = False
    """It is to end, for whatever reason."""
    ended: bool = False
    task: asyncio.Task[None] | None = None


class Background:
    def __init__(
        self, records: ResponseRecords, sessions: Sessions, lifecycle: Lifecycle, bulletin: Bulletin | None
    ) -> None:
        """`bulletin` is followed, so this has to be made before that runs."""
        self._records = records
        self._sessions = sessions
        self._lifecycle = lifecycle
        self._bulletin = bulletin
        self._me = secrets.token_hex(8)
        self._runs: dict[tuple[str, str], Run] = {}
        self._logs: dict[tuple[str, str], tuple[float, EventLog]] = {}
        """Of those that have ended, and when, the first first."""
        self._begun = asyncio.Event()
        if bulletin is not None:
            bulletin.follow(CANCEL_TOPIC, self._hear)

    # -- making --------------------------------------------------------------------------------------------------------

    def open(self) -> ExitStack:
        """What a run holds as long as it lasts; more may be added. Raises Overloaded or ServerStopping."""
        if len(self._runs) >= MOST_RUNNING:
            raise Overloaded("Too many responses are being made in the background.")
        stack = ExitStack()
        stack.enter_context(self._lifecycle.work())
        return stack

    async def begin(
        self, run: Run, work: Callable[[Run], Awaitable[None]], holding: ExitStack
    ) -> dict[str, Any]:
        """The response, queued: `work` goes on making it and ends the record; `holding` is closed afterwards."""
        with holding:
            run.log.add(run.writer.begin())
            await self._sign_of_life()
            await self.note(run)
            queued = dict(run.writer.wire)
            held = holding.pop_all()
        self._runs[run.tenant, queued["id"]] = run
        run.task = asyncio.create_task(self._make(run, work), name=f"response {queued['id']}")
        run.task.add_done_callback(lambda _: held.close())
        self._begun.set()
        return queued

    async def note(self, run: Run) -> None:
        """Write down how it stands. Raises Conflict if it was deleted, ApiError 503 if it cannot be kept at first."""
        record = ResponseRecord(response=run.writer.wire, items=run.record.items, owner=self._me)
        saved = await self._records.keep(run.tenant, record, expected=run.version)
        if run.version == ABSENT and not saved.kept:
            raise Overloaded("The response cannot be kept now.", code="session_store_unavailable")
        run.version = saved.record.version

    async def _make(self, run: Run, work: Callable[[Run], Awaitable[None]]) -> None:
        run.going = True
        try:
            if run.unwanted:
                raise asyncio.CancelledError
            await work(run)
        except Conflict:
            pass  # it was deleted
        except asyncio.CancelledError:
            if run.cancelled:
                run.writer.cancelled()
                await self._last_word(run)
            else:
                await self._fail(run, ServerStopping("The server is shutting down."))
        except Exception as error:  # noqa: BLE001 - the last place where a fault can still become an answer
            await self._fail(run, error)
        finally:
            run.ended = True
            run.log.end()
            key = run.tenant, run.writer.wire["id"]
            del self._runs[key]
            self._logs[key] = time.monotonic(), run.log
            self._purge()

    async def _fail(self, run: Run, error: Exception) -> None:
        last = run.writer.failed(explain(error, run.request_id))
        await self._last_word(run)
        run.log.add(last)

    async def _last_word(self, run: Run) -> None:
        try:
            async with asyncio.timeout(LAST_WORD):
                await self.note(run)
        except (Conflict, TimeoutError, ApiError) as error:
            if not isinstance(error, Conflict):
                faults.error("%s ended and that cannot be written down", run.request_id, exc_info=error)

    # -- looking -------------------------------------------------------------------------------------------------------

    def log(self, tenant: str, response_id: str) -> EventLog | None:
        """Its events, if this server makes it or has made it lately."""
        self._purge()
        key = tenant, response_id
        run, ended = self._runs.get(key), self._logs.get(key)
        return run.log if run is not None else None if ended is None else ended[1]

    async def seen(self, tenant: str, record: ResponseRecord) -> dict[str, Any]:
        """The response as it stands: one whose server is gone has failed."""
        if record.response["status"] not in RUNNING or await self._alive(tenant, record):
            return record.response
        error = ApiError(500, "The server that made this response is gone.")
        return failed(record.response, error)

    async def cancel(self, tenant: str, response_id: str) -> dict[str, Any]:
        """The response when it has ended, or as it stands if that takes too long. Raises ApiError as `response` does."""
        run = self._runs.get((tenant, response_id))
        if run is not None:
            self._cancel(run)
        elif self._bulletin is not None:
            self._bulletin.tell(CANCEL_TOPIC, f"{response_id} {tenant}".encode())
        give_up = time.monotonic() + CANCEL_TAKES
        while True:
            response = await self.seen(tenant, await self._records.response(tenant, response_id))
            if response["status"] not in RUNNING or time.monotonic() > give_up:
                return response
            await asyncio.sleep(LOOK)

    def forget(self, tenant: str, response_id: str) -> None:
        """It was deleted: nobody will know how it ended."""
        run = self._runs.get((tenant, response_id))
        if run is not None:
            self._cancel(run)

    # -- living --------------------------------------------------------------------------------------------------------

    async def context(self, _: web.Application) -> AsyncIterator[None]:
        beating = asyncio.create_task(self._beat(), name="signs of life")
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            runs = list(self._runs.values())
            for run in runs:
                _end(run)
            await asyncio.gather(*[run.task for run in runs if run.task is not None])

    async def _beat(self) -> None:
        while True:
            await self._begun.wait()
            await asyncio.sleep(BEAT)
            if self._runs:
                await self._sign_of_life()
            else:
                self._begun.clear()
            self._purge()

    async def _sign_of_life(self) -> None:
        await self._sessions.put(SERVERS, NOBODY, self._me, b"", ttl=LIFE)

    async def _alive(self, tenant: str, record: ResponseRecord) -> bool:
        """Whether somebody still makes it, as far as anybody can know."""
        if record.owner == self._me:
            return (tenant, record.response["id"]) in self._runs
        try:
            return await self._sessions.get(SERVERS, NOBODY, record.owner) is not None
        except ApiError:
            return True

    def _cancel(self, run: Run) -> None:
        if not run.unwanted:
            run.cancelled = True
            _end(run)

    def _hear(self, note: bytes) -> None:
        response_id, _, tenant = note.decode(errors="replace").partition(" ")
        run = self._runs.get((tenant, response_id))
        if run is not None:
            self._cancel(run)

    def _purge(self) -> None:
        """The logs of those that ended long ago, and the oldest of too many, go."""
        nbytes = sum(log.nbytes for _, log in self._logs.values())
        for key, (ended, log) in list(self._logs.items()):
            if nbytes <= MOST_LOG_BYTES and ended > time.monotonic() - LOG_LASTS:
                break
            nbytes -= log.nbytes
            del self._logs[key]


def _end(run: Run) -> None:
    """Once: a second time would come between its last words. A task that is cancelled before it has begun never says any."""
    if not run.unwanted and not run.ended:
        run.unwanted = True
        if run.going and run.task is not None:
            run.task.cancel()

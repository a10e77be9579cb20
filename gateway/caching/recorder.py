"""Writes the records: told of every request by the desk, tells at once why its prompt was cached as far as it was."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from engine.client import EngineClient
from engine.request import RequestEnded

from ..desk import Submission
from .diagnoser import Diagnoser
from .diagnosis import Comparison, Diagnosis
from .namespaces import Namespaces
from .reasons import Finding
from .records import Instance, Record, pack, pack_messages
from .relation import gists

SEEN = 10_000
"""Cache objects of which it is known in which life of the engine they were cached last."""


class Recorder:
    """A listener of the desk. Requests that have no `origin` leave no record."""

    def __init__(
        self,
        diagnoser: Diagnoser,
        engine: EngineClient,
        namespaces: Namespaces,
        model: str,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`model` is the name of what is served, by whatever name it was asked for."""
        self._diagnoser = diagnoser
        self._records = diagnoser.records
        self._engine = engine
        self._namespaces = namespaces
        self._model = model
        self._wall = wall
        self._open: dict[str, _Open] = {}  # by the engine's name for the request
        self._seen: OrderedDict[str, Instance] = (
            OrderedDict()
        )  # cache objects, by where they were last cached

    def submitted(self, submission: Submission) -> None:
        origin, request = submission.job.origin, submission.generation.request
        info = self._engine.info
        if origin is None or info is None or not self._records.on:
            return
        record = Record(
            response_id=origin.response_id,
            index=origin.index,
            request_id=submission.caller.request_id,
            tenant=request.tenant,
            created=self._wall(),
            born=self._records.clock(),
            model=self._model,
            model_digest=info.model_digest,
            adapter=request.adapter,
            salt=submission.job.cache_salt,
            key=submission.job.cache_key,
            generation=self._namespaces.generation(request.tenant),
            namespace=request.namespace,
            instance=instance(self._engine),
            policy=request.cache,
            ids=pack(request.prompt),
            answer=submission.generation.answer,
            text=origin.text,
            messages=pack_messages(origin.messages),
            gists=gists(origin.messages),
            tools=origin.tools,
            variables=orjson.dumps(origin.variables),
            frames=origin.frames,
            unseen=self._unseen(submission.job.cache_id),
        )
        self._records.keep(record)
        # compared now, while the engine is at work, and not when the answer waits to go out
        self._open[request.request_id] = _Open(record, self._diagnoser.compare(record))

    def started(self, submission: Submission) -> None:
        generation = submission.generation
        opened = self._open.get(generation.request.request_id)
        if opened is None:
            return
        record = opened.record
        record.start = generation.start
        record.started = self._records.clock()
        generation.finding = _finding(self._diagnoser.reason(record, opened.comparison))

    def ended(self, submission: Submission, account: RequestEnded | None) -> None:
        generation, object_id = submission.generation, submission.job.cache_id
        if object_id is not None and generation.stored is not None and account is not None:
            self._saw(object_id)
        opened = self._open.pop(generation.request.request_id, None)
        if opened is None:
            return
        record = opened.record
        record.stored = generation.stored
        record.account = account
        record.ended = self._records.clock()
        self._records.recount(record)

    def _saw(self, object_id: str) -> None:
        self._seen[object_id] = instance(self._engine)
        self._seen.move_to_end(object_id)
        if len(self._seen) > SEEN:
            self._seen.popitem(last=False)

    def _unseen(self, object_id: str | None) -> bool:
        return object_id is not None and self._seen.get(object_id) != instance(self._engine)


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that has not ended."""

    record: Record
    comparison: Comparison


def instance(engine: EngineClient) -> Instance:
    """The engine's life, now."""
    health = engine.health
    return Instance(health.pid or 0, health.restarts)


def _finding(diagnosis: Diagnosis) -> Finding:
    place = diagnosis.place
    if place is None:
        return Finding(diagnosis.reason)
    where = {"message": place.message, "part": place.part, "char": place.char, "token": diagnosis.common}
    return Finding(diagnosis.reason, where)

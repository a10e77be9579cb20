"""JSON schemas, audited and compiled for checking, kept by their text: the same schema in every request is the normal case."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import orjson

from grammar import contract, limits, openai_strict
from grammar.contract import Contract
from grammar.errors import BadGrammar, BadSchema, TooComplex
from grammar.openai_strict import StrictViolation
from grammar.validate import Validator

from ..kept import Kept
from ..metrics import Metrics
from ..text_threads import TextThreads

MAX_KEPT = 512
MAX_KEPT_BYTES = 2 << 20
"""Of schema text; what is made of it takes up to some thirty times as much."""

Schema = dict[str, object]


@dataclass(frozen=True, slots=True)
class Audited:
    """`contract` says what is promised, `validator` checks a finished text against the schema as the client sent it.

    `violation` is what keeps the schema out of OpenAI's strict subset.
    """

    contract: Contract
    validator: Validator
    violation: StrictViolation | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a schema is none, or too much. Kept like a good one, so that sending it again costs no more."""

    message: str
    path: str = ""
    keyword: str | None = None
    too_complex: bool = False

    def error(self) -> BadGrammar:
        if self.too_complex:
            return TooComplex(self.message)
        return BadSchema(self.message, path=self.path, keyword=self.keyword)


class Schemas:
    """One for the process. Auditing a new schema takes milliseconds and leaves the event loop; a known one takes
    microseconds. Requests with the same new schema wait for the same work."""

    def __init__(self, threads: TextThreads, metrics: Metrics) -> None:
        self._threads = threads
        self._metrics = metrics
        self._kept: Kept[bytes, Audited | Refused] = Kept(most=MAX_KEPT, most_bytes=MAX_KEPT_BYTES)
        self._working: dict[bytes, asyncio.Task[Audited | Refused]] = {}
        self._turn = asyncio.Lock()

    async def audit(self, schema: Schema) -> Audited:
        """Raises BadSchema or TooComplex."""
        found = await self._find(schema)
        if isinstance(found, Refused):
            raise found.error()
        return found

    async def _find(self, schema: Schema) -> Audited | Refused:
        try:
            key = orjson.dumps(schema)  # keeps the order of keys, which is the order of the answer's
        except orjson.JSONEncodeError:
            return Refused("the schema is nested too deeply", too_complex=True)
        kept = self._kept.get(key)
        self._metrics.schema_read(known=kept is not None)
        if kept is not None:
            return kept
        work = self._working.get(key)
        if work is None:
            work = self._working[key] = asyncio.create_task(self._work(key, schema))
        return await asyncio.shield(work)  # others may wait for it too

    async def _work(self, key: bytes, schema: Schema) -> Audited | Refused:
        try:
            async with self._turn:  # one at a time: a thread stays free for texts
                made = await self._threads.run(lambda: audit_now(schema))
            self._kept.put(key, made, len(key))
            return made
        finally:
            del self._working[key]


def audit_now(schema: Schema) -> Audited | Refused:
    """The work itself, for a thread."""
    try:
        limits.check_schema(schema)
        return Audited(contract.audit(schema, undeclared_keys=False), Validator(schema), _violation(schema))
    except BadSchema as error:
        return Refused(str(error), error.path, error.keyword)
    except TooComplex as error:
        return Refused(str(error), too_complex=True)


def _violation(schema: Schema) -> StrictViolation | None:
    try:
        openai_strict.check(schema)
    except StrictViolation as violation:
        return violation
    return None

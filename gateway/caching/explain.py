"""POST and GET /v1/caches/explain: why a prompt was cached as far as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import orjson
from aiohttp import web
from pydantic import Field, WithJsonSchema

from ..body import read_json
from ..caller import CALLER, Caller
from ..config import Limits
from ..errors import ApiError, InvalidRequest
from ..openai.fields import Wire, parse
from ..routes import Route
from ..text_threads import TextThreads
from ..tokenizer import Tokenizer
from .diagnoser import Diagnoser
from .dry_run import DryRuns
from .explanation import wire
from .records import Record

INLINE_TOKENS = 2_000
"""Shorter prompts are explained in place: that takes less than a millisecond."""

Object = Annotated[object, WithJsonSchema({"type": "object"})]


class ExplainRequest(Wire):
    """`response_id` or `request`, one of them."""

    response_id: str | None = Field(None, description="of a response, or its x-request-id")
    request: Object = Field(None, description="the body of a chat or completions request: a dry run")
    baseline_id: str | None = Field(
        None, description="what to compare with; default: the likeliest earlier one"
    )
    prompt: int = Field(0, ge=0, description="which of several prompts of a completion")
    baseline_prompt: int = Field(0, ge=0, description="the same of the baseline")


@dataclass(frozen=True, slots=True)
class Explain:
    diagnoser: Diagnoser
    dry_runs: DryRuns
    tokenizer: Tokenizer
    threads: TextThreads
    limits: Limits

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/v1/caches/explain", self.handle),
            Route("GET", "/v1/caches/explain", self.handle_query),
        ]

    async def handle(self, request: web.Request) -> web.Response:
        asked = parse(ExplainRequest, await read_json(request, self.limits), {})
        return await self._answer(request[CALLER], asked)

    async def handle_query(self, request: web.Request) -> web.Response:
        """With `response_id` and `baseline_id` in the query."""
        return await self._answer(request[CALLER], parse(ExplainRequest, dict(request.query), {}))

    async def _answer(self, caller: Caller, asked: ExplainRequest) -> web.Response:
        """What is unknown is said before any work is done: it is the same for what never was and what is another's."""
        if (asked.response_id is None) == (asked.request is None):
            raise InvalidRequest("Give either 'response_id' or 'request'.", param="response_id")
        given = None
        if asked.baseline_id is not None:
            given = self._find(caller, asked.baseline_id, asked.baseline_prompt, "baseline_id")
        async with caller.in_time():
            record = await self._record(caller, asked)
            baseline = given or self.diagnoser.baseline(record)
            body = await self._explained(record, baseline, given=given is not None)
        return web.Response(body=orjson.dumps(body), content_type="application/json")

    async def _record(self, caller: Caller, asked: ExplainRequest) -> Record:
        if asked.response_id is not None:
            record = self._find(caller, asked.response_id, asked.prompt, "response_id")
            if record.start is None:
                raise ApiError(
                    409,
                    "The request was not admitted: there is nothing to explain.",
                    param="response_id",
                    code="response_not_started",
                )
            return record
        if not isinstance(asked.request, dict):
            raise InvalidRequest(
                "'request' is the body of a request: an object.", param="request", code="invalid_type"
            )
        return await self.dry_runs.record(caller.tenant.id, asked.request, self.diagnoser.records.clock())

    def _find(self, caller: Caller, name: str, index: int, param: str) -> Record:
        record = self.diagnoser.records.find(caller.tenant.id, name, index)
        if record is None:
            raise ApiError(
                404,
                f"No response '{name[:100]}' is remembered: records are kept for a while, for their owner.",
                param=param,
                code="response_not_found",
            )
        return record

    async def _explained(self, record: Record, baseline: Record | None, *, given: bool) -> dict[str, object]:
        def work() -> dict[str, object]:
            diagnosis = self.diagnoser.diagnose(record, baseline, guessed=not given)
            return wire(record, baseline, diagnosis, self.tokenizer, given=given)

        return work() if record.tokens <= INLINE_TOKENS else await self.threads.run(work)

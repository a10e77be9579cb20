"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
from aiohttp import web
from msgspec import structs

from ..body import read_json
from ..caching.ask import read_ask
from ..caching.openings import Opening
from ..caching.report import tells_cache
from ..caller import CALLER, Caller
from ..config import Limits
from ..errors import InvalidRequest, unsupported
from ..generation import Generation
from ..model import TextModel
from ..openai.answer import Answerer, Ending
from ..openai.fields import parse
from ..openai.template_kwargs import read_template_kwargs
from ..pieces import Answer, TextOptions
from ..sessions.ids import new_id
from ..sessions.sessions import DEGRADED_HEADERS
from ..sse import EventStream
from ..structured.shapes import AnswerShape, Shapes
from ..tenants import Tenants
from ..tools.dialects import CHAT, RESPONSES
from ..tools.offer import Offers
from ..turns import Prepared, Turn, Turns, Wanted
from .background import Background, Run
from .diagnostics import Comparisons
from .event_log import EventLog
from .items import Item, check_ids, conversation_of, read_items
from .output import Output
from .records import NO_HISTORY, History, ResponseRecord, ResponseRecords
from .request import NOT_SERVED, ResponseRequest
from .tools import read_format, read_tool_choice
from .wire import ResponseWriter, opening

LEAVE_OUT = 0.25
"""Of the items of a conversation that is too long, at once: what is left may be cached for some turns then."""
_RESULTS = ("function_call_output", "custom_tool_call_output", "reasoning")


@dataclass(frozen=True, slots=True)
class ResponseTurns:
    """Reads a request for a response."""

    model: TextModel
    offers: Offers
    shapes: Shapes
    tenants: Tenants
    limits: Limits

    def items(self, asked: ResponseRequest, history: History) -> list[Item]:
        """What is new, checked. Raises InvalidRequest."""
        if asked.input is None and (history.items or asked.vendor.id is not None):
            return []
        return read_items(asked.input, self.limits, references=True)

    def read(
        self, tenant: str, asked: ResponseRequest, history: History, items: Sequence[Item], response_id: str
    ) -> Turn:
        """`items` are all that is said, `history` what of it was said before. Raises InvalidRequest or ApiError."""
        tokenizer = self.model.tokenizer
        conversation = conversation_of(items)
        if asked.instructions is not None:
            conversation = conversation.behind([{"role": "system", "content": asked.instructions}])
        ask = read_ask(asked, self.tenants.policy(tenant), breakpoints=len(conversation.breakpoints))
        return Turn(
            response_id=response_id,
            conversation=conversation,
            ask=ask,
            wanted=lambda begins: self._wanted(asked, begins),
            params=lambda max_tokens: asked.params(
                tokenizer,
                max_tokens=max_tokens,
                logprobs=(asked.top_logprobs or 0) if asked.wants_logprobs else None,
            ),
            text=TextOptions(min_tokens=asked.min_tokens, logprobs=asked.wants_logprobs),
            variables=self._variables(asked),
            limit=asked.max_output_tokens,
            known=history.known,
            priority=asked.priority,
            param="input",
        )

    def _variables(self, asked: ResponseRequest) -> Mapping[str, object]:
        given = read_template_kwargs(asked.chat_template_kwargs, self.model.tokenizer.special_names)
        effort = None if asked.reasoning is None else asked.reasoning.effort
        if effort is None:
            return given
        source = "" if self.model.template is None else self.model.template.source
        if "reasoning_effort" not in source and "enable_thinking" not in source:
            raise unsupported("reasoning.effort", "this model's chat template does not ask for it")
        return {"reasoning_effort": effort, "enable_thinking": effort != "none", **given}

    async def _wanted(self, asked: ResponseRequest, begins: Opening) -> Wanted:
        if asked.tools is None:
            offer = await self.offers.read(begins.tools, CHAT)
        else:
            offer = await self.offers.read(asked.tools or None, RESPONSES)
        choice = read_tool_choice(asked.tool_choice, asked.parallel_tool_calls, offer)
        shape = await self._shape(asked)
        if asked.prewarms and choice.mode in ("required", "named"):
            raise InvalidRequest(
                "'tool_choice' cannot be used with 'prompt_cache_options.prewarm': nothing is answered.",
                param="tool_choice",
                code="conflicting_parameters",
            )
        if offer.tools or shape is not None:
            asked.check_beside_grammar()
        return Wanted(offer, choice, shape)

    async def _shape(self, asked: ResponseRequest) -> AnswerShape | None:
        wish = None if asked.text is None else read_format(asked.text.format)
        return None if wish is None else await self.shapes.shape(wish)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with all that belongs to it. `items` are all that is said, but for what is left out of it; `new` is what this
    request says."""

    request: ResponseRequest
    history: History
    items: list[Item]
    new: list[Item]
    turn: Turn


@dataclass(frozen=True, slots=True)
class CreateResponse:
    reader: ResponseTurns
    turns: Turns
    records: ResponseRecords
    answerer: Answerer
    comparisons: Comparisons
    background: Background

    async def handle(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        body = parse(ResponseRequest, await read_json(request, self.reader.limits), NOT_SERVED)
        desk = self.answerer.desk
        desk.info()
        if body.background:
            return await self._in_background(request, caller, body)
        with desk.place(caller, 1) as place:
            async with caller.in_time():
                asked = await self.read(caller.tenant.id, body)
                asked, ready = await self.prepare(caller, asked)
            writer = self.writer(caller, asked, ready, tells=tells_cache(request, ready.ask))
            headers: dict[str, str] = {}
            response = await self.answerer.answer(
                request,
                place,
                [ready.job],
                writer,
                stream=body.stream,
                judge=ready.judge,
                ending=self.ending(caller, asked, ready, writer, headers),
            )
            if not response.prepared:
                response.headers.update(headers)
            return response

    async def _in_background(
        self, request: web.Request, caller: Caller, body: ResponseRequest
    ) -> web.StreamResponse:
        """Answered as soon as it is queued; what cannot be had is refused before that."""
        with self.background.open() as holding:
            place = holding.enter_context(self.answerer.desk.place(caller, 1))
            async with caller.in_time():
                asked = await self.read(caller.tenant.id, body)
                asked, ready = await self.prepare(caller, asked)
            writer = self.writer(caller, asked, ready, tells=tells_cache(request, ready.ask))
            record = ResponseRecord(response=writer.wire, items=asked.items)
            run = Run(caller.tenant.id, record, writer, caller.request_id)

            async def work(run: Run) -> None:
                async def send(frames: bytes) -> None:
                    run.log.add(frames)

                async def started() -> None:
                    writer.wire["status"] = "in_progress"
                    await self.background.note(run)

                await self.answerer.write(
                    caller,
                    place,
                    ready.job,
                    writer,
                    send,
                    judge=ready.judge,
                    started=started,
                    ending=self.ending(caller, asked, ready, writer, {}, run=run),
                )

            queued = await self.background.begin(run, work, holding.pop_all())
        if body.stream:
            return await self.follow(request, run.log, -1)
        return web.Response(body=orjson.dumps(queued), content_type="application/json")

    async def follow(self, request: web.Request, log: EventLog, after: int) -> web.StreamResponse:
        """The events of a response in the background, from the one behind `after` on. Who leaves ends nothing."""
        log.check(after)
        async with EventStream(
            request,
            silence=self.answerer.http.keepalive_comment,
            patience=self.answerer.limits.write_timeout,
        ) as events:
            await events.open()
            async for frames in log.read(after):
                await events.send(frames)
            return events.response

    async def read(self, tenant: str, body: ResponseRequest) -> Asked:
        """Raises InvalidRequest or ApiError for what the request cannot have."""
        self.reader.model.check_name(body.model)
        body.check(self.reader.limits)
        history = await self.records.history(tenant, body.previous_response_id, body.conversation_id)
        new, known = await self.records.resolve(tenant, self.reader.items(body, history))
        if history is NO_HISTORY:
            history = replace(history, known=known)
        if history.conversation is not None:
            check_ids(history.items, new, "input")
        items = [*history.items, *new]
        if not items and body.instructions is None and body.vendor.id is None:
            raise InvalidRequest("There is nothing to answer: 'input' is empty.", param="input")
        turn = self.reader.read(tenant, body, history, items, new_id("resp"))
        return Asked(body, history, items, new, turn)

    async def prepare(self, caller: Caller, asked: Asked) -> tuple[Asked, Prepared]:
        """With `truncation: auto` the oldest items are left out until the rest fits."""
        while True:
            try:
                return asked, await self.turns.prepare(caller, asked.turn)
            except InvalidRequest as error:
                if error.code != "context_length_exceeded" or asked.request.truncation != "auto":
                    raise
                shorter = _shortened(asked.items)
                if not shorter:
                    raise
                turn = self.reader.read(
                    caller.tenant.id, asked.request, asked.history, shorter, asked.turn.response_id
                )
                asked = replace(asked, items=shorter, turn=turn)

    def writer(self, caller: Caller, asked: Asked, ready: Prepared, *, tells: bool) -> ResponseWriter:
        wire = opening(
            asked.request,
            ready.ask,
            response_id=asked.turn.response_id,
            model=self.reader.model.id,
            created=caller.created,
        )
        output = Output(
            self.reader.model.tokenizer, asked.turn.response_id, logprobs=asked.request.wants_logprobs
        )
        return ResponseWriter(wire, output, told=ready.ask if tells else None, prewarmed=ready.ask.prewarm)

    def ending(
        self,
        caller: Caller,
        asked: Asked,
        ready: Prepared,
        writer: ResponseWriter,
        headers: dict[str, str],
        *,
        run: Run | None = None,
    ) -> Ending:
        """Completes the response and keeps it, if it is to be kept. With a `run` the record is there already."""

        async def end(generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> None:
            generation, answer = generations[0], answers[0][0]
            response = writer.complete(generation, answer)
            compared = asked.request.options.comparison_response_id
            if isinstance(compared, str):
                response["prompt_cache_diagnostics"] = await self.comparisons.diagnostics(
                    caller.tenant.id, asked.turn.response_id, compared
                )
            known = self.turns.known(ready.composed, generation, answer)
            kept = await self.keep(
                caller.tenant.id,
                asked,
                ResponseRecord(response=response, items=asked.items, known=known),
                expected=None if run is None else run.version,
            )
            if not kept:
                response["store"] = False
                headers.update(DEGRADED_HEADERS)

        return end

    async def keep(
        self, tenant: str, asked: Asked, record: ResponseRecord, *, expected: str | None = None
    ) -> bool:
        """Whether it was kept, or was not to be. Raises ApiError 409 if the conversation was changed meanwhile, Conflict if
        the response's record is not of the version `expected`."""
        kept = True
        conversation = asked.history.conversation
        if conversation is not None:
            changed = structs.replace(
                conversation,
                items=[*conversation.items, *asked.new, *record.response["output"]],
                known=record.known,
            )
            kept = (
                await self.records.keep_conversation(tenant, changed, expected=asked.history.version)
            ).kept
        if asked.request.store and not asked.request.prewarms:
            kept = (await self.records.keep(tenant, record, expected=expected)).kept and kept
        return kept


def _shortened(items: list[Item]) -> list[Item]:
    """Without the oldest, but for what the system says; nothing begins with the result of a call that is not there."""
    system = [item for item in items if item.get("role") in ("system", "developer")]
    others = [item for item in items if item.get("role") not in ("system", "developer")]
    rest = others[max(1, int(len(others) * LEAVE_OUT)) :]
    while rest and rest[0]["type"] in _RESULTS:
        rest = rest[1:]
    return [*system, *rest] if rest else []

"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
from aiohttp import web

from cache.lease import Lease

from ..body import read_json
from ..caching.ask import AUTOMATIC, CacheAsk, read_ask
from ..caching.openings import Opening
from ..caching.report import tells_cache
from ..caller import CALLER
from ..config import Limits
from ..errors import InvalidRequest, unsupported
from ..model import TextModel
from ..openai.answer import Answerer
from ..openai.fields import parse, wrong_type
from ..openai.sampling import DrawFields
from ..openai.template_kwargs import read_template_kwargs
from ..pieces import TextOptions
from ..sessions.ids import new_id
from ..structured.shapes import AnswerShape, Shapes
from ..structured.source import Source
from ..structured.wishes import SchemaWish
from ..tenants import Tenants
from ..tools.choice import NO_CALLS, ToolChoice, read_choice
from ..tools.dialects import CHAT
from ..tools.offer import Offer, Offers
from ..turns import Turn, Turns, Wanted
from .blocks import ANTHROPIC, Read, read_blocks
from .cache_control import SECONDS
from .request import NOT_SERVED, CountTokensRequest, MessagesRequest
from .wire import MessageWriter


@dataclass(frozen=True, slots=True)
class MessageTurns:
    """Reads a request for a message."""

    model: TextModel
    offers: Offers
    shapes: Shapes
    tenants: Tenants
    limits: Limits

    def read(self, tenant: str, asked: MessagesRequest) -> Turn:
        """Raises InvalidRequest or ApiError."""
        self.model.check_name(asked.model)
        asked.check()
        tokenizer = self.model.tokenizer
        read = read_blocks(asked.system, asked.tools, asked.messages, self.limits)
        read.marks.finish(asked.cache_control)
        read.conversation.breakpoints.extend(read.marks.breakpoints)
        draw = DrawFields.model_validate(
            {
                "temperature": asked.temperature,
                "top_p": asked.top_p,
                "top_k": asked.top_k,
                **({} if asked.seed is None else {"seed": asked.seed}),
            }
        )
        if len(asked.stops) > self.limits.max_stops:
            raise InvalidRequest(
                f"stop_sequences: at most {self.limits.max_stops}.",
                param="stop_sequences",
                code="array_above_max_length",
            )
        return Turn(
            response_id=new_id("msg"),
            conversation=read.conversation,
            ask=self._ask(tenant, asked, read),
            wanted=lambda begins: self._wanted(asked, begins),
            params=lambda max_tokens: draw.params(tokenizer, max_tokens=max_tokens, logprobs=None),
            text=TextOptions(stops=asked.stops, continues_prompt=read.prefills),
            variables=self._variables(asked),
            opens=not read.prefills,
            continues=read.prefills,
            limit=asked.max_tokens or 1,
        )

    def _ask(self, tenant: str, asked: MessagesRequest, read: Read) -> CacheAsk:
        """Entries stand at the breakpoints and nowhere else; what lies behind them is cached too, without a promise."""
        fields = asked.cache_fields()
        ask = read_ask(fields, self.tenants.policy(tenant), breakpoints=len(read.marks.breakpoints))
        if ask is AUTOMATIC or ask.lease is None:
            return ask
        ttl = ask.lease.ttl if asked.cache is not None and asked.cache.ttl is not None else SECONDS["5m"]
        lease = Lease(
            ttl=min(ttl, ask.longest), pin=ask.lease.pin, priority=ask.lease.priority, tag=ask.lease.tag
        )
        return replace(ask, lease=lease, implicit_mark=not read.marks.breakpoints)

    def _variables(self, asked: CountTokensRequest) -> Mapping[str, object]:
        given = read_template_kwargs(asked.chat_template_kwargs, self.model.tokenizer.special_names)
        source = "" if self.model.template is None else self.model.template.source
        said: dict[str, object] = {}
        thinks = asked.thinking is not None and asked.thinking.type != "disabled"
        if thinks and "enable_thinking" not in source:
            raise unsupported("thinking", "this model's chat template has no such thing")
        if asked.thinking is not None and "enable_thinking" in source:
            said["enable_thinking"] = thinks
        effort = None if asked.output_config is None else asked.output_config.effort
        if effort is not None:
            if "reasoning_effort" not in source:
                raise unsupported("output_config.effort", "this model's chat template does not ask for it")
            said["reasoning_effort"] = effort
        return {**said, **given}

    async def _wanted(self, asked: CountTokensRequest, begins: Opening) -> Wanted:
        if asked.tools is None:
            offer = await self.offers.read(begins.tools, CHAT)
        else:
            offer = await self.offers.read(asked.tools or None, ANTHROPIC)
        choice = _choice(asked.tool_choice, offer)
        shape = await self._shape(asked)
        return Wanted(offer, choice, shape)

    async def _shape(self, asked: CountTokensRequest) -> AnswerShape | None:
        form = None if asked.output_config is None else asked.output_config.format
        if form is None:
            return None
        at = "output_config.format"
        if not isinstance(form, dict):
            raise wrong_type(at, "an object", form)
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            raise InvalidRequest(f"{at}: expected type 'json_schema' with a schema.", param=at)
        source = Source(f"{at}.schema", "schema for output_config.format", code="invalid_json_schema")
        return await self.shapes.shape(SchemaWish(source, form["schema"], "enforced"))


def _choice(value: object, offer: Offer) -> ToolChoice:
    """Raises InvalidRequest."""
    if value is None:
        return read_choice(None, None, offer.tools) if offer.tools else NO_CALLS
    if not isinstance(value, dict):
        raise wrong_type("tool_choice", "an object", value)
    kind = value.get("type")
    together = value.get("disable_parallel_tool_use") is not True
    if kind == "tool":
        named = {"type": "function", "function": {"name": value.get("name")}}
        return read_choice(named, None, offer.tools)
    words: dict[object, str] = {"auto": "auto", "any": "required", "none": "none"}
    if kind not in words:
        raise InvalidRequest(
            "tool_choice.type: expected 'auto', 'any', 'tool' or 'none'.", param="tool_choice.type"
        )
    if not offer.tools and kind != "any":
        return NO_CALLS
    return read_choice(words[kind], together if offer.tools else None, offer.tools)


@dataclass(frozen=True, slots=True)
class Messages:
    reader: MessageTurns
    turns: Turns
    answerer: Answerer

    async def handle(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        asked = parse(MessagesRequest, await read_json(request, self.reader.limits), NOT_SERVED)
        turn = self.reader.read(caller.tenant.id, asked)
        desk = self.answerer.desk
        desk.info()
        with desk.place(caller, 1) as place:
            async with caller.in_time():
                ready = await self.turns.prepare(caller, turn)
            writer = MessageWriter(
                turn.response_id,
                self.reader.model.id,
                ready.job,
                told=ready.ask if tells_cache(request, ready.ask) else None,
            )
            return await self.answerer.answer(
                request,
                place,
                [ready.job],
                writer,
                stream=asked.stream,
                judge=ready.judge,
                ending=ready.ending,
            )

    async def count_tokens(self, request: web.Request) -> web.Response:
        """Of a request that is not made."""
        caller = request[CALLER]
        body: dict[str, Any] = dict(await read_json(request, self.reader.limits))
        counted = parse(CountTokensRequest, body, NOT_SERVED)
        asked = MessagesRequest.model_validate({**counted.model_dump(exclude_none=True), "max_tokens": 1})
        turn = self.reader.read(caller.tenant.id, asked)
        async with caller.in_time():
            composed = await self.turns.compose(caller.tenant.id, turn, looking=True)
        body = {"input_tokens": len(composed.prompt.ids)}
        return web.Response(body=orjson.dumps(body), content_type="application/json")

"""POST /v1/caches/lookup: what a request would find in the cache, without being one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from aiohttp import web

from engine.client import EngineClient
from engine.request import Evicted, LookUpReport

from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from ..desk import Desk
from ..errors import InvalidRequest
from ..model import TextModel
from ..openai import chat, completions
from ..openai.chat import ChatRequest
from ..openai.completions import CompletionRequest, prompt_ids, read_prompts
from ..openai.fields import parse
from ..openai.messages import generation_prompt, read_conversation
from ..openai.template_kwargs import read_template_kwargs
from ..prompts import Prompts
from ..tools.offer import Offers
from .ask import CacheAsk, read_ask
from .fields import CacheFields
from .namespaces import Namespaces
from .openings import Opening, Openings


@dataclass(frozen=True, slots=True)
class Lookup:
    """Changes nothing: no page is renewed, moved or counted as used by it."""

    model: TextModel
    prompts: Prompts
    offers: Offers
    desk: Desk
    engine: EngineClient
    namespaces: Namespaces
    openings: Openings
    limits: Limits

    async def handle(self, request: web.Request) -> web.Response:
        """The body is that of a chat or completions request, whole: what the endpoint refuses is refused here."""
        caller = request[CALLER]
        body = await read_json(request, self.limits)
        context = self.desk.info().max_model_len
        async with caller.in_time():
            ask, prompt = await self._read(caller.tenant.id, body, context)
            namespace = self.namespaces.of(caller.tenant.id, salt=ask.salt, key=ask.key)
            report = await self.engine.look_up(prompt, namespace=namespace)
        return web.Response(
            body=orjson.dumps(_wire(self.model.id, len(prompt), report)), content_type="application/json"
        )

    async def _read(
        self, tenant: str, body: Mapping[str, object], context: int
    ) -> tuple[CacheAsk, list[int]]:
        """What it would ask of the cache, and its prompt."""
        if "messages" in body:
            return await self._chat(tenant, parse(ChatRequest, body, chat.NOT_SERVED), context)
        return await self._completion(tenant, parse(CompletionRequest, body, completions.NOT_SERVED), context)

    async def _chat(self, tenant: str, asked: ChatRequest, context: int) -> tuple[CacheAsk, list[int]]:
        self.model.check_name(asked.model)
        asked.check(self.limits)
        conversation = read_conversation(asked.messages, self.limits)
        opening, ask = await self._opening(tenant, asked, len(conversation.breakpoints))
        offer = await self.offers.read(opening.tools if asked.tools is None else asked.tools)
        variables = read_template_kwargs(asked.chat_template_kwargs, self.model.tokenizer.special_names)
        prompt = await self.prompts.chat(
            conversation.behind(opening.of_messages()).messages,
            context,
            add_generation_prompt=generation_prompt(
                asked.add_generation_prompt, continues=asked.continue_final_message
            ),
            continue_final=asked.continue_final_message,
            tools=offer.prompt,
            variables=variables or opening.variables,
        )
        opening.check(prompt.ids)
        return ask, prompt.ids

    async def _completion(
        self, tenant: str, asked: CompletionRequest, context: int
    ) -> tuple[CacheAsk, list[int]]:
        self.model.check_name(asked.model)
        asked.check(self.limits)
        prompts = read_prompts(asked.prompt, self.limits)
        if len(prompts) != 1:
            raise InvalidRequest("One prompt is looked up at a time.", param="prompt")
        opening, ask = await self._opening(tenant, asked, 0)
        return ask, await prompt_ids(self.prompts, prompts[0], context, opening=opening.ids)

    async def _opening(self, tenant: str, asked: CacheFields, breakpoints: int) -> tuple[Opening, CacheAsk]:
        ask = read_ask(asked, self.openings.tenants.policy(tenant), breakpoints=breakpoints)
        return await self.openings.of(tenant, ask, looking=True)


def _wire(model: str, tokens: int, report: LookUpReport) -> dict[str, object]:
    hit = report.device + report.host + report.disk
    return {
        "object": "cache.lookup",
        "model": model,
        "prompt_tokens": tokens,
        "hit_tokens": hit,
        "miss_tokens": tokens - hit,
        "hit_tokens_by_tier": {"device": report.device, "host": report.host, "disk": report.disk},
        "saved_ms": round(report.saved * 1000, 3),
        "evicted": None if report.evicted is None else _evicted(report.evicted),
    }


def _evicted(evicted: Evicted) -> dict[str, object]:
    return {"cause": evicted.cause, "seconds_ago": round(evicted.age, 3), "broken": evicted.broken}

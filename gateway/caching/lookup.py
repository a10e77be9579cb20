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
from ..openai.completions import CompletionRequest, read_prompts
from ..openai.fields import parse
from ..openai.messages import generation_prompt, read_messages
from ..openai.template_kwargs import read_template_kwargs
from ..prompts import Prompts, check_fits
from ..tools.offer import Offers
from .namespaces import Namespaces


@dataclass(frozen=True, slots=True)
class Lookup:
    """Changes nothing: no page is renewed, moved or counted as used by it."""

    model: TextModel
    prompts: Prompts
    offers: Offers
    desk: Desk
    engine: EngineClient
    namespaces: Namespaces
    limits: Limits

    async def handle(self, request: web.Request) -> web.Response:
        """The body is that of a chat or completions request, whole: what the endpoint refuses is refused here."""
        caller = request[CALLER]
        body = await read_json(request, self.limits)
        context = self.desk.info().max_model_len
        async with caller.in_time():
            asked, prompt = await self._read(body, context)
            namespace = self.namespaces.of(
                caller.tenant.id, salt=asked.cache_salt, key=asked.prompt_cache_key
            )
            report = await self.engine.look_up(prompt, namespace=namespace)
        return web.Response(
            body=orjson.dumps(_wire(self.model.id, len(prompt), report)), content_type="application/json"
        )

    async def _read(
        self, body: Mapping[str, object], context: int
    ) -> tuple[ChatRequest | CompletionRequest, list[int]]:
        if "messages" in body:
            return await self._chat(parse(ChatRequest, body, chat.NOT_SERVED), context)
        return await self._completion(parse(CompletionRequest, body, completions.NOT_SERVED), context)

    async def _chat(self, asked: ChatRequest, context: int) -> tuple[ChatRequest, list[int]]:
        self.model.check_name(asked.model)
        asked.check(self.limits)
        prompt = await self.prompts.chat(
            read_messages(asked.messages, self.limits),
            context,
            add_generation_prompt=generation_prompt(
                asked.add_generation_prompt, continues=asked.continue_final_message
            ),
            continue_final=asked.continue_final_message,
            tools=(await self.offers.read(asked.tools)).prompt,
            variables=read_template_kwargs(asked.chat_template_kwargs, self.model.tokenizer.special_names),
        )
        return asked, prompt.ids

    async def _completion(
        self, asked: CompletionRequest, context: int
    ) -> tuple[CompletionRequest, list[int]]:
        self.model.check_name(asked.model)
        asked.check(self.limits)
        prompts = read_prompts(asked.prompt, self.limits)
        if len(prompts) != 1:
            raise InvalidRequest("One prompt is looked up at a time.", param="prompt")
        (prompt,) = prompts
        if isinstance(prompt, str):
            return asked, await self.prompts.text(prompt, context)
        check_fits(len(prompt), context, param="prompt")
        self.prompts.check_ids(prompt, param="prompt")
        return asked, prompt


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

"""A request that is not one: what it would ask of the cache, and its record as if it had been admitted now. Nothing is
computed, renewed or counted by it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from engine.client import EngineClient
from engine.request import LookUpReport, RequestStarted

from ..chat_template import Rendered
from ..config import Limits
from ..errors import InvalidRequest
from ..model import TextModel
from ..openai import chat, completions
from ..openai.chat import ChatRequest, ChatTurns
from ..openai.completions import CompletionRequest, prompt_ids, read_prompts
from ..openai.fields import parse
from ..prompts import Prompts
from ..turns import Turns
from .ask import CacheAsk, read_ask
from .fields import CacheFields
from .namespaces import Namespaces
from .openings import Opening, Openings
from .recorder import instance
from .records import Origin, Record, pack, pack_messages
from .relation import gists

NO_ID = ""


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a request would ask of the cache, its prompt, and what that is made of. `text` is empty for a completion."""

    ask: CacheAsk
    prompt: Rendered
    origin: Origin


@dataclass(frozen=True, slots=True)
class DryRuns:
    model: TextModel
    prompts: Prompts
    chats: ChatTurns
    turns: Turns
    engine: EngineClient
    namespaces: Namespaces
    openings: Openings
    limits: Limits

    async def read(self, tenant: str, body: Mapping[str, object]) -> DryRun:
        """`body` is that of a chat or completions request, whole. Raises what its endpoint would refuse it with."""
        context = self.turns.desk.info().max_model_len
        if "messages" in body:
            return await self._chat(tenant, parse(ChatRequest, body, chat.NOT_SERVED))
        return await self._completion(tenant, parse(CompletionRequest, body, completions.NOT_SERVED), context)

    async def look_up(self, tenant: str, dry: DryRun) -> LookUpReport:
        """What it would find now: nothing, if it would not look."""
        if not dry.ask.read:
            return LookUpReport(query_id=0)
        return await self.engine.look_up(dry.prompt.ids, namespace=self._namespace(tenant, dry.ask))

    async def record(self, tenant: str, body: Mapping[str, object], now: float) -> Record:
        """As if it had been admitted. Raises as `read` does, and EngineUnavailable."""
        dry = await self.read(tenant, body)
        found = await self.look_up(tenant, dry)
        info = self.turns.desk.info()
        ids = dry.prompt.ids
        namespace = self._namespace(tenant, dry.ask)
        return Record(
            response_id=NO_ID,
            index=0,
            request_id=NO_ID,
            tenant=tenant,
            created=time.time(),
            born=now,
            model=self.model.id,
            model_digest=info.model_digest,
            adapter=b"",
            salt=dry.ask.salt,
            key=dry.ask.key,
            generation=self.namespaces.generation(tenant),
            namespace=namespace,
            instance=instance(self.engine),
            policy=dry.ask.policy(ids, (), namespace),
            ids=pack(ids),
            answer=array("I"),
            text=dry.origin.text,
            messages=pack_messages(dry.origin.messages),
            gists=gists(dry.origin.messages),
            tools=dry.origin.tools,
            variables=orjson.dumps(dry.origin.variables),
            frames=dry.origin.frames,
            start=RequestStarted(
                NO_ID,
                min(found.device + found.host + found.disk, len(ids) - 1),
                0.0,
                host_tokens=found.host,
                disk_tokens=found.disk,
                saved=found.saved,
                evicted=found.evicted,
            ),
            started=now,
        )

    def _namespace(self, tenant: str, ask: CacheAsk) -> bytes:
        return self.namespaces.of(tenant, salt=ask.salt, key=ask.key)

    async def _chat(self, tenant: str, asked: ChatRequest) -> DryRun:
        composed = await self.turns.compose(tenant, self.chats.read(tenant, asked), looking=True)
        return DryRun(composed.ask, composed.prompt, composed.origin(NO_ID))

    async def _completion(self, tenant: str, asked: CompletionRequest, context: int) -> DryRun:
        self.model.check_name(asked.model)
        asked.check(self.limits)
        prompts = read_prompts(asked.prompt, self.limits)
        if len(prompts) != 1:
            raise InvalidRequest("Only one prompt is looked at at a time.", param="prompt")
        opening, ask = await self._opening(tenant, asked)
        if asked.scores_prompt:
            ask = ask.scoring()
        ids = await prompt_ids(self.prompts, prompts[0], context, opening=opening.ids)
        return DryRun(ask, Rendered(ids, ""), Origin(response_id=NO_ID))

    async def _opening(self, tenant: str, asked: CacheFields) -> tuple[Opening, CacheAsk]:
        ask = read_ask(asked, self.openings.tenants.policy(tenant))
        return await self.openings.of(tenant, ask, looking=True)

"""POST /tokenize and /detokenize, in vLLM's shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import orjson
from aiohttp import web
from pydantic import WithJsonSchema

from engine.client import EngineClient

from ..body import read_json
from ..config import Limits
from ..errors import InvalidRequest, Overloaded
from ..model import TextModel
from ..prompts import Prompts
from ..tools.offer import Offers
from .fields import Wire, parse, wrong_type
from .messages import generation_prompt, read_messages
from .template_kwargs import read_template_kwargs

Objects = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "object"}})]
Object = Annotated[object, WithJsonSchema({"type": "object"})]
Tokens = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "integer"}})]


class TokenizeRequest(Wire):
    """`prompt` or `messages`, one of them. `add_special_tokens` concerns a prompt; a template decides for messages, and
    is given the tools and variables."""

    model: str | None = None
    prompt: str | None = None
    messages: Objects = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Objects = None
    chat_template_kwargs: Object = None
    return_token_strs: bool = False


class DetokenizeRequest(Wire):
    model: str | None = None
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Tokenization:
    model: TextModel
    prompts: Prompts
    offers: Offers
    engine: EngineClient
    limits: Limits

    async def tokenize(self, request: web.Request) -> web.Response:
        asked = parse(TokenizeRequest, await read_json(request, self.limits), {})
        if asked.model is not None:
            self.model.check_name(asked.model)
        context = self._context()
        ids = await self._encode(asked, context)
        tokenizer = self.model.tokenizer
        strings = [tokenizer.token_text(i) for i in ids] if asked.return_token_strs else None
        return _json({"count": len(ids), "max_model_len": context, "tokens": ids, "token_strs": strings})

    async def detokenize(self, request: web.Request) -> web.Response:
        asked = parse(DetokenizeRequest, await read_json(request, self.limits), {})
        if asked.model is not None:
            self.model.check_name(asked.model)
        tokens = asked.tokens
        if not (isinstance(tokens, list) and all(type(token) is int for token in tokens)):
            raise wrong_type("tokens", "an array of integers", tokens)
        self.prompts.check_ids(tokens, param="tokens")
        return _json({"prompt": await self.prompts.decode(tokens)})

    async def _encode(self, asked: TokenizeRequest, context: int) -> list[int]:
        if asked.messages is not None and asked.prompt is None:
            messages = read_messages(asked.messages, self.limits)
            variables = read_template_kwargs(asked.chat_template_kwargs, self.model.tokenizer.special_names)
            prompt = await self.prompts.chat(
                messages,
                context,
                add_generation_prompt=generation_prompt(
                    asked.add_generation_prompt, continues=asked.continue_final_message
                ),
                continue_final=asked.continue_final_message,
                tools=(await self.offers.read(asked.tools)).prompt,
                variables=variables,
            )
            return prompt.ids
        for field in ("tools", "chat_template_kwargs"):
            if getattr(asked, field) is not None:
                raise InvalidRequest(f"'{field}' goes with 'messages' only.", param=field)
        if asked.prompt is None or asked.messages is not None:
            raise InvalidRequest("Give either 'prompt' or 'messages'.", param="prompt")
        return await self.prompts.text(asked.prompt, context, add_special=asked.add_special_tokens)

    def _context(self) -> int:
        info = self.engine.info
        if info is None:
            raise Overloaded("The engine is starting.", code="engine_starting")
        return info.max_model_len


def _json(body: dict[str, object]) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")

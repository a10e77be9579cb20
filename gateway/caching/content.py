"""What a cache object is made of, read from a client and brought to token ids, the way a request's own prompt is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson

from ..config import Limits
from ..errors import InvalidRequest
from ..model import TextModel
from ..openai.completions import read_prompts
from ..openai.fields import wrong_type
from ..openai.messages import read_messages
from ..openai.template_kwargs import read_template_kwargs
from ..prompts import Prompts, check_fits
from ..tools.offer import Offers
from .objects import Content


@dataclass(frozen=True, slots=True)
class Contents:
    """Reads and renders them. All methods raise InvalidRequest or ApiError naming the field."""

    model: TextModel
    prompts: Prompts
    offers: Offers
    limits: Limits

    def read(self, *, messages: object, tools: object, variables: object, prompt: object) -> Content:
        """Either `messages`, with what belongs to them, or `prompt`."""
        if (messages is None) == (prompt is None):
            raise InvalidRequest("Give either 'messages' or 'prompt'.", param="messages")
        if prompt is not None:
            for name, value in (("tools", tools), ("chat_template_kwargs", variables)):
                if value is not None:
                    raise InvalidRequest(f"'{name}' goes with 'messages' only.", param=name)
            return _of_prompt(read_prompts(prompt, self.limits), prompt)
        read = read_messages(messages, self.limits)
        given = read_template_kwargs(variables, self.model.tokenizer.special_names)
        if tools is not None and not isinstance(tools, list):
            raise wrong_type("tools", "an array of objects", tools)
        return Content(messages=read, tools=tools, variables=given)

    async def tokens(self, content: Content, context: int) -> list[int]:
        """The token ids that a request which goes on from there begins with: no answer is opened behind the messages."""
        if content.text is not None:
            return await self.prompts.text(content.text, context)
        if content.ids is not None:
            check_fits(len(content.ids), context, param="prompt")
            self.prompts.check_ids(content.ids, param="prompt")
            return content.ids
        offer = await self.offers.read(content.tools)
        rendered = await self.prompts.chat(
            content.messages or [],
            context,
            add_generation_prompt=False,
            continue_final=False,
            tools=offer.prompt,
            variables=content.variables,
        )
        return rendered.ids


def digest(content: Content, model: str, salt: str | None, key: str | None) -> bytes:
    """Equal for equal contents of one model that are found in the same place."""
    spelled: dict[str, Any] = {
        "model": model,
        "salt": salt,
        "key": key,
        "messages": content.messages,
        "tools": content.tools,
        "variables": orjson.dumps(content.variables).decode(),  # which may nest as deeply as JSON may
        "text": content.text,
        "ids": content.ids,
    }
    return hashlib.sha256(orjson.dumps(spelled, option=orjson.OPT_NON_STR_KEYS)).digest()


def _of_prompt(prompts: list[Any], given: object) -> Content:
    if len(prompts) != 1:
        raise wrong_type("prompt", "one string or one array of token ids", given)
    (one,) = prompts
    return Content(text=one) if isinstance(one, str) else Content(ids=one)

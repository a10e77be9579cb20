"""POST /v1/chat/completions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import orjson
from aiohttp import web
from pydantic import Field, WithJsonSchema

from ..body import read_json
from ..caller import CALLER
from ..config import Limits
from ..desk import Job, total
from ..errors import InvalidRequest, unsupported
from ..generation import Answer, Generation, Piece, TextOptions, Usage
from ..model import TextModel
from ..prompts import Prompts, check_fits
from ..structured.shapes import Shapes
from ..structured.verdicts import SchemaJudge
from .answer import Answerer
from .fields import parse, wrong_type
from .logprobs import chat_logprobs
from .messages import generation_prompt, read_messages
from .sampling import NOT_SERVED_ANYWHERE, SamplingFields

NOT_SERVED = NOT_SERVED_ANYWHERE | dict.fromkeys(
    (
        "audio",
        "best_of",
        "chat_template",
        "chat_template_kwargs",
        "echo",
        "function_call",
        "functions",
        "parallel_tool_calls",
        "prediction",
        "reasoning",
        "reasoning_effort",
        "suffix",
        "verbosity",
        "web_search_options",
    ),
    "",
)

Messages = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "object"}, "minItems": 1})]
Anything = Annotated[object, WithJsonSchema({})]


class ChatRequest(SamplingFields):
    messages: Messages
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(
        None, ge=1, description="the same as max_tokens, and wins over it"
    )
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    # accepted in the one form that asks for nothing
    modalities: Anything = None
    tools: Anything = None
    tool_choice: Anything = None

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest(
                "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
                param="top_logprobs",
            )
        self._check_plain_text()

    def _check_plain_text(self) -> None:
        if self.modalities is not None and self.modalities != ["text"]:
            raise unsupported("modalities", "only ['text'] is served")
        if self.tools is not None:
            if not isinstance(self.tools, list):
                raise wrong_type("tools", "an array of objects", self.tools)
            if not self.tools:
                raise InvalidRequest("Invalid 'tools': empty array.", param="tools", code="empty_array")
            raise unsupported("tools")
        if self.tool_choice is not None and self.tool_choice != "none":
            raise unsupported("tool_choice", "there are no tools to choose from")

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    model: TextModel
    prompts: Prompts
    shapes: Shapes
    answerer: Answerer
    limits: Limits

    async def handle(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        asked = parse(ChatRequest, await read_json(request, self.limits), NOT_SERVED)
        self.model.check_name(asked.model)
        asked.check(self.limits)
        messages = read_messages(asked.messages, self.limits)
        stops = asked.stops(self.limits)
        opens = generation_prompt(asked.add_generation_prompt, continues=asked.continue_final_message)
        info = self.answerer.desk.info()
        with self.answerer.desk.place(caller, 1) as place:
            shape = await self.shapes.read(asked)
            if shape is not None:
                asked.check_beside_grammar()
            prompt = await self.prompts.chat(
                messages,
                info.max_model_len,
                add_generation_prompt=opens,
                continue_final=asked.continue_final_message,
            )
            max_tokens = asked.limit or info.max_model_len - len(prompt)
            check_fits(len(prompt), info.max_model_len, param="messages", completion=max_tokens)
            job = Job(
                prompt=prompt,
                sampling=asked.params(
                    self.model.tokenizer,
                    max_tokens=max_tokens,
                    logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
                ),
                text=TextOptions(
                    stops=stops,
                    include_stop=asked.include_stop_str_in_output,
                    min_tokens=asked.min_tokens,
                    logprobs=asked.logprobs,
                    ids=asked.return_token_ids,
                    continues_prompt=asked.continue_final_message,
                ),
                n=asked.n,
                cache_salt=asked.cache_salt,
                priority=asked.priority,
                grammar=None if shape is None else shape.grammar,
                source=None if shape is None else shape.source,
            )
            writer = ChatWriter(asked, self.model, created=caller.created, fingerprint=info.model_digest[:12])
            judge = None if shape is None else SchemaJudge(shape, self.shapes.metrics)
            return await self.answerer.answer(request, place, [job], writer, stream=asked.stream, judge=judge)


class ChatWriter:
    """Chat completions on the wire. The constant parts of a chunk are put together once."""

    def __init__(self, asked: ChatRequest, model: TextModel, *, created: int, fingerprint: str) -> None:
        self._asked = asked
        self._tokenizer = model.tokenizer
        self._common = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": created,
            "model": model.id,
            "system_fingerprint": f"fp_{fingerprint}",
        }
        opening = orjson.dumps({**self._common, "object": "chat.completion.chunk"})[:-1]
        self._opening = b"data: " + opening + b',"choices":['
        self._closing = b'],"usage":null}\n\n' if asked.include_usage else b"]}\n\n"
        self._text_opening = [
            self._opening + b'{"index":%d,"delta":{"content":' % index for index in range(asked.n)
        ]
        self._text_closing = b'},"logprobs":null,"finish_reason":null}' + self._closing

    # -- streamed ------------------------------------------------------------------------------------------------------

    def head(self, generation: Generation) -> bytes:
        delta = {"role": "assistant", "content": "", "refusal": None}
        extra = {"prompt_token_ids": generation.prompt} if self._asked.return_token_ids else {}
        return b"".join(
            [
                self._chunk({"index": i, "delta": delta, "logprobs": None, "finish_reason": None, **extra})
                for i in range(self._asked.n)
            ]
        )

    def pieces(self, first: int, generation: Generation, pieces: Sequence[Piece]) -> bytes:
        return b"".join([self._piece(piece) for piece in pieces])

    def tail(self, usage: Usage) -> bytes:
        if not self._asked.include_usage:
            return b""
        return self._opening + b'],"usage":' + orjson.dumps(usage.wire()) + b"}\n\n"

    def _piece(self, piece: Piece) -> bytes:
        frames = b""
        if piece.details:
            frames = self._detailed(piece)
        elif piece.text:
            frames = self._text_opening[piece.index] + orjson.dumps(piece.text) + self._text_closing
        if piece.finish is None:
            return frames
        finish: dict[str, object] = {
            "index": piece.index,
            "delta": {},
            "logprobs": None,
            "finish_reason": piece.finish,
        }
        if piece.report is not None:
            finish["schema_check"] = piece.report
        return frames + self._chunk(finish)

    def _detailed(self, piece: Piece) -> bytes:
        choice: dict[str, object] = {
            "index": piece.index,
            "delta": {"content": piece.text},
            "logprobs": chat_logprobs(piece.details, self._tokenizer) if self._asked.logprobs else None,
            "finish_reason": None,
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = [detail.id for detail in piece.details]
        return self._chunk(choice)

    def _chunk(self, choice: dict[str, object]) -> bytes:
        return self._opening + orjson.dumps(choice) + self._closing

    # -- whole ---------------------------------------------------------------------------------------------------------

    def whole(self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> bytes:
        body = {
            **self._common,
            "object": "chat.completion",
            "choices": [self._choice(answer) for answer in answers[0]],
            "usage": total(generations).wire(),
        }
        if self._asked.return_token_ids:
            body["prompt_token_ids"] = generations[0].prompt
        return orjson.dumps(body)

    def _choice(self, answer: Answer) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None, "annotations": []},
            "logprobs": chat_logprobs(answer.details, self._tokenizer) if self._asked.logprobs else None,
            "finish_reason": answer.finish,
        }
        if answer.report is not None:
            choice["schema_check"] = answer.report
        if self._asked.return_token_ids:
            choice["token_ids"] = [detail.id for detail in answer.details]
        return choice

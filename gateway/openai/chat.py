"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import orjson
from aiohttp import web
from pydantic import Field, WithJsonSchema

from ..body import read_json
from ..caching.ask import CacheAsk, read_ask
from ..caching.openings import Opening
from ..caching.report import cache_details, tells_cache
from ..caller import CALLER
from ..config import Limits
from ..desk import total
from ..errors import ApiError, InvalidRequest, unsupported
from ..generation import Generation
from ..model import TextModel
from ..pieces import Answer, Finish, Piece, TextOptions, TokenDetail
from ..sessions.ids import new_id
from ..sessions.sessions import DEGRADED_HEADERS
from ..sse import DONE, in_band
from ..structured.shapes import Shapes
from ..tenants import Tenants
from ..tools.choice import ToolChoice, read_choice
from ..tools.offer import Offers
from ..tools.parser import CallBegins
from ..turns import Turn, Turns, Wanted
from .answer import Answerer, Ending
from .fields import parse
from .logprobs import chat_logprobs
from .messages import generation_prompt, read_conversation
from .reply_wire import Delta, Deltas, message, plain_message
from .sampling import NOT_SERVED_ANYWHERE, SamplingFields
from .stored import JOINT, PREFIX, StoredChats
from .template_kwargs import read_template_kwargs

NOT_SERVED = NOT_SERVED_ANYWHERE | dict.fromkeys(
    (
        "audio",
        "best_of",
        "chat_template",
        "echo",
        "function_call",
        "functions",
        "prediction",
        "reasoning",
        "reasoning_effort",
        "suffix",
        "verbosity",
        "web_search_options",
    ),
    "",
)

NOTHING: Mapping[str, object] = {}

Objects = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "object"}, "minItems": 1})]
Object = Annotated[object, WithJsonSchema({"type": "object"})]
Texts = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "string"}})]
TextOrObject = Annotated[object, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})]


class ChatRequest(SamplingFields):
    messages: Objects
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(
        None, ge=1, description="the same as max_tokens, and wins over it"
    )
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: Objects = Field(None, description="functions and custom tools")
    tool_choice: TextOrObject = Field(
        None, description="none, auto, required, a function, a custom tool or allowed_tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call in an answer")
    chat_template_kwargs: Object = Field(None, description="variables for the chat template")
    modalities: Texts = Field(None, description="['text']")

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest(
                "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
                param="top_logprobs",
            )
        if self.modalities is not None and self.modalities != ["text"]:
            raise unsupported("modalities", "only ['text'] is served")

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


@dataclass(frozen=True, slots=True)
class ChatTurns:
    """Reads a chat request."""

    model: TextModel
    offers: Offers
    shapes: Shapes
    tenants: Tenants
    limits: Limits

    def read(self, tenant: str, asked: ChatRequest) -> Turn:
        """Everything but its tools and its shape, which take longer. Raises InvalidRequest or ApiError."""
        tokenizer = self.model.tokenizer
        self.model.check_name(asked.model)
        asked.check(self.limits)
        conversation = read_conversation(asked.messages, self.limits)
        return Turn(
            response_id=new_id(PREFIX, joint=JOINT),
            conversation=conversation,
            ask=read_ask(asked, self.tenants.policy(tenant), breakpoints=len(conversation.breakpoints)),
            wanted=lambda opening: self._wanted(asked, opening),
            params=lambda max_tokens: asked.params(
                tokenizer,
                max_tokens=max_tokens,
                logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
            ),
            text=TextOptions(
                stops=asked.stops(self.limits),
                include_stop=asked.include_stop_str_in_output,
                min_tokens=asked.min_tokens,
                logprobs=asked.logprobs,
                ids=asked.return_token_ids,
                continues_prompt=asked.continue_final_message,
            ),
            variables=read_template_kwargs(asked.chat_template_kwargs, tokenizer.special_names),
            opens=generation_prompt(asked.add_generation_prompt, continues=asked.continue_final_message),
            continues=asked.continue_final_message,
            limit=asked.limit,
            n=asked.n,
            priority=asked.priority,
        )

    async def _wanted(self, asked: ChatRequest, opening: Opening) -> Wanted:
        offer = await self.offers.read(opening.tools if asked.tools is None else asked.tools)
        choice = read_choice(asked.tool_choice, asked.parallel_tool_calls, offer.tools)
        shape = await self.shapes.read(asked)
        asked.check_prewarm(
            *(["tool_choice"] if choice.mode in ("required", "named") else []),
            *([] if shape is None else [shape.source.param]),
            *(["logprobs"] if asked.logprobs else []),
        )
        if offer.tools or shape is not None:
            asked.check_beside_grammar()
        return Wanted(offer, choice, shape)


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    reader: ChatTurns
    turns: Turns
    answerer: Answerer
    stored: StoredChats

    async def handle(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        asked = parse(ChatRequest, await read_json(request, self.reader.limits), NOT_SERVED)
        turn = self.reader.read(caller.tenant.id, asked)
        info = self.answerer.desk.info()
        with self.answerer.desk.place(caller, 1) as place:
            async with caller.in_time():
                ready = await self.turns.prepare(caller, turn)
            writer = ChatWriter(
                asked,
                self.turns.model,
                ready.composed.wanted.choice,
                response_id=turn.response_id,
                parsed=ready.job.text.parser is not None,
                told=ready.ask if tells_cache(request, ready.ask) else None,
                created=caller.created,
                fingerprint=info.model_digest[:12],
            )
            headers: dict[str, str] = {}
            keeping = None
            if asked.store and not asked.prewarms:
                keeping = self._keeping(caller.tenant.id, asked, writer, ready.ending, headers)
            response = await self.answerer.answer(
                request,
                place,
                [ready.job],
                writer,
                stream=asked.stream,
                judge=ready.judge,
                ending=keeping or ready.ending,
            )
            if not response.prepared:
                response.headers.update(headers)
            return response

    def _keeping(
        self,
        tenant: str,
        asked: ChatRequest,
        writer: ChatWriter,
        first: Ending | None,
        headers: dict[str, str],
    ) -> Ending:
        """Keeps the completion, after what is to be done `first`."""

        async def end(generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> None:
            if first is not None:
                await first(generations, answers)
            said = asked.messages
            assert isinstance(said, list)  # it has been read
            if not (await self.stored.keep(tenant, writer.complete(generations, answers), said)).kept:
                headers.update(DEGRADED_HEADERS)

        return end


class ChatWriter:
    """Chat completions on the wire. The constant parts of a chunk are put together once."""

    def __init__(
        self,
        asked: ChatRequest,
        model: TextModel,
        choice: ToolChoice,
        *,
        response_id: str,
        parsed: bool,
        told: CacheAsk | None,
        created: int,
        fingerprint: str,
    ) -> None:
        """`parsed`: pieces and answers come in parts. `told`: what was asked of the cache, if the answer is to say what came
        of it."""
        self._asked = asked
        self._told = told
        self._tokenizer = model.tokenizer
        self._choice_of_tools = choice
        self._deltas = [Deltas() for _ in range(asked.n)] if parsed else []
        self._completed: Mapping[str, object] | None = None
        self._common = {
            "id": response_id,
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
        # null where calls may come instead, so that the deltas add up to the message
        content = None if self._choice_of_tools.allowed else ""
        delta = {"role": "assistant", "content": content, "refusal": None}
        extra = {"prompt_token_ids": generation.prompt} if self._asked.return_token_ids else {}
        return b"".join(
            [
                self._chunk({"index": i, "delta": delta, "logprobs": None, "finish_reason": None, **extra})
                for i in range(self._asked.n)
            ]
        )

    def pieces(self, first: int, generation: Generation, pieces: Sequence[Piece]) -> bytes:
        return b"".join([self._piece(piece, generation) for piece in pieces])

    def tail(self, generations: Sequence[Generation]) -> bytes:
        if not self._asked.include_usage:
            return DONE
        last = {"usage": total(generations).wire(), **cache_details(self._told, generations)}
        return self._opening + b"]," + orjson.dumps(last)[1:] + b"\n\n" + DONE

    def failed(self, error: ApiError) -> bytes:
        return in_band(error)

    def _piece(self, piece: Piece, generation: Generation) -> bytes:
        frames = b""
        if self._deltas:
            frames = self._parts(piece)
        elif piece.details:
            frames = self._detailed({"content": piece.text}, piece.index, piece.details)
        elif piece.text:
            frames = self._text_opening[piece.index] + orjson.dumps(piece.text) + self._text_closing
        return frames if piece.finish is None else frames + self._finish(piece, generation)

    def _parts(self, piece: Piece) -> bytes:
        """What is known of the piece's tokens comes with its first text, or else with its first chunk."""
        deltas = list(self._deltas[piece.index].write(piece.parts))
        if not piece.details:
            return b"".join([self._delta(delta, piece.index) for delta in deltas])
        deltas = deltas or [{}]
        bearer = next((delta for delta in deltas if "content" in delta), deltas[0])
        return b"".join(
            [self._detailed(delta, piece.index, piece.details if delta is bearer else ()) for delta in deltas]
        )

    def _delta(self, delta: Delta, index: int) -> bytes:
        text = delta.get("content")
        if text is None:
            return self._detailed(delta, index, ())
        return self._text_opening[index] + orjson.dumps(text) + self._text_closing

    def _finish(self, piece: Piece, generation: Generation) -> bytes:
        finish: dict[str, object] = {
            "index": piece.index,
            "delta": {},
            "logprobs": None,
            "finish_reason": self._reason(
                piece.finish, calls=bool(self._deltas) and self._deltas[piece.index].calls
            ),
        }
        if piece.report is not None:
            finish["schema_check"] = piece.report
        return self._chunk(finish, cache_details(self._told, [generation]))

    def _detailed(self, delta: Delta, index: int, details: Sequence[TokenDetail]) -> bytes:
        logprobs = chat_logprobs(details, self._tokenizer) if self._asked.logprobs and details else None
        choice: dict[str, object] = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": None,
        }
        if self._asked.return_token_ids and details:
            choice["token_ids"] = [detail.id for detail in details]
        return self._chunk(choice)

    def _chunk(self, choice: dict[str, object], beside: Mapping[str, object] = NOTHING) -> bytes:
        frame = self._opening + orjson.dumps(choice)
        return frame + (b"]," + orjson.dumps(beside)[1:-1] + self._closing[1:] if beside else self._closing)

    # -- whole ---------------------------------------------------------------------------------------------------------

    def whole(self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> bytes:
        return orjson.dumps(self.complete(generations, answers))

    def complete(
        self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]
    ) -> Mapping[str, object]:
        """The completion. The same object from the second time on."""
        if self._completed is None:
            body = {
                **self._common,
                "object": "chat.completion",
                "choices": [self._choice(answer) for answer in answers[0]],
                "usage": total(generations).wire(),
                **cache_details(self._told, generations),
            }
            if self._asked.return_token_ids:
                body["prompt_token_ids"] = generations[0].prompt
            if self._asked.store:
                body["metadata"] = self._asked.metadata or {}
            self._completed = body
        return self._completed

    def _choice(self, answer: Answer) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": answer.index,
            "message": message(answer.parts, self._deltas[answer.index].told)
            if self._deltas
            else plain_message(answer.text),
            "logprobs": chat_logprobs(answer.details, self._tokenizer) if self._asked.logprobs else None,
            "finish_reason": self._reason(
                answer.finish, calls=any(isinstance(part, CallBegins) for part in answer.parts)
            ),
        }
        if answer.report is not None:
            choice["schema_check"] = answer.report
        if self._asked.return_token_ids:
            choice["token_ids"] = [detail.id for detail in answer.details]
        return choice

    def _reason(self, finish: Finish | None, *, calls: bool) -> str | None:
        """OpenAI's table: what a limit cut is `length`, whatever is in it; a call that was asked for by name is `stop`."""
        if finish == "stop" and calls and self._choice_of_tools.mode != "named":
            return "tool_calls"
        return finish

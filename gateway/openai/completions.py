"""POST /v1/completions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import orjson
from aiohttp import web
from pydantic import Field, WithJsonSchema

from engine.request import EngineInfo

from ..body import read_json
from ..caching.ask import CacheAsk, Mark, read_ask
from ..caching.openings import Openings
from ..caching.records import Origin
from ..caching.report import cache_details, tells_cache
from ..caller import CALLER, Caller
from ..config import Limits
from ..desk import Job, total
from ..errors import ApiError, InvalidRequest, unsupported
from ..generation import Generation
from ..model import TextModel
from ..pieces import Answer, Piece, TextOptions, TokenDetail
from ..prompts import Prompts, Spelled, check_fits
from ..sse import DONE, in_band
from ..structured.shapes import AnswerShape, Shapes
from ..structured.verdicts import SchemaJudge
from ..tenants import Tenants
from .answer import Answerer
from .fields import parse, wrong_type
from .logprobs import CompletionLogprobs
from .sampling import NOT_SERVED_ANYWHERE, SamplingFields

DEFAULT_MAX_TOKENS = 16
NOT_SERVED = NOT_SERVED_ANYWHERE | {"suffix": "the model cannot fill in the middle"}

_STRINGS = {"type": "array", "items": {"type": "string"}}
_IDS = {"type": "array", "items": {"type": "integer"}}
PromptField = Annotated[
    object, WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS, _IDS, {"type": "array", "items": _IDS}]})
]
Prompt = str | list[int]


class CompletionRequest(SamplingFields):
    prompt: PromptField
    max_tokens: int = Field(DEFAULT_MAX_TOKENS, ge=0)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)
    best_of: int | None = Field(None, ge=1)

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if self.best_of is not None and self.best_of != self.n:
            raise unsupported("best_of", "only a value equal to 'n' is served")
        if self.store:
            raise unsupported("store", "answers to chats and responses are kept")

    def check_beside_grammar(self) -> None:
        super().check_beside_grammar()
        if self.max_tokens == 0:
            raise InvalidRequest(
                "With 'max_tokens' of 0 there is no answer to be shaped.", param="max_tokens"
            )

    @property
    def scores_prompt(self) -> bool:
        return self.echo and self.logprobs is not None


def read_prompts(value: object, limits: Limits) -> list[Prompt]:
    """The four forms of `prompt` as a list of texts or token ids. Raises InvalidRequest."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string, an array of strings or token ids", value)
    if not value:
        raise InvalidRequest("Invalid 'prompt': empty array.", param="prompt", code="empty_array")
    if _is_ids(value):
        return [value]
    if len(value) > limits.max_prompts:
        raise InvalidRequest(
            f"Invalid 'prompt': at most {limits.max_prompts} prompts, but got {len(value)}.",
            param="prompt",
            code="array_above_max_length",
        )
    first = value[0]
    for i, item in enumerate(value):
        if isinstance(item, str) and isinstance(first, str):
            continue
        if not (isinstance(item, list) and isinstance(first, list) and _is_ids(item)):
            raise wrong_type(
                f"prompt[{i}]", "what the first item is: all strings, or all arrays of token ids", item
            )
        if not item:
            raise InvalidRequest(
                f"Invalid 'prompt[{i}]': empty array.", param=f"prompt[{i}]", code="empty_array"
            )
    return value


async def prompt_ids(
    prompts: Prompts, prompt: Prompt, context: int, *, opening: list[int] | None = None
) -> list[int]:
    """The token ids of one prompt behind those of `opening`: there a text goes on, and nothing that begins one is put before
    it. Raises InvalidRequest."""
    if isinstance(prompt, str):
        ids = await prompts.text(prompt, context, add_special=not opening)
    else:
        check_fits(len(prompt), context, param="prompt")
        prompts.check_ids(prompt, param="prompt")
        ids = prompt
    if not opening:
        return ids
    check_fits(len(opening) + len(ids), context, param="prompt")
    return [*opening, *ids]


def _is_ids(value: list[object]) -> bool:
    return all(type(item) is int for item in value)


@dataclass(frozen=True, slots=True)
class Completions:
    model: TextModel
    prompts: Prompts
    shapes: Shapes
    answerer: Answerer
    tenants: Tenants
    openings: Openings
    limits: Limits

    async def handle(self, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        asked = parse(CompletionRequest, await read_json(request, self.limits), NOT_SERVED)
        self.model.check_name(asked.model)
        asked.check(self.limits)
        ask = read_ask(asked, self.tenants.policy(caller.tenant.id))
        if asked.scores_prompt:
            ask = ask.scoring()
        texts = read_prompts(asked.prompt, self.limits)
        stops = asked.stops(self.limits)
        info = self.answerer.desk.info()
        with self.answerer.desk.place(caller, len(texts)) as place:
            async with caller.in_time():
                opening, ask = await self.openings.of(caller.tenant.id, ask)
                shape = await self.shapes.read(asked)
                asked.check_prewarm(
                    *([] if shape is None else [shape.source.param]),
                    *([] if asked.logprobs is None else ["logprobs"]),
                    *(["echo"] if asked.echo else []),
                )
                if shape is not None:
                    asked.check_beside_grammar()
                prompts = [
                    await prompt_ids(self.prompts, text, info.max_model_len, opening=opening.ids)
                    for text in texts
                ]
                jobs = [self._job(asked, prompt, stops, info, shape) for prompt in prompts]
                echoes = [await self.prompts.spell(job.prompt) for job in jobs] if asked.echo else []
            response_id = f"cmpl-{uuid.uuid4().hex}"
            jobs = [
                replace(self._asking(caller, job, ask), origin=Origin(response_id=response_id, index=index))
                for index, job in enumerate(jobs)
            ]
            writer = CompletionWriter(
                asked,
                self.model,
                echoes,
                response_id=response_id,
                told=ask if tells_cache(request, ask) else None,
                created=caller.created,
                fingerprint=info.model_digest[:12],
            )
            return await self.answerer.answer(
                request,
                place,
                jobs,
                writer,
                stream=asked.stream,
                judge=None if shape is None else SchemaJudge(shape, self.shapes.metrics),
            )

    def _asking(self, caller: Caller, job: Job, ask: CacheAsk) -> Job:
        """A prompt has one boundary, its end."""
        marks = [Mark(len(job.prompt))] if ask.makes_entries else []
        return self.answerer.desk.asking(caller, job, ask, marks)

    def _job(
        self,
        asked: CompletionRequest,
        prompt: list[int],
        stops: tuple[str, ...],
        info: EngineInfo,
        shape: AnswerShape | None,
    ) -> Job:
        left = info.max_model_len - len(prompt)
        given = "max_tokens" in asked.model_fields_set
        max_tokens = asked.max_tokens if given else min(asked.max_tokens, left)
        check_fits(len(prompt), info.max_model_len, param="prompt", completion=max_tokens)
        return Job(
            prompt=prompt,
            sampling=asked.params(
                self.model.tokenizer,
                max_tokens=max(max_tokens, 1),
                logprobs=asked.logprobs,
                prompt_logprobs=asked.logprobs if asked.echo else None,
            ),
            text=TextOptions(
                stops=stops,
                include_stop=asked.include_stop_str_in_output,
                min_tokens=asked.min_tokens,
                logprobs=asked.logprobs is not None,
                prompt_logprobs=asked.scores_prompt,
                ids=asked.return_token_ids,
                continues_prompt=True,
                discard=max_tokens == 0,
            ),
            n=asked.n,
            priority=asked.priority,
            grammar=None if shape is None else shape.grammar,
            source=None if shape is None else shape.source,
        )


class CompletionWriter:
    """Completions on the wire. `echoes` holds each prompt's text when it is to come first, else nothing."""

    def __init__(
        self,
        asked: CompletionRequest,
        model: TextModel,
        echoes: Sequence[Spelled],
        *,
        response_id: str,
        told: CacheAsk | None,
        created: int,
        fingerprint: str,
    ) -> None:
        """`told`: what was asked of the cache, if the answer is to say what came of it."""
        self._asked = asked
        self._told = told
        self._tokenizer = model.tokenizer
        self._echoes = echoes
        self._common = {
            "id": response_id,
            "object": "text_completion",
            "created": created,
            "model": model.id,
            "system_fingerprint": f"fp_{fingerprint}",
        }
        self._opening = b"data: " + orjson.dumps(self._common)[:-1] + b',"choices":['
        self._closing = b'],"usage":null}\n\n' if asked.include_usage else b"]}\n\n"
        self._begun: set[int] = set()  # choices that have a chunk
        self._scored: dict[int, CompletionLogprobs] = {}  # by prompt: its choices have the same

    # -- streamed ------------------------------------------------------------------------------------------------------

    def head(self, generation: Generation) -> bytes:
        return (
            b""  # an echo waits for the log-probabilities of the prompt, and these come with the first piece
        )

    def pieces(self, first: int, generation: Generation, pieces: Sequence[Piece]) -> bytes:
        return b"".join([self._piece(first, generation, piece) for piece in pieces])

    def tail(self, generations: Sequence[Generation]) -> bytes:
        if not self._asked.include_usage:
            return DONE
        last = {"usage": total(generations).wire(), **cache_details(self._told, generations)}
        return self._opening + b"]," + orjson.dumps(last)[1:] + b"\n\n" + DONE

    def failed(self, error: ApiError) -> bytes:
        return in_band(error)

    def _piece(self, first: int, generation: Generation, piece: Piece) -> bytes:
        index = first + piece.index
        begins = index not in self._begun
        choices: list[dict[str, object]] = []
        if begins and self._asked.echo:
            choices.append(self._echo(index, generation))
        if piece.text or piece.details:
            shift = len(self._echo_of(index).text) if self._asked.echo else 0
            logprobs = self._logprobs(piece.details, shift)
            choices.append(self._choice(index, piece.text, logprobs, None, piece.details))
        if piece.finish is not None:
            choices.append(self._choice(index, "", None, piece.finish, (), report=piece.report))
        if begins and self._asked.return_token_ids:
            choices[0]["prompt_token_ids"] = generation.prompt
        self._begun.add(index)
        beside = {} if piece.finish is None else cache_details(self._told, [generation])
        return b"".join(
            [self._chunk(choice, beside if choice["finish_reason"] else {}) for choice in choices]
        )

    def _echo(self, index: int, generation: Generation) -> dict[str, object]:
        logprobs = self._prompt_logprobs(index, generation)
        wire = None if logprobs is None else logprobs.wire()
        return self._choice(index, self._echo_of(index).text, wire, None, ())

    def _chunk(self, choice: dict[str, object], beside: Mapping[str, object]) -> bytes:
        frame = self._opening + orjson.dumps(choice)
        return frame + (b"]," + orjson.dumps(beside)[1:-1] + self._closing[1:] if beside else self._closing)

    # -- whole ---------------------------------------------------------------------------------------------------------

    def whole(self, generations: Sequence[Generation], answers: Sequence[Sequence[Answer]]) -> bytes:
        choices = [
            self._whole_choice(self._asked.n * i + answer.index, generation, answer)
            for i, (generation, group) in enumerate(zip(generations, answers, strict=True))
            for answer in group
        ]
        body = {**self._common, "choices": choices, "usage": total(generations).wire()}
        return orjson.dumps({**body, **cache_details(self._told, generations)})

    def _whole_choice(self, index: int, generation: Generation, answer: Answer) -> dict[str, object]:
        echo = self._echo_of(index).text if self._asked.echo else ""
        wire = None
        if self._asked.logprobs is not None:
            logprobs = self._prompt_logprobs(index, generation) or CompletionLogprobs(self._tokenizer)
            logprobs.add(answer.details, len(echo))
            wire = logprobs.wire()
        choice = self._choice(
            index, echo + answer.text, wire, answer.finish, answer.details, report=answer.report
        )
        if self._asked.return_token_ids:
            choice["prompt_token_ids"] = generation.prompt
        return choice

    # -- both ----------------------------------------------------------------------------------------------------------

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: dict[str, object] | None,
        finish: str | None,
        details: Sequence[TokenDetail],
        *,
        report: dict[str, object] | None = None,
    ) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        if self._asked.return_token_ids:
            choice["token_ids"] = [detail.id for detail in details]
        if report is not None:
            choice["schema_check"] = report
        return choice

    def _logprobs(self, details: Sequence[TokenDetail], shift: int) -> dict[str, object] | None:
        if self._asked.logprobs is None:
            return None
        logprobs = CompletionLogprobs(self._tokenizer)
        logprobs.add(details, shift)
        return logprobs.wire()

    def _prompt_logprobs(self, index: int, generation: Generation) -> CompletionLogprobs | None:
        if not self._asked.scores_prompt or generation.prompt_logprobs is None:
            return None
        scored = self._scored.get(index // self._asked.n)
        if scored is None:
            scored = self._scored[index // self._asked.n] = CompletionLogprobs(self._tokenizer)
            scored.add_prompt(generation.prompt, self._echo_of(index).offsets, generation.prompt_logprobs)
        return scored.copy()

    def _echo_of(self, index: int) -> Spelled:
        return self._echoes[index // self._asked.n]

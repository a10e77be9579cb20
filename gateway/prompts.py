"""From what a client wrote to token ids, within the model's context and off the event loop when it takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .chat_template import Rendered, ToolPrompt
from .detokenizer import Detokenizer
from .errors import ApiError, InvalidRequest
from .known_ids import KnownIds
from .model import TextModel
from .text_threads import TextThreads
from .tokenizer import Tokenizer

INLINE_CHARS = 4_000
"""Shorter texts are tokenised in place: that takes less than a millisecond, a thread's round trip about a tenth."""

MESSAGE_CHARS = 64
"""Putting a message through a template takes as long as tokenising so many characters, whatever it says."""

PROBE_CHARS_PER_TOKEN = 16
PROBE_SLACK = 64
"""A text longer than `16 * context` characters is measured by its beginning first: if that alone overflows, the rest need
not be read. The slack covers tokens that the cut splits."""

Message = dict[str, object]
_NOTHING: Mapping[str, object] = {}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spelled:
    """`offsets[i]` is the character at which token `i` begins."""

    text: str
    offsets: list[int]


class Prompts:
    def __init__(self, model: TextModel, threads: TextThreads) -> None:
        self._model = model
        self._threads = threads

    async def chat(
        self,
        messages: list[Message],
        context: int,
        *,
        add_generation_prompt: bool,
        continue_final: bool,
        tools: ToolPrompt | None = None,
        variables: Mapping[str, object] = _NOTHING,
        param: str = "messages",
        known: KnownIds | None = None,
    ) -> Rendered:
        """The rendered conversation, which came in the field `param` and goes on from the turn `known`. Raises TemplateError, InvalidRequest when it does not
        fit into `context`."""
        template = self._model.template
        if template is None:
            raise ApiError(
                400,
                f"The model '{self._model.id}' has no chat template; use /v1/completions.",
                param="model",
                code="no_chat_template",
            )
        texts = list(_texts(messages))
        if tools is not None:
            texts.append(tools.text)
        await self._probe(texts, context, param=param)

        def encode() -> Rendered:
            return template.encode(
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final=continue_final,
                tools=tools,
                variables=variables,
                known=known,
            )

        prompt = await self._run(encode, sum(map(len, texts)) + MESSAGE_CHARS * len(messages))
        check_fits(len(prompt.ids), context, param=param)
        return prompt

    async def text(self, text: str, context: int, *, add_special: bool = True) -> list[int]:
        """A plain prompt. Raises InvalidRequest when it is empty or does not fit into `context`."""
        await self._probe([text], context, param="prompt")
        ids = await self.encode(text, add_special=add_special)
        if not ids:
            raise InvalidRequest("The prompt is empty.", param="prompt")
        check_fits(len(ids), context, param="prompt")
        return ids

    async def encode(self, text: str, *, add_special: bool) -> list[int]:
        return await self._run(lambda: self._model.tokenizer.encode(text, add_special=add_special), len(text))

    async def decode(self, ids: list[int]) -> str:
        return await self._run(lambda: self._model.tokenizer.decode(ids, skip_special=False), len(ids))

    async def spell(self, ids: list[int]) -> Spelled:
        """The text of a prompt, and where in it each token begins."""
        return await self._run(lambda: _spell(ids, self._model.tokenizer), len(ids))

    def check_ids(self, ids: Sequence[int], *, param: str) -> None:
        """Raises InvalidRequest unless every id is in the vocabulary: an id outside would read foreign memory."""
        size = self._model.tokenizer.vocab_size
        for position, token in enumerate(ids):
            if not 0 <= token < size:
                raise InvalidRequest(
                    f"Invalid token id {token} at position {position}: ids are 0 to {size - 1}.", param=param
                )

    async def _probe(self, texts: list[str], context: int, *, param: str) -> None:
        budget = PROBE_CHARS_PER_TOKEN * context
        if sum(map(len, texts)) <= budget:
            return
        beginning = "".join(texts)[:budget]
        ids = await self._run(lambda: self._model.tokenizer.encode(beginning, add_special=False), budget)
        if len(ids) > context + PROBE_SLACK:
            raise too_long(f"at least {len(ids) - PROBE_SLACK} tokens", context, param=param)

    async def _run(self, work: Callable[[], T], chars: int) -> T:
        return work() if chars <= INLINE_CHARS else await self._threads.run(work)


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    """What may be long in messages: their contents, thoughts, and the arguments of calls."""
    for message in messages:
        for part in ("content", "reasoning_content"):
            if isinstance(text := message.get(part), str):
                yield text
        if isinstance(calls := message.get("tool_calls"), list):
            yield from (call["function"]["arguments"] for call in calls)


def check_fits(prompt: int, context: int, *, param: str, completion: int = 1) -> None:
    """Raises InvalidRequest (context_length_exceeded) unless prompt and completion fit into the context together."""
    if prompt > context:
        raise too_long(f"{prompt} tokens", context, param=param)
    if prompt == context:
        raise too_long(f"{prompt} tokens, which leaves no room for an answer", context, param=param)
    if prompt + completion > context:
        raise InvalidRequest(
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{prompt + completion} tokens ({prompt} in the {param}, {completion} in the completion). "
            f"Please reduce the length of the {param} or completion.",
            param=param,
            code="context_length_exceeded",
        )


def too_long(length: str, context: int, *, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"This model's maximum context length is {context} tokens. However, your {param} resulted in {length}. "
        f"Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )


def _spell(ids: list[int], tokenizer: Tokenizer) -> Spelled:
    detokenizer = Detokenizer(tokenizer)
    pieces: list[str] = []
    offsets: list[int] = []
    length = 0
    for token in ids:
        offsets.append(length)
        pieces.append(detokenizer.push((token,)))
        length += len(pieces[-1])
    pieces.append(detokenizer.flush())
    return Spelled("".join(pieces), offsets)

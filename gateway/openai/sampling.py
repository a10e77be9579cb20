"""Request fields that several endpoints share, and how they become the engine's `SamplingParams`."""

from __future__ import annotations

import secrets
from typing import Annotated

from pydantic import Field, WithJsonSchema

from engine.request import SamplingParams

from ..caching.fields import CacheFields
from ..config import Limits
from ..errors import InvalidRequest, unsupported
from ..structured.asked import ShapeFields
from ..tokenizer import Tokenizer
from .fields import Wire, kind, wrong_type

MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_METADATA = 16
MAX_METADATA_NAME = 64

Stop = Annotated[
    object, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
]
Numbers = Annotated[object, WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}})]
Labels = Annotated[object, WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}})]
TokenIds = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "integer"}})]

NOT_SERVED_ANYWHERE = dict.fromkeys(
    (
        "allowed_token_ids",
        "bad_words",
        "documents",
        "lora_path",
        "moderation",
        "prompt_embeds",
        "prompt_logprobs",
        "truncate_prompt_tokens",
        "use_beam_search",
    ),
    "",
)
"""Fields of OpenAI, vLLM and SGLang that would change the answer and are not served, with a reason if there is one to give."""


class StreamOptions(Wire):
    include_usage: bool = False
    include_obfuscation: bool = False


class DrawFields(Wire):
    """How tokens are drawn: OpenAI's fields, and vLLM's extensions."""

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: Numbers = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    # vLLM's extensions
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=100)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    stop_token_ids: TokenIds = None
    priority: int = Field(0, ge=0, le=1000, description="a request can give way to others, not overtake them")

    def check_beside_grammar(self) -> None:
        """A grammar decides where the answer ends. Raises InvalidRequest for what would have it end elsewhere."""
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise InvalidRequest(
                    f"'{name}' cannot be used where the answer's form is given: that says where the answer ends.",
                    param=name,
                    code="conflicting_parameters",
                )

    def params(
        self,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """Everything resolved, nothing for the engine to guess. Raises InvalidRequest."""
        if self.min_tokens > max_tokens:
            raise InvalidRequest(
                f"Invalid 'min_tokens': {self.min_tokens} is more than the {max_tokens} tokens allowed.",
                param="min_tokens",
            )
        own_stops = _token_ids(self.stop_token_ids, tokenizer.vocab_size)
        ends = () if self.ignore_eos else tokenizer.stop_ids
        return SamplingParams(
            max_tokens=max_tokens,
            # engines take an unsigned seed; a negative one is the same 64 bits
            seed=secrets.randbits(63) if self.seed is None else self.seed % 2**64,
            # a nucleus of probability 0 holds the best token alone
            temperature=0.0 if self.top_p == 0 else self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p or 1.0,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=_logit_bias(self.logit_bias, tokenizer.vocab_size),
            stop_token_ids=tuple(dict.fromkeys((*ends, *own_stops))),
            min_tokens=self.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class BookkeepingFields(Wire):
    """What changes no answer."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: Labels = None
    service_tier: str = "auto"

    def check_bookkeeping(self, limits: Limits) -> None:
        """Raises InvalidRequest."""
        for name in ("user", "safety_identifier"):
            _check_length(name, getattr(self, name), limits.max_string)
        read_metadata(self.metadata, limits.max_string)
        if self.service_tier not in {"auto", "default"}:
            raise unsupported("service_tier", "there is one tier")


class SamplingFields(DrawFields, BookkeepingFields, ShapeFields, CacheFields):
    """What chat and completions share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1)
    stop: Stop = None
    include_stop_str_in_output: bool = False
    return_token_ids: bool = False
    store: bool = False

    def check(self, limits: Limits) -> None:
        """What a type cannot say. Raises InvalidRequest."""
        self.check_bookkeeping(limits)
        self.check_cache(limits.max_string)
        if self.n > limits.max_choices:
            raise InvalidRequest(
                f"Invalid 'n': expected a value <= {limits.max_choices}, but got {self.n} instead.",
                param="n",
                code="integer_above_max_value",
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                param="stream_options",
            )
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise unsupported("stream_options.include_obfuscation")

    def check_prewarm(self, *asking: str) -> None:
        """A request that only prepares the cache has no answer to stream, choose from or shape. `asking` are further fields
        of it that ask something of the answer. Raises InvalidRequest."""
        if not self.prewarms:
            return
        names = [*(["stream"] if self.stream else []), *(["n"] if self.n > 1 else []), *asking]
        if names:
            raise InvalidRequest(
                f"'{names[0]}' cannot be used with 'prompt_cache_options.prewarm': nothing is answered.",
                param=names[0],
                code="conflicting_parameters",
            )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def stops(self, limits: Limits) -> tuple[str, ...]:
        """The stop strings. Raises InvalidRequest."""
        if self.stop is None:
            return ()
        items = [self.stop] if isinstance(self.stop, str) else self.stop
        if not isinstance(items, list):
            raise wrong_type("stop", "a string or an array of strings", self.stop)
        if len(items) > limits.max_stops:
            raise InvalidRequest(
                f"Invalid 'stop': at most {limits.max_stops} stop strings, but got {len(items)}.",
                param="stop",
                code="array_above_max_length",
            )
        for position, item in enumerate(items):
            if not isinstance(item, str):
                raise wrong_type(f"stop[{position}]", "a string", item)
            if not item:
                raise InvalidRequest("Invalid 'stop': a stop string is empty.", param="stop")
            _check_length("stop", item, limits.max_stop_length)
        return tuple(items)


def _check_length(param: str, value: str | None, limit: int) -> None:
    if value is not None and len(value) > limit:
        raise InvalidRequest(
            f"Invalid '{param}': longer than {limit} characters.", param=param, code="string_above_max_length"
        )


def read_metadata(metadata: object, max_string: int) -> dict[str, str]:
    """Up to 16 texts by name; None is none. Raises InvalidRequest."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise wrong_type("metadata", "an object", metadata)
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(
            f"Invalid 'metadata': at most {MAX_METADATA} entries, but got {len(metadata)}.",
            param="metadata",
            code="object_above_max_properties",
        )
    for key, value in metadata.items():
        _check_length("metadata", key, MAX_METADATA_NAME)
        if not isinstance(value, str):
            raise wrong_type(f"metadata.{key}", "a string", value)
        _check_length(f"metadata.{key}", value, max_string)
    return metadata


def _logit_bias(bias: object, vocab_size: int) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, dict):
        raise wrong_type("logit_bias", "an object", bias)
    if len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(f"Invalid 'logit_bias': at most {MAX_LOGIT_BIAS} entries.", param="logit_bias")
    return {_token_id(key, vocab_size): _bias(value) for key, value in bias.items()}


def _token_id(key: str, vocab_size: int) -> int:
    # isdecimal alone would let other scripts' digits through; int() alone would let "+1", " 1" and "1_0" through
    if not (key.isascii() and key.isdecimal() and len(key) <= 9) or int(key) >= vocab_size:
        raise InvalidRequest(
            f"Invalid key in 'logit_bias': '{key[:32]}' is not a token id of this model (0 to {vocab_size - 1}).",
            param="logit_bias",
        )
    return int(key)


def _bias(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(
            f"Invalid value in 'logit_bias': expected a number, but got {kind(value)} instead.",
            param="logit_bias",
            code="invalid_type",
        )
    if not -100 <= value <= 100:
        raise InvalidRequest(
            f"Invalid value in 'logit_bias': {value} is not within -100 to 100.", param="logit_bias"
        )
    return float(value)


def _token_ids(ids: object, vocab_size: int) -> list[int]:
    if ids is None:
        return []
    if not isinstance(ids, list):
        raise wrong_type("stop_token_ids", "an array of integers", ids)
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"Invalid 'stop_token_ids': at most {MAX_STOP_TOKEN_IDS} ids.", param="stop_token_ids"
        )
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise wrong_type("stop_token_ids", "an array of integers", token)
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"Invalid 'stop_token_ids': {token} is not a token id of this model (0 to {vocab_size - 1}).",
                param="stop_token_ids",
            )
    return ids

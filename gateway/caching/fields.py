"""The fields of a request that ask something of the prompt cache, as they come over the wire.

OpenAI's `prompt_cache_key`, `prompt_cache_options`, `prompt_cache_retention` and, on parts of messages,
`prompt_cache_breakpoint`; `cache_salt` as vLLM and SGLang have it; and an object of our own, `cache`. What they come down
to is an `ask.CacheAsk`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from cache.lease import Pin, Tier

from ..errors import InvalidRequest, unsupported
from ..openai.fields import Wire, missing, unknown, wrong_type
from .lifetimes import read_ttl

Mode = Literal["implicit", "explicit"]
Bypass = Literal["read", "write", "all"]

MAX_KEY = 256
"""Characters of a `prompt_cache_key`; OpenAI documents 64 and takes more."""

MAX_TAG = 64

Text = Annotated[object, WithJsonSchema({"type": "string"})]
Time = Annotated[object, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "const": 0}]})]


class PromptCacheOptions(Wire):
    """OpenAI's."""

    mode: Mode = Field("implicit", description="explicit: cache up to the breakpoints only")
    ttl: Text = Field(None, description="least lifetime: 5m, 30m, 1h, 12h, 24h or <n>s; default 30m")
    prewarm: bool = Field(False, description="bring the prompt into the cache and answer nothing")
    comparison_response_id: Text = Field(
        None, description="with /v1/responses: say what of this one was not found again"
    )


class CacheObjectField(Wire):
    """What else there is to ask: `cache` in a request."""

    id: str | None = Field(None, description="a cache object that the prompt begins with")
    pin: Pin | None = Field(None, description="soft goes last of all; hard never, up to the tenant's share")
    priority: int | None = Field(
        None, ge=0, le=100, description="among equals the lower goes first; default 50"
    )
    ttl: Text = Field(None, description="as prompt_cache_options.ttl")
    tool_pause_ttl: Time = Field(None, description="how long a conversation waits for its tools; '0s' is off")
    bypass: Bypass | None = Field(None, description="what of the cache not to use")
    tag: str | None = Field(None, description="a word of your own to flush by")
    lowest: Tier | None = Field(None, description="the lowest tier the pages may go to; default disk")


class CacheFields(Wire):
    """The same for every endpoint that has a prompt."""

    prompt_cache_key: str | None = Field(
        None, description="groups requests: for statistics and flushes, or for a cache of their own"
    )
    prompt_cache_options: PromptCacheOptions | None = Field(None, description="mode, ttl, prewarm")
    prompt_cache_retention: Text = Field(None, description="in_memory or 24h: how long pages last at most")
    cache_salt: str | None = Field(None, description="only requests with the same salt share prefixes")
    cache: CacheObjectField | None = Field(
        None, description="id, pin, priority, ttl, tool_pause_ttl, bypass, tag, lowest"
    )

    def check_cache(self, max_string: int, *, compares: bool = False) -> None:
        """What a type cannot say, besides what `ask.read_ask` finds. `compares`: the answer can say how it compares with
        another. Raises InvalidRequest."""
        _check_label("prompt_cache_key", self.prompt_cache_key, MAX_KEY)
        _check_label("cache_salt", self.cache_salt, max_string)
        if (compared := self.options.comparison_response_id) is not None:
            at = "prompt_cache_options.comparison_response_id"
            if not compares:
                raise unsupported(
                    at, "answers are compared by /v1/caches/explain, or with the 'x_cache' of an answer"
                )
            if not isinstance(compared, str):
                raise wrong_type(at, "a string", compared)
            _check_label(at, compared, max_string)
        if self.cache is not None:
            _check_label("cache.id", self.cache.id, max_string)
            _check_label("cache.tag", self.cache.tag, MAX_TAG)

    @property
    def asks_of_cache(self) -> bool:
        """Whether any of the fields is there."""
        return any(getattr(self, name) is not None for name in CacheFields.model_fields)

    @property
    def prewarms(self) -> bool:
        return self.options.prewarm

    @property
    def options(self) -> PromptCacheOptions:
        """With what holds where nothing was said."""
        return self.prompt_cache_options or PromptCacheOptions.model_validate({})

    @property
    def vendor(self) -> CacheObjectField:
        return self.cache or CacheObjectField.model_validate({})


def read_breakpoint(value: object, at: str) -> float | None:
    """The lifetime that a `prompt_cache_breakpoint` asks for by itself; None is the request's. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise wrong_type(at, "an object", value)
    given = {name: field for name, field in value.items() if field is not None}
    for name in given.keys() - {"mode", "ttl"}:
        raise unknown(f"{at}.{name}")
    if "mode" not in given:
        raise missing(f"{at}.mode")
    if given["mode"] != "explicit":
        if not isinstance(given["mode"], str):
            raise wrong_type(f"{at}.mode", "a string", given["mode"])
        raise InvalidRequest(f"Invalid value for '{at}.mode': it is always 'explicit'.", param=f"{at}.mode")
    return None if "ttl" not in given else read_time(given["ttl"], f"{at}.ttl")


def read_time(value: object, at: str) -> float:
    """Seconds. Raises InvalidRequest."""
    if not isinstance(value, str):
        raise wrong_type(at, "a string", value)
    return read_ttl(value, param=at)


def _check_label(param: str, value: str | None, limit: int) -> None:
    if value is None:
        return
    if not value:
        raise InvalidRequest(f"Invalid '{param}': it is empty.", param=param)
    if len(value) > limit:
        raise InvalidRequest(
            f"Invalid '{param}': longer than {limit} characters.", param=param, code="string_above_max_length"
        )

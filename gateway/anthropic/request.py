"""The body of POST /v1/messages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from ..caching.fields import CacheFields, CacheObjectField
from ..errors import InvalidRequest, unsupported
from ..openai.fields import Wire, wrong_type

NOT_SERVED = {
    "container": "",
    "context_management": "",
    "inference_geo": "",
    "mcp_servers": "",
    "speed": "",
}

_OBJECTS = {"type": "array", "items": {"type": "object"}}
Objects = Annotated[object, WithJsonSchema(_OBJECTS)]
Object = Annotated[object, WithJsonSchema({"type": "object"})]
TextOrObjects = Annotated[object, WithJsonSchema({"anyOf": [{"type": "string"}, _OBJECTS]})]
Texts = Annotated[object, WithJsonSchema({"type": "array", "items": {"type": "string"}})]


class CacheControl(Wire):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class Thinking(Wire):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1024, description="taken and not held to")
    display: str | None = None


class OutputConfig(Wire):
    format: Object = Field(None, description="json_schema")
    effort: str | None = Field(None, description="for models whose chat template asks for it")


class Metadata(Wire):
    user_id: str | None = None


class Diagnostics(Wire):
    previous_message_id: str | None = None


class CountTokensRequest(Wire):
    """What a prompt is made of."""

    model: str
    messages: Objects
    system: TextOrObjects = Field(None, description="a text, or text blocks")
    tools: Objects = Field(None, description="tools of the client's own")
    tool_choice: Object = Field(None, description="auto, any, tool or none")
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = Field(None, description="cache up to the last block")
    chat_template_kwargs: Object = Field(None, description="variables for the chat template")


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(ge=0, description="0: prepare the cache and answer nothing")
    stream: bool = False
    stop_sequences: Texts = None
    temperature: float = Field(1.0, ge=0, le=1)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=0)
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"
    diagnostics: Diagnostics | None = None
    # extensions
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    cache: CacheObjectField | None = Field(None, description="as in chat, but for the time to live")
    cache_salt: str | None = Field(None, description="only requests with the same salt share prefixes")

    @property
    def prewarms(self) -> bool:
        return self.max_tokens == 0

    @property
    def stops(self) -> tuple[str, ...]:
        """Raises InvalidRequest."""
        given = self.stop_sequences or []
        if not isinstance(given, list):
            raise wrong_type("stop_sequences", "an array of strings", given)
        for position, stop in enumerate(given):
            if not isinstance(stop, str):
                raise wrong_type(f"stop_sequences[{position}]", "a string", stop)
            if not stop:
                raise InvalidRequest(
                    f"stop_sequences[{position}]: a stop sequence is empty.", param="stop_sequences"
                )
        return tuple(given)

    def check(self) -> None:
        """What a type cannot say. Raises InvalidRequest."""
        choice = self.tool_choice.get("type") if isinstance(self.tool_choice, dict) else None
        asking = {
            "stream": self.stream,
            "thinking": self.thinking is not None and self.thinking.type != "disabled",
            "output_config.format": self.output_config is not None and self.output_config.format is not None,
            "tool_choice": choice in ("any", "tool"),
        }
        for name, asks in asking.items():
            if self.prewarms and asks:
                raise InvalidRequest(f"{name}: cannot be used with max_tokens of 0.", param=name)
        if self.diagnostics is not None and self.diagnostics.previous_message_id is not None:
            raise unsupported("diagnostics", "answers are compared by /v1/caches/explain")

    def cache_fields(self) -> CacheFields:
        """What it asks of the cache besides its breakpoints, in OpenAI's fields."""
        asked: dict[str, object] = {"cache": self.cache, "cache_salt": self.cache_salt}
        if self.prewarms:
            asked["prompt_cache_options"] = {"prewarm": True}
        return CacheFields.model_validate(asked)

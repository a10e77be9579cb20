"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from ..caching.fields import CacheFields
from ..config import Limits
from ..errors import InvalidRequest, unsupported
from ..openai.fields import Wire, wrong_type
from ..openai.sampling import BookkeepingFields, DrawFields, Labels

NOT_SERVED = {
    "access_programs": "",
    "background_options": "",
    "context_management": "",
    "image": "",
    "moderation": "",
    "prompt": "prompts are not kept here",
}

Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Those of tools that are not served include nothing."""

_OBJECTS = {"type": "array", "items": {"type": "object"}}
Input = Annotated[object, WithJsonSchema({"anyOf": [{"type": "string"}, _OBJECTS]})]
Objects = Annotated[object, WithJsonSchema(_OBJECTS)]
Object = Annotated[object, WithJsonSchema({"type": "object"})]
TextOrObject = Annotated[object, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})]


class TextOptionsField(Wire):
    format: Object = Field(None, description="text, json_object or json_schema")
    verbosity: str | None = Field(None, description="'medium'")


class ReasoningField(Wire):
    effort: str | None = Field(None, description="for models whose chat template asks for it")
    summary: str | None = Field(None, description="'auto': thoughts are given as they are")
    generate_summary: str | None = Field(None, description="the old name of summary")


class ResponseStreamOptions(Wire):
    include_obfuscation: bool = False


class ResponseRequest(DrawFields, BookkeepingFields, CacheFields):
    model: str
    input: Input = Field(None, description="a text, or items")
    instructions: str | None = Field(None, description="a system message for this response only")
    previous_response_id: str | None = Field(None, description="the response that this one goes on from")
    conversation: TextOrObject = Field(None, description="the conversation that this one is a turn of")
    store: bool = Field(True, description="keep the response, to be found and gone on from")
    background: bool = Field(False, description="answer as soon as it is queued, and make it then")
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    max_tool_calls: int | None = Field(
        None, ge=1, description="bounds calls of built-in tools: there are none"
    )
    tools: Objects = Field(None, description="functions and custom tools")
    tool_choice: TextOrObject = Field(
        None, description="none, auto, required, a function, a custom tool or allowed_tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false: at most one call in a response")
    text: TextOptionsField | None = Field(None, description="format: what the text has to look like")
    reasoning: ReasoningField | None = None
    include: list[Include] | None = Field(None, description="message.output_text.logprobs")
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] = Field(
        "disabled", description="auto: leave out the oldest items of a conversation that is too long"
    )
    chat_template_kwargs: Object = Field(None, description="variables for the chat template")

    def check(self, limits: Limits) -> None:
        """What a type cannot say. Raises InvalidRequest."""
        self.check_bookkeeping(limits)
        self.check_cache(limits.max_string, compares=True)
        if self.previous_response_id is not None and self.conversation is not None:
            raise InvalidRequest(
                "'previous_response_id' and 'conversation' exclude each other.",
                param="conversation",
                code="conflicting_parameters",
            )
        if self.background and not self.store:
            raise InvalidRequest(
                "'background' needs 'store': its answer has to be found later.",
                param="store",
                code="conflicting_parameters",
            )
        self._check_stream()
        self._check_prewarm()
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise unsupported("text.verbosity", "this model has one")
        if self.reasoning is not None:
            summary = self.reasoning.summary or self.reasoning.generate_summary
            if summary not in (None, "auto"):
                raise unsupported("reasoning.summary", "thoughts are given as they are")

    def _check_stream(self) -> None:
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidRequest(
                "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
                param="stream_options",
            )
        if self.stream_options.include_obfuscation:
            raise unsupported("stream_options.include_obfuscation")

    def _check_prewarm(self) -> None:
        for name in ("stream", "background", "text", "conversation") if self.prewarms else ():
            if getattr(self, name):
                raise InvalidRequest(
                    f"'{name}' cannot be used with 'prompt_cache_options.prewarm': nothing is answered.",
                    param=name,
                    code="conflicting_parameters",
                )

    @property
    def conversation_id(self) -> str | None:
        """Raises InvalidRequest for what is no conversation."""
        value = self.conversation
        if isinstance(value, dict):
            value = value.get("id")
            if not isinstance(value, str):
                raise wrong_type("conversation.id", "a string", value)
        if value is not None and not isinstance(value, str):
            raise wrong_type("conversation", "a string or an object", value)
        return value

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())


class ConversationRequest(Wire):
    """The body of POST /v1/conversations."""

    items: Objects = Field(None, description="what it begins with: at most 20")
    metadata: Labels = None


class UpdateConversation(Wire):
    metadata: Labels = Field(None, description="takes the place of what there was; required")


class AddItems(Wire):
    items: Objects = Field(description="at most 20")

"""Chat messages to prompt ids by the model's own template.

The prompt has exactly the special tokens that the template writes: none that a message spells, and no second BOS.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from .message_adapter import MessageAdapter
from .special_tokens import SpecialTokens
from .template_sandbox import MAX_OUTPUT, Clock, Message, TemplateError, TemplateSandbox
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Message", "TemplateError"]

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTemplate:
    """Immutable; `encode` may run in many threads at once.

    Messages are dicts as in the OpenAI chat API. How they are said to templates that lack roles, tools or parts is
    documented in `message_adapter`.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        clock: Clock = dt.datetime.now,
        max_output: int = MAX_OUTPUT,
    ) -> None:
        """Raises TemplateError if `source` does not compile."""
        self._tokenizer = tokenizer
        self._specials = tokenizer.specials
        self._sandbox = TemplateSandbox(source, tokenizer.special_names, clock=clock, max_output=max_output)
        self._adapter = MessageAdapter(self._sandbox)

    @classmethod
    def load(cls, model_dir: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model directory; None for a model without one. Raises TemplateError if it is unusable."""
        source = _read_source(model_dir)
        return None if source is None else cls(source, tokenizer)

    @classmethod
    def hash(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """ChatML, for the hash model."""
        return cls(_CHATML, tokenizer)

    def encode(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, continue_final: bool = False
    ) -> list[int]:
        """Prompt ids. `continue_final` leaves the last message open for the model to continue, and then there is no
        generation prompt. Raises TemplateError, and TokenizerError for text that is not Unicode."""
        try:
            adapted = self._adapter.adapt(messages)
            if not any(self._specials.touches(text) for text in _texts(adapted)):
                text = self._render(adapted, add_generation_prompt, continue_final)
                return self._tokenizer.encode_segments(self._specials.split(text))
            sentinel = self._absent_character(adapted)
            guarded = [_guarded_message(message, self._specials, sentinel) for message in adapted]
        except RecursionError as error:
            raise TemplateError("the arguments of a tool call are nested too deeply") from error
        text = self._render(guarded, add_generation_prompt, continue_final)
        segments = self._specials.split(text)
        return self._tokenizer.encode_segments(
            [s.replace(sentinel, "") if isinstance(s, str) else s for s in segments]
        )

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, continue_final: bool = False
    ) -> str:
        """The prompt as text, for people: special tokens of the template and of the messages look alike in it."""
        return self._render(self._adapter.adapt(messages), add_generation_prompt, continue_final)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool, continue_final: bool) -> str:
        if not continue_final:
            return self._sandbox.render(messages, add_generation_prompt=add_generation_prompt)
        mark = self._absent_character(messages)
        marked = [*messages[:-1], _with_mark(messages[-1], mark)]
        before, found, _ = self._sandbox.render(marked, add_generation_prompt=False).rpartition(mark)
        if not found:
            raise TemplateError("the chat template does not show the last message, so it cannot be continued")
        return before

    def _absent_character(self, messages: Sequence[Message]) -> str:
        """A private-use character that neither the template nor a message holds."""
        used = set(self._sandbox.source).union(*_texts(messages))
        return next(c for c in map(chr, range(0xF0000, 0xFFFFE)) if c not in used)


_OWN_WORDS = frozenset({"arguments", "content", "function", "id", "name", "text", "type"})
"""Words of the message format itself. Templates look for them, so they stay whole; nobody can choose them."""


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    """Every string of the messages that a user controls."""
    for message in messages:
        for key, value in message.items():
            if key != "role":
                yield from _strings(value)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if value not in _OWN_WORDS:
            yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _guarded_message(message: Message, specials: SpecialTokens, sentinel: str) -> Message:
    return {
        key: value if key == "role" else _guarded(value, specials, sentinel) for key, value in message.items()
    }


def _guarded(value: Any, specials: SpecialTokens, sentinel: str) -> Any:
    if isinstance(value, str):
        return value if value in _OWN_WORDS else specials.broken(value, sentinel)
    if isinstance(value, dict):
        return {_guarded(k, specials, sentinel): _guarded(v, specials, sentinel) for k, v in value.items()}
    if isinstance(value, list):
        return [_guarded(item, specials, sentinel) for item in value]
    return value


def _with_mark(message: Message, mark: str) -> Message:
    if "tool_calls" in message:
        raise TemplateError("a message with tool calls is complete and cannot be continued")
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + mark}
    (part,) = content
    return {**message, "content": [{**part, "text": part["text"] + mark}]}


def _read_source(model_dir: Path) -> str | None:
    file = model_dir / "chat_template.jinja"
    config = model_dir / "tokenizer_config.json"
    try:
        if file.is_file():
            return file.read_text("utf-8")
        entry = orjson.loads(config.read_bytes()).get("chat_template") if config.is_file() else None
        if isinstance(entry, list):
            entry = {item["name"]: item["template"] for item in entry}.get("default")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TemplateError(f"the chat template in {model_dir} cannot be read: {error!r}") from error
    return entry if isinstance(entry, str) else None

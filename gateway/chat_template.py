"""Chat messages to prompt ids by the model's own template.

The prompt has exactly the special tokens that the template writes: none that a message spells, and no second BOS.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from .frames import NO_FRAMES, Frames, learn_frames
from .known_ids import KnownIds, unpack_ids
from .message_adapter import Abilities, CallWriter, MessageAdapter
from .special_tokens import SpecialTokens
from .splicing import Answered, splice
from .template_sandbox import MAX_OUTPUT, Clock, Message, TemplateError, TemplateSandbox
from .tokenizer import Tokenizer
from .tools.families import DEFAULT
from .tools.spelling import call_writer

__all__ = ["ChatTemplate", "Message", "Rendered", "TemplateError", "ToolPrompt"]

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """Tools as a prompt shows them: `listed` for a template that takes a list, `text` for one that knows none. `lines` are
    the tools one by one, as JSON: in the text, and in most templates."""

    listed: Sequence[Message]
    text: str
    lines: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as a prompt: `text` is what `ids` spell, special tokens in letters. `frames` is what the template
    writes around contents. The first `known` ids are those of the turn before; `parted` is the character from which on the
    template says something else than they do, None if it does not. `written` is what the template wrote, where the model
    had said the same in other words."""

    ids: list[int]
    text: str
    frames: Frames = field(default=NO_FRAMES, repr=False)
    known: int = 0
    parted: int | None = None
    written: str | None = None

    @property
    def by_template(self) -> str:
        return self.text if self.written is None else self.written


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
        for_tools: str | None = None,
    ) -> None:
        """`for_tools` is the source for conversations with tools, where the model has one of its own for them.

        Raises TemplateError if a source does not compile.
        """
        self._tokenizer = tokenizer
        self._specials = tokenizer.specials
        self._sandbox = TemplateSandbox(source, tokenizer.special_names, clock=clock, max_output=max_output)
        self._adapter = MessageAdapter(self._sandbox, call_writer(DEFAULT))
        self._frames = learn_frames(
            lambda talk: self._sandbox.render(self._adapter.adapt(talk), add_generation_prompt=True)
        )
        self._for_tools = (
            None
            if for_tools is None
            else ChatTemplate(for_tools, tokenizer, clock=clock, max_output=max_output)
        )

    @classmethod
    def load(cls, model_dir: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model directory; None for a model without one. Raises TemplateError if it is unusable."""
        sources = _read_sources(model_dir)
        default = sources.get("default")
        return None if default is None else cls(default, tokenizer, for_tools=sources.get("tool_use"))

    @classmethod
    def hash(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """ChatML, for the hash model."""
        return cls(_CHATML, tokenizer)

    def writing(self, write_calls: CallWriter) -> ChatTemplate:
        """The same for a model that writes calls so. Matters where the template has no way to show them."""
        twin = copy.copy(self)
        twin._adapter = self._adapter.writing(write_calls)
        if self._for_tools is not None:
            twin._for_tools = self._for_tools.writing(write_calls)
        return twin

    @property
    def source(self) -> str:
        """As the model's author wrote it; the one for conversations with tools if there are two."""
        return self._sandbox.source if self._for_tools is None else self._for_tools.source

    @property
    def can(self) -> Abilities:
        """What that one was seen to do."""
        return self._adapter.can if self._for_tools is None else self._for_tools.can

    def encode(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: ToolPrompt | None = None,
        variables: Mapping[str, Any] = _NOTHING,
        known: KnownIds | None = None,
    ) -> Rendered:
        """The prompt. `continue_final` leaves the last message open for the model to continue, and then there is no
        generation prompt. `variables` are more of what the template may ask for. The ids of the turn
        before, if they are `known`, are taken over as far as they spell the prompt (`splicing`).

        Raises TemplateError, and TokenizerError for text that is not Unicode.
        """
        template = self._speaking_of(tools)
        asked = _Asked(messages, tools, variables)
        try:
            said = template._said(asked)
            sentinel = ""
            if any(self._specials.touches(text) for text in said.texts()):
                sentinel = template._absent_character(said)
                said = said.guarded(self._specials, sentinel)
            opens = _Opens(add_generation_prompt, continue_final)
            prompt = _Guarded(template._render(said, opens), sentinel, self._specials)
            if known is not None:
                return template._go_on(prompt, known, asked)
        except RecursionError as error:
            raise TemplateError("the arguments of a tool call are nested too deeply") from error
        return Rendered(self._tokenizer.encode_segments(prompt.segments()), prompt.text, template._frames)

    def _go_on(self, prompt: _Guarded, known: KnownIds, asked: _Asked) -> Rendered:
        """The prompt with the ids of the turn before."""
        spliced = None
        if known.begins(prompt.text):
            answered = self._answered(prompt, known, asked)
            spliced = None if answered is None else answered.go_on(known, self._tokenizer)
        if spliced is None:
            spliced = splice(prompt.segments(), unpack_ids(known.ids), self._tokenizer)
            return Rendered(spliced.ids, prompt.text, self._frames, spliced.known, spliced.parted)
        text = self._tokenizer.decode(spliced.ids, skip_special=False)
        written = None if text == prompt.text else prompt.text
        return Rendered(spliced.ids, text, self._frames, spliced.known, written=written)

    def _answered(self, prompt: _Guarded, known: KnownIds, asked: _Asked) -> Answered | None:
        """The prompt cut behind the known answer, if the template writes the conversation up to there as it did."""
        if len(asked.messages) <= known.messages:
            return None
        said = self._said(replace(asked, messages=asked.messages[: known.messages + 1]))
        if prompt.sentinel:
            said = said.guarded(self._specials, prompt.sentinel)
        try:
            until = self._render(said, _Opens(generation=False, continues=False))
        except TemplateError:
            return None  # it does not end with an answer, for this template
        start = prompt.place(known.chars)
        if len(until) < start or not prompt.guarded.startswith(until):
            return None
        return Answered(
            asked.messages[known.messages],
            prompt.segments(start, len(until)),
            prompt.segments(len(until)),
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: ToolPrompt | None = None,
        variables: Mapping[str, Any] = _NOTHING,
    ) -> str:
        """The prompt as text, for people: special tokens of the template and of the messages look alike in it."""
        template = self._speaking_of(tools)
        said = template._said(_Asked(messages, tools, variables))
        return template._render(said, _Opens(add_generation_prompt, continue_final))

    def _speaking_of(self, tools: ToolPrompt | None) -> ChatTemplate:
        return self if tools is None or self._for_tools is None else self._for_tools

    def _said(self, asked: _Asked) -> _Said:
        if asked.tools is None:
            return _Said(self._adapter.adapt(asked.messages), None, asked.variables)
        if self._adapter.can.tools:
            return _Said(self._adapter.adapt(asked.messages), asked.tools.listed, asked.variables)
        return _Said(self._adapter.adapt(asked.messages, asked.tools.text), None, asked.variables)

    def _render(self, said: _Said, opens: _Opens) -> str:
        if not opens.continues:
            return self._write(said, said.messages, opens.generation)
        mark = self._absent_character(said)
        marked = [*said.messages[:-1], _with_mark(said.messages[-1], mark)]
        before, found, _ = self._write(said, marked, False).rpartition(mark)
        if not found:
            raise TemplateError("the chat template does not show the last message, so it cannot be continued")
        return before

    def _write(self, said: _Said, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        return self._sandbox.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=said.tools,
            variables=said.variables,
        )

    def _absent_character(self, said: _Said) -> str:
        """A private-use character that neither the template nor anything said holds."""
        used = set(self._sandbox.source).union(*said.texts())
        return next(c for c in map(chr, range(0xF0000, 0xFFFFE)) if c not in used)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A conversation as a request has it."""

    messages: Sequence[Message]
    tools: ToolPrompt | None
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Opens:
    """How a prompt ends: by opening an answer (`generation`), or in the last message, which is to go on (`continues`)."""

    generation: bool
    continues: bool


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A rendered prompt, with the sentinel in what users wrote where that touches special tokens; empty: nothing does."""

    guarded: str
    sentinel: str
    specials: SpecialTokens

    @property
    def text(self) -> str:
        return self._bare(self.guarded)

    def segments(self, start: int = 0, end: int | None = None) -> list[str | int]:
        """A stretch of the guarded text cut at its special tokens, without sentinels."""
        return [
            self._bare(piece) if isinstance(piece, str) else piece
            for piece in self.specials.split(self.guarded[start:end])
        ]

    def place(self, char: int) -> int:
        """Where in the guarded text the bare text's character is."""
        if not self.sentinel:
            return char
        place = 0
        for piece in self.guarded.split(self.sentinel):
            if len(piece) >= char:
                return place + char
            char -= len(piece)
            place += len(piece) + len(self.sentinel)
        return len(self.guarded)

    def _bare(self, text: str) -> str:
        return text.replace(self.sentinel, "") if self.sentinel else text


@dataclass(frozen=True, slots=True)
class _Said:
    """What a template is given of a request."""

    messages: Sequence[Message]
    tools: Sequence[Message] | None
    variables: Mapping[str, Any]

    def texts(self) -> Iterator[str]:
        """Every string that a user controls."""
        for message in self.messages:
            for key, value in message.items():
                if key != "role":
                    yield from _strings(value, _OWN_WORDS)
        yield from _strings(self.tools, _TOOL_WORDS)
        for value in self.variables.values():
            yield from _strings(value, _OWN_WORDS)

    def guarded(self, specials: SpecialTokens, sentinel: str) -> _Said:
        """The same with all those strings broken where they could be part of a special token."""

        def guard(value: Any, own: frozenset[str]) -> Any:
            return _guarded(value, specials, sentinel, own)

        return _Said(
            [
                {key: value if key == "role" else guard(value, _OWN_WORDS) for key, value in message.items()}
                for message in self.messages
            ],
            guard(self.tools, _TOOL_WORDS),
            {name: guard(value, _OWN_WORDS) for name, value in self.variables.items()},
        )


_OWN_WORDS = frozenset({"arguments", "content", "function", "id", "name", "text", "type"})
"""Words of the message format itself. Templates look for them, so they stay whole; nobody can choose them."""


_TOOL_WORDS = _OWN_WORDS | {
    *("description", "parameters", "properties", "required", "items", "enum", "default", "format", "title"),
    *("additionalProperties", "anyOf", "allOf", "oneOf", "not", "const", "pattern", "nullable"),
    *("object", "array", "string", "integer", "number", "boolean", "null", "custom"),
}
"""The same for tools: templates that write a signature look into the schema of its parameters."""


def _strings(value: object, own: frozenset[str]) -> Iterator[str]:
    if isinstance(value, str):
        if value not in own:
            yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key, own)
            yield from _strings(item, own)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, own)


def _guarded(value: Any, specials: SpecialTokens, sentinel: str, own: frozenset[str]) -> Any:
    if isinstance(value, str):
        return value if value in own else specials.broken(value, sentinel)
    if isinstance(value, dict):
        return {
            _guarded(k, specials, sentinel, own): _guarded(v, specials, sentinel, own)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_guarded(item, specials, sentinel, own) for item in value]
    return value


def _with_mark(message: Message, mark: str) -> Message:
    if "tool_calls" in message:
        raise TemplateError("a message with tool calls is complete and cannot be continued")
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + mark}
    (part,) = content
    return {**message, "content": [{**part, "text": part["text"] + mark}]}


def _read_sources(model_dir: Path) -> dict[str, str]:
    """The templates of a model by name: `default`, and perhaps `tool_use`. In files of their own or in the config."""
    file = model_dir / "chat_template.jinja"
    config = model_dir / "tokenizer_config.json"
    try:
        if file.is_file():
            more = (model_dir / "additional_chat_templates").glob("*.jinja")
            return {path.stem: path.read_text("utf-8") for path in more} | {
                "default": file.read_text("utf-8")
            }
        entry = orjson.loads(config.read_bytes()).get("chat_template") if config.is_file() else None
        if isinstance(entry, list):
            return {item["name"]: item["template"] for item in entry}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TemplateError(f"the chat template in {model_dir} cannot be read: {error!r}") from error
    return {"default": entry} if isinstance(entry, str) else {}

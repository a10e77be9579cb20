"""A record as it can be read: what was packed, unpacked, as far as somebody asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import orjson

from ..chat_template import Message, Rendered
from ..tokenizer import Tokenizer
from .records import Record
from .segments import NO_MESSAGE, Segments, Span, TokenMap, locate, plain


class Telling:
    def __init__(self, record: Record, tokenizer: Tokenizer) -> None:
        self.record = record
        self.tokenizer = tokenizer

    @cached_property
    def text(self) -> str:
        """Of the prompt."""
        if self.record.text is not None:
            return self.record.text
        return self.tokenizer.decode(memoryview(self.record.ids).cast("I"), skip_special=False)

    @cached_property
    def answer(self) -> str:
        return self.tokenizer.decode(self.record.answer, skip_special=False)

    @cached_property
    def whole(self) -> str:
        return self.text + self.answer

    @cached_property
    def messages(self) -> Sequence[Message] | None:
        packed = self.record.messages
        return None if packed is None else orjson.loads(packed)

    @cached_property
    def segments(self) -> Segments:
        if self.messages is None:
            return plain(self.text)
        prompt = Rendered([], self.text, self.record.frames)
        return locate(prompt, self.messages, self.record.tools)

    @property
    def tools(self) -> list[str]:
        """One by one, as JSON."""
        return [] if self.record.tools is None else list(self.record.tools.lines)

    @property
    def variables(self) -> dict[str, object]:
        variables: dict[str, object] = orjson.loads(self.record.variables)
        return variables

    @cached_property
    def tokens(self) -> TokenMap:
        return TokenMap(memoryview(self.record.ids).cast("I"), self.text, self.tokenizer)

    def token(self, index: int) -> int:
        """Of the prompt or the answer."""
        return memoryview(self.record.whole).cast("I")[index]

    def message(self, index: int) -> Message | None:
        messages = self.messages or ()
        return messages[index] if 0 <= index < len(messages) else None

    def shown(self, span: Span | None) -> str | None:
        return None if span is None else self.text[span.start : span.end]

    def span_at(self, char: int) -> Span | None:
        """What holds the character, or ends before it."""
        span = self.segments.before(char)
        return span if span is not None and char <= span.end else None

    def around(self, index: int) -> tuple[int, int]:
        """Between which characters the message has to be that far as others are found: its own words among them or not."""
        begin, end = 0, len(self.text) + len(self.answer)
        for span in self.segments.spans:
            if span.message != NO_MESSAGE and span.message < index:
                begin = max(begin, span.end)
        for span in self.segments.spans:
            if span.message > index and span.start >= begin:
                end = min(end, span.start)
        return begin, end


def texts_of(message: Message | None) -> list[str]:
    """The parts of its content."""
    content = None if message is None else message.get("content")
    if content is None:
        return []
    return [content] if isinstance(content, str) else [part["text"] for part in content]

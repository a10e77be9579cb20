"""The messages that a prompt is made of, whichever dialect they were sent in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .caching.boundaries import Breakpoint
from .caching.segments import NO_MESSAGE
from .prompts import Message


@dataclass(slots=True)
class Conversation:
    """`messages` as a template takes them, each content in one piece. `parts` has the texts of those contents that came in
    several, by the index of their message; `breakpoints` are those on parts, in order."""

    messages: list[Message]
    parts: dict[int, list[str]] = field(default_factory=dict)
    breakpoints: list[Breakpoint] = field(default_factory=list)

    def behind(self, opening: Sequence[Message]) -> Conversation:
        """The same with other messages before it."""
        shift = len(opening)
        return Conversation(
            [*opening, *self.messages],
            {i + shift: texts for i, texts in self.parts.items()},
            [
                place if place.message == NO_MESSAGE else place._replace(message=place.message + shift)
                for place in self.breakpoints
            ],
        )

    def in_parts(self) -> list[Message]:
        """The messages with contents as they were sent."""
        return [
            {**message, "content": [{"type": "text", "text": text} for text in self.parts[i]]}
            if i in self.parts
            else message
            for i, message in enumerate(self.messages)
        ]

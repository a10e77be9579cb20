"""Where a model thinks before it answers, and how much of that a prompt has said already.

Templates differ in what they write themselves of the marks around thoughts: nothing (the model opens when it wants to),
the opening mark (the reply begins inside), or both, with nothing between them (the model was told not to think). What
the prompt ends with tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .tokenizer import Tokenizer
from .tools.shapes import Frame, Shape, Slot
from .tools.structure import Reasoning


@dataclass(frozen=True, slots=True)
class Marks:
    """Around thoughts: each a special token where the vocabulary has one of that text, else the text."""

    open: str
    close: str


REASONING_FORMATS = {
    "think": Marks("<think>", "</think>"),
    "mistral": Marks("[THINK]", "[/THINK]"),
    "seed": Marks("<seed:think>", "</seed:think>"),
    "cohere": Marks("<|START_THINKING|>", "<|END_THINKING|>"),
    "kimi": Marks("◁think▷", "◁/think▷"),
}

_TAIL = 32
"""Tokens at the end of a prompt that are looked at: marks and the blanks around them are fewer, even in letters."""


def detect_reasoning(template: str) -> Marks | None:
    """The format whose closing mark a chat template writes or looks for."""
    return next((marks for marks in REASONING_FORMATS.values() if marks.close in template), None)


def thinks_after(
    thoughts: Frame | None, tokenizer: Tokenizer, prompt: Sequence[int], continued: str | None = None
) -> Reasoning:
    """What a reply to this prompt may think. `thoughts` is what is around them, None for a model that has none.

    `continued` is the text of the answer that the reply goes on with, if it does: one that has begun to answer thinks no
    more.
    """
    if thoughts is None:
        return "off"
    begin, end = _text(thoughts.open), _text(thoughts.close)
    if continued is not None:
        return "open" if continued.rfind(begin) > continued.rfind(end) else "off"
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip()
    if tail.endswith(end):
        return "off"
    return "open" if tail.endswith(begin) else "optional"


def _text(shape: Shape) -> str:
    return "".join(
        piece if isinstance(piece, str) else piece.text for piece in shape if not isinstance(piece, Slot)
    ).strip()

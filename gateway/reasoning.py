"""Where a model thinks before it answers, and how much of that a prompt has said already.

A format is the pair of marks around the thoughts. Templates differ in what they write themselves: nothing (the model
opens when it wants to), the opening mark (the reply begins inside), or both, with nothing between them (the model was
told not to think). What the prompt ends with tells which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The marks, each a special token where the vocabulary has one of that text, else the text."""

    name: str
    open: str
    close: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """That a reply may begin with thoughts. `begun`: the prompt ends inside of them, so the reply must."""

    format: ReasoningFormat
    begun: bool


REASONING_FORMATS = {
    form.name: form
    for form in (
        ReasoningFormat("think", "<think>", "</think>"),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
        ReasoningFormat("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
        ReasoningFormat("kimi", "◁think▷", "◁/think▷"),
    )
}

_TAIL = 32
"""Tokens at the end of a prompt that are looked at: a mark and blanks around it are fewer, spelled in letters even."""


def detect_reasoning(template: str) -> ReasoningFormat | None:
    """The format whose closing mark a chat template writes or looks for."""
    return next((form for form in REASONING_FORMATS.values() if form.close in template), None)


def reasoning_after(
    form: ReasoningFormat | None, tokenizer: Tokenizer, prompt: Sequence[int], continued: str | None = None
) -> Reasoning | None:
    """What a reply to this prompt may think; None if it may not.

    `continued` is the text of the answer that the reply goes on with, if it does: what has begun to answer thinks no more.
    """
    if form is None:
        return None
    if continued is not None:
        inside = continued.rfind(form.open) > continued.rfind(form.close)
        return Reasoning(form, begun=True) if inside else None
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special=False).rstrip()
    if tail.endswith(form.close):
        return None
    return Reasoning(form, begun=tail.endswith(form.open))

"""What becomes of one choice on its way up: pieces as they become certain, a whole answer at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from engine.request import TokenLogprob

from .tools.parser import Arguments, Content, Part, Reasoning, ReplyParser

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What of an answer is wanted, and when its text ends.

    `ids` and `logprobs` ask for the details of every token. `discard` is for a prompt that is only scored: the one token
    the engine makes besides is neither counted nor shown. `parser` makes what reads thoughts and calls in a reply; without
    it a reply is text.
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    logprobs: bool = False
    prompt_logprobs: bool = False
    ids: bool = False
    continues_prompt: bool = False
    discard: bool = False
    parser: Callable[[], ReplyParser] | None = None


class TokenDetail(msgspec.Struct, frozen=True, gc=False):
    """A token that has been counted: `offset` is where its text begins in the answer, in characters. A token of a call or
    a thought has no `logprob`: they are about the content."""

    id: int
    offset: int
    logprob: TokenLogprob | None


class Piece(msgspec.Struct, frozen=True, gc=False):
    """What became certain of one choice at once. `finish` is set on its last piece, and `stop` if that stop string was the
    reason. `details` only when asked for. `report` is what a check of the whole came to, where there was one.

    A reply that is parsed comes in `parts`, in order, and `text` is the content in them.
    """

    index: int
    text: str
    details: tuple[TokenDetail, ...] = ()
    finish: Finish | None = None
    stop: str = ""
    parts: tuple[Part, ...] = ()
    report: dict[str, object] | None = None

    @property
    def cut(self) -> bool:
        return bool(self.stop)


class Answer(msgspec.Struct, frozen=True):
    """One whole choice. `stop`: this stop string ended it, not the model. `parts` and `report` as in a piece."""

    index: int
    text: str
    details: tuple[TokenDetail, ...]
    finish: Finish
    stop: str = ""
    parts: tuple[Part, ...] = ()
    report: dict[str, object] | None = None

    @property
    def cut(self) -> bool:
        return bool(self.stop)


def join(pieces: Sequence[Piece]) -> Answer:
    """The pieces of one choice, the last with a finish, as a whole."""
    last = pieces[-1]
    details = tuple(detail for piece in pieces for detail in piece.details)
    finish: Finish = "stop" if last.finish == "stop" else "length"
    text = "".join([piece.text for piece in pieces])
    parts = merged(part for piece in pieces for part in piece.parts)
    return Answer(last.index, text, details, finish, last.stop, parts, last.report)


def merged(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The same with neighbours of a kind put together."""
    whole: list[Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, Content) and isinstance(last, Content):
            whole[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            whole[-1] = Reasoning(last.text + part.text)
        elif isinstance(part, Arguments) and isinstance(last, Arguments):
            whole[-1] = Arguments(last.index, last.text + part.text)
        else:
            whole.append(part)
    return tuple(whole)

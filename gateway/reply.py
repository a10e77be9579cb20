"""The reply of a model that may think or call tools: one sequence, read into thoughts, content and calls as it grows.

Does for such a reply what `generation.Choice` does for plain text, with the same face. Special tokens are shown to the
parser, since formats are written in them, and to nobody else. Stop strings are looked for in the content only, each run
of it by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from engine.request import SequenceDelta, TokenLogprob

from .detokenizer import Detokenizer
from .pieces import Finish, Piece, TextOptions, TokenDetail, merged
from .stops import StopSearch
from .tokenizer import Tokenizer
from .tools.parser import Content, Part, Reasoning, ReplyParser, Special


class _Token(NamedTuple):
    """`length` is the number of characters that it completed."""

    id: int
    length: int
    mark: bool
    logprob: TokenLogprob | None

    @property
    def begins_character(self) -> bool:
        """Or says nothing."""
        return not self.length and not self.mark


class Reply:
    """`reasoning` counts the tokens of the thoughts, with the mark that opened them if the model wrote it."""

    __slots__ = (
        "_detail",
        "_details",
        "_detokenizer",
        "_in_content",
        "_marks",
        "_offset",
        "_options",
        "_parser",
        "_stops",
        "_unsettled",
        "finish",
        "index",
        "last_token",
        "reasoning",
        "tokens",
    )

    def __init__(
        self, index: int, tokenizer: Tokenizer, options: TextOptions, stops: StopSearch, parser: ReplyParser
    ) -> None:
        self.index = index
        self.tokens = 0
        self.reasoning = 0
        self.last_token = 0.0
        self.finish: Finish | None = None
        self._options = options
        self._detail = options.logprobs or options.ids
        self._detokenizer = Detokenizer(tokenizer, continues=options.continues_prompt)
        self._stops = stops.fresh()
        self._parser = parser
        ids = tokenizer.specials.ids
        self._marks = {ids[text]: Special(text) for text in parser.marks}
        self._in_content = False
        self._unsettled: list[_Token] = []
        self._details: list[TokenDetail] = []
        self._offset = 0

    def push(self, delta: SequenceDelta) -> Piece | None:
        """Add a step's tokens. None when nothing became certain."""
        parts: list[Part] = []
        last = len(delta.tokens) - 1
        for position, token in enumerate(delta.tokens):
            self.tokens += 1
            ends = position == last and delta.finish == "stop"
            if ends and token not in self._marks:
                break  # counted and not shown
            logprob = delta.logprobs[position] if delta.logprobs else None
            parts += self._read(token, logprob, ends=ends)
            if self.finish is not None:
                return self._piece(parts)
        if delta.finish is not None:
            parts += self._end("stop" if delta.finish == "stop" else "length")
        return self._piece(parts) if parts or self.finish is not None else None

    def _read(self, token: int, logprob: TokenLogprob | None, *, ends: bool) -> list[Part]:
        mark = self._marks.get(token)
        if mark is None:
            text = self._detokenizer.push((token,))
            parts = self._feed(text)
        else:
            text = self._detokenizer.flush()
            parts = [*self._feed(text), *self._parser.feed(mark)]
        if not ends:
            self._unsettled.append(_Token(token, len(text), mark is not None, logprob))
        self._settle(parts)
        return self._shown(parts)

    def _feed(self, text: str) -> list[Part]:
        return self._parser.feed(text) if text else []

    def _end(self, finish: Finish) -> list[Part]:
        parts = [*self._feed(self._detokenizer.flush()), *self._parser.finish(stopped=finish == "stop")]
        self._settle(parts)
        shown = self._shown(parts)
        if self.finish is None:
            rest = self._stops.flush()
            if rest:
                shown.append(Content(rest))
            self.finish = "stop" if self._stops.stopped else finish
        return shown

    def _piece(self, parts: list[Part]) -> Piece:
        if self.finish is not None and self._detail:
            self._details += self._detailed(0)
        details, self._details = tuple(self._details), []
        whole = merged(parts)
        text = "".join([part.text for part in whole if isinstance(part, Content)])
        return Piece(self.index, text, details, self.finish, self._stops.stopped, whole)

    # -- stop strings --------------------------------------------------------------------------------------------------

    def _shown(self, parts: Iterable[Part]) -> list[Part]:
        """The parts, the content in them as far as it is certain to come before a stop string."""
        shown: list[Part] = []
        for part in parts:
            text = self._before_stop(part.text) if isinstance(part, Content) else self._stops.flush()
            if text:
                shown.append(Content(text))
            if self._stops.stopped:
                self.finish = "stop"
                break
            if not isinstance(part, Content):
                shown.append(part)
        return shown

    def _before_stop(self, text: str) -> str:
        return text if self.tokens <= self._options.min_tokens else self._stops.push(text)

    # -- which token said what -----------------------------------------------------------------------------------------

    def _settle(self, parts: list[Part]) -> None:
        """Tokens wait until it is known what they belong to: the marks of a format are found a few tokens later."""
        if not parts:
            return
        if any(isinstance(part, Reasoning) for part in parts):
            self.reasoning += len(self._unsettled)
        if self._detail:
            content = sum(len(part.text) for part in parts if isinstance(part, Content))
            self._details += self._detailed(content)
        else:
            self._unsettled.clear()
        self._in_content = isinstance(parts[-1], Content)

    def _detailed(self, content: int) -> Iterator[TokenDetail]:
        """All that waited, those that said `content` characters with their log-probabilities."""
        first = self._first_of(content)
        for position, token in enumerate(self._unsettled):
            yield TokenDetail(token.id, self._offset, token.logprob if position >= first else None)
            self._offset += token.length
        self._unsettled.clear()

    def _first_of(self, content: int) -> int:
        """Where content begins among the tokens that wait. Behind other content that is all of them; else there may be
        marks before it, and it is as many of the last ones as so many characters take."""
        if content and self._in_content:
            return 0
        first = len(self._unsettled)
        if content:
            while first and (content > 0 or self._unsettled[first - 1].begins_character):
                first -= 1
                content -= self._unsettled[first].length
        return first

"""The reply of a model that may think or call tools: one sequence, read into thoughts, content and calls as it grows.

Does for such a reply what `generation.Choice` does for plain text, with the same face. Special tokens are shown to the
parser, since formats are written in them, and to nobody else. Stop strings are looked for in the content only, each run
of it by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from engine.request import SequenceDelta, TokenLogprob

from .attribution import Attribution
from .detokenizer import Detokenizer
from .pieces import Finish, Piece, TextOptions, TokenDetail, merged
from .stops import StopSearch
from .tokenizer import Tokenizer
from .tools.parser import CallBegins, Content, Part, ReplyParser, Special


class Reply:
    """The parts of one sequence as they become certain."""

    __slots__ = (
        "_attribution",
        "_called",
        "_details",
        "_detokenizer",
        "_marks",
        "_options",
        "_parser",
        "_stops",
        "_told",
        "finish",
        "index",
        "last_token",
        "tokens",
    )

    def __init__(
        self, index: int, tokenizer: Tokenizer, options: TextOptions, stops: StopSearch, parser: ReplyParser
    ) -> None:
        self.index = index
        self.tokens = 0
        self.last_token = 0.0
        self.finish: Finish | None = None
        self._options = options
        self._told = options.logprobs or options.ids
        self._detokenizer = Detokenizer(tokenizer, continues=options.continues_prompt)
        self._stops = stops.fresh()
        self._parser = parser
        ids = tokenizer.specials.ids
        self._marks = {ids[text]: Special(text) for text in parser.marks}
        self._attribution = Attribution()
        self._called: set[str] = set()
        self._details: list[TokenDetail] = []

    @property
    def reasoning(self) -> int:
        """Tokens of thoughts."""
        return self._attribution.reasoning

    @property
    def awaited_tools(self) -> Set[str]:
        """The names of the tools that it called, if it ended by itself."""
        return self._called if self.finish == "stop" and not self._stops.stopped else frozenset()

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
            self._attribution.add(token, len(text), logprob, shown=self._told and not ends)
            return self._settled(self._feed(text))
        parts = self._flushed()
        self._attribution.add(
            token, 1, logprob, shown=self._told and not ends
        )  # to the parser a mark is a character
        return self._settled([*parts, *self._parser.feed(mark)])

    def _feed(self, text: str) -> list[Part]:
        return self._parser.feed(text) if text else []

    def _flushed(self) -> list[Part]:
        """What comes of a character that tokens have begun and will not end."""
        text = self._detokenizer.flush()
        self._attribution.complete(len(text))
        return self._feed(text)

    def _settled(self, parts: list[Part]) -> list[Part]:
        self._details += self._attribution.settle(parts, self._parser.held)
        return self._shown(parts)

    def _end(self, finish: Finish) -> list[Part]:
        shown = self._settled([*self._flushed(), *self._parser.finish(stopped=finish == "stop")])
        if self.finish is None:
            held = self._stops.flush()
            if held:
                shown.append(Content(held))
            self.finish = "stop" if self._stops.stopped else finish
        return shown

    def _piece(self, parts: list[Part]) -> Piece:
        if self.finish is not None:
            self._details += self._attribution.rest()
        details, self._details = self._details, []
        whole = merged(parts)
        return Piece(
            self.index,
            "".join([part.text for part in whole if isinstance(part, Content)]),
            tuple(details),
            self.finish,
            self._stops.stopped_by,
            whole,
        )

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
                if isinstance(part, CallBegins):
                    self._called.add(part.name)
                shown.append(part)
        return shown

    def _before_stop(self, text: str) -> str:
        return text if self.tokens <= self._options.min_tokens else self._stops.push(text)

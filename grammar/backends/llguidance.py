"""llguidance: schemas, patterns, Lark and all trees. An Earley parser over lexemes, masks from derivatives of patterns.

The library never sees the model's end tokens. It wants one, so it gets a token of its own behind the vocabulary, which no
mask shows. Of the special tokens only those that the tree names are ever allowed, whatever a client's Lark text says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import llguidance
import numpy as np

from ..errors import BadGrammar, BadSchema, DeadEnd, MatcherError, TooComplex
from ..spec import Grammar, JsonSchema, Lark
from ..vocabulary import Vocabulary
from .base import Bits, Compiled
from .failures import broken
from .lark import render, renders
from .rows import row_without, unspelled
from .spelling import Spelling

LIMITS: Final = llguidance.LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=100_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""What one grammar may cost, to compile and in each mask; in the library's units, about 50 to the microsecond."""

_BYTES: Final = 200_000
"""Memory of a small compiled grammar that has been followed for a while. Measured, as is the next."""
_BYTES_A_CHARACTER: Final = 50
"""What each character of a grammar adds to that."""


class LLGuidance:
    """Thread-safe. Building one takes about a second for a large vocabulary."""

    name: Final[Literal["llguidance"]] = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._unspelled = unspelled(vocabulary)
        self._tokenizer = llguidance.LLTokenizer(
            _Tokens(vocabulary), slices=llguidance.LLTokenizer.json_slices()
        )

    def takes(self, grammar: Grammar) -> bool:
        return renders(grammar)

    def compile(self, grammar: Grammar) -> LLGuidanceGrammar:
        rendered = render(grammar, self._vocabulary.specials)
        matcher = llguidance.LLMatcher(self._tokenizer, rendered.text, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise _refusal(matcher.get_error(), grammar)
        barred = self._unspelled - rendered.markers
        compiled = LLGuidanceGrammar(matcher, self._vocabulary, barred, len(rendered.text))
        try:
            compiled.warm()
        except DeadEnd as error:
            raise BadGrammar("the grammar allows no text at all, not even the empty one") from error
        except MatcherError as error:
            raise TooComplex(str(error)) from error
        return compiled

    def export(self, compiled: Compiled) -> bytes:
        """Nothing: compiling takes milliseconds, and the library has no form to keep the result in."""
        return b""

    def load(self, grammar: Grammar, exported: bytes) -> LLGuidanceGrammar:
        return self.compile(grammar)


class LLGuidanceGrammar:
    """The state of the library's lexer, copied for each cursor."""

    backend: Final[Literal["llguidance"]] = "llguidance"

    def __init__(
        self, matcher: llguidance.LLMatcher, vocabulary: Vocabulary, barred: frozenset[int], length: int
    ) -> None:
        """No token in `barred` is ever allowed; `length` is that of the grammar's text."""
        self._matcher = matcher
        self._size = vocabulary.size
        self._barred = barred
        self._kept = row_without(vocabulary, barred)
        self.nbytes: int = _BYTES + _BYTES_A_CHARACTER * length

    def start(self) -> LLGuidanceCursor:
        return self._cursor(self._matcher.deep_copy())

    def warm(self) -> None:
        """Compute the first mask, for all cursors: they are copies of this. Raises MatcherError if there is none."""
        self._cursor(self._matcher).fill(np.empty_like(self._kept))

    def _cursor(self, matcher: llguidance.LLMatcher) -> LLGuidanceCursor:
        return LLGuidanceCursor(matcher, size=self._size, kept=self._kept, barred=self._barred)


class LLGuidanceCursor:
    __slots__ = ("_address", "_barred", "_kept", "_matcher", "_nbytes", "_scratch", "_size", "_words")

    def __init__(
        self, matcher: llguidance.LLMatcher, *, size: int, kept: Bits, barred: frozenset[int]
    ) -> None:
        """`kept` has a bit for each token that may ever be allowed, `barred` are the others."""
        self._matcher = matcher
        self._size = size
        self._kept = kept
        self._barred = barred
        self._scratch: Bits = np.empty((size + 1 + 31) // 32, dtype=np.int32)
        self._words = self._scratch[: len(kept)]
        self._address = self._scratch.ctypes.data
        self._nbytes = self._scratch.nbytes

    def fill(self, row: Bits) -> None:
        matcher = self._matcher
        try:
            if not matcher.is_stopped():
                matcher.unsafe_compute_mask_ptr(self._address, self._nbytes)
                if not matcher.is_error():
                    np.bitwise_and(self._words, self._kept, out=row)
                    return
        except BaseException as error:
            raise broken(error) from error
        self._check()
        row.fill(0)

    def accept(self, token: int) -> bool:
        if not 0 <= token < self._size or token in self._barred:
            return False
        try:
            accepted: int = self._matcher.try_consume_tokens([token])
        except BaseException as error:
            raise broken(error) from error
        self._check()
        return accepted == 1

    def rollback(self, count: int) -> None:
        if count == 0:
            return
        try:
            self._matcher.rollback(count)
        except BaseException as error:
            raise broken(error) from error
        self._check()

    def forced(self) -> Sequence[int]:
        try:
            tokens: list[int] = self._matcher.compute_ff_tokens()
        except BaseException as error:
            raise broken(error) from error
        self._check()
        return tokens

    def accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    def exhausted(self) -> bool:
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        """Raises MatcherError if the library's matcher has failed, which it never gets over."""
        if not self._matcher.is_error():
            return
        message = _sentence(self._matcher.get_error())
        if message == "NoExtensionBias":
            raise DeadEnd("the grammar allows nothing to follow, and the text is not complete")
        raise MatcherError(f"the grammar can no longer be followed: {message}")


class _Tokens:
    """A vocabulary as the library reads it, and the model's tokeniser, which it calls to spell forced text.

    Special tokens have their texts as names. What ends the text is one more token, behind the vocabulary.
    """

    is_tokenizer_wrapper: Final = True
    bos_token_id: Final = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*vocabulary.tokens, b""]
        for text, token in vocabulary.specials.items():
            self.tokens[token] = text.encode()
        self.eos_token_id = vocabulary.size
        self.special_token_ids = [*vocabulary.specials.values(), vocabulary.size]
        self._spell = Spelling(vocabulary)

    def __call__(self, text: str) -> list[int]:
        return self._spell(text)


_TOO_MUCH = re.compile(r"too (big|large|many|complex|deep)|limit|fuel|TooComplex", re.IGNORECASE)

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
"""Line and column in the Lark text."""


def _refusal(error: str, grammar: Grammar) -> BadGrammar:
    message = _sentence(error)
    place = _PLACE.match(message)
    if place:
        message = message[place.end() :]
        if isinstance(grammar, Lark):
            message = f"line {place[1]}, column {place[2]}: {message}"
    if _TOO_MUCH.search(message):
        return TooComplex(message)
    return BadSchema(message) if isinstance(grammar, JsonSchema) else BadGrammar(message)


def _sentence(error: str) -> str:
    """The library's message in one line, without excerpts of what was rendered for it."""
    first, *more = error.split("\n")
    cause = next((line.removeprefix("error: ") for line in more if line.startswith("error: ")), None)
    if cause is not None:
        first = first.removesuffix("regex parse error:") + cause
    for noise in _NOISE:
        first = noise.sub("", first)
    return first[:400] or "unknown error"


_NOISE = tuple(
    map(
        re.compile,
        (
            r"failed to compile JSON schema: ",
            r'failed to parse "%json": ',
            r" at line \d+ column \d+$",
            r" \(in regex\)",
            r" in regex /.*/$",
            r"[;.] (?:following|Enable) .*$",
        ),
    )
)

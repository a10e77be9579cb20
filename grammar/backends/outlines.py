"""outlines-core: short lists of choices. A finite automaton whose masks are computed once for each state and then copied.

Not taken: anything else. Its automata prefer the first alternative that matches to the longest, so that `a|ab` never
reaches `ab`, and forget tokens that leave a final state for one that is not, so that `abc|a` does not reach `abc` either.
Neither matters where no text begins with another one. And they grow with the vocabulary: a pattern of 40 letters makes
more than a million transitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import outlines_core

from ..errors import BadGrammar
from ..spec import Choice, Grammar
from ..vocabulary import Vocabulary
from .base import Bits, Compiled
from .rows import row_of
from .short_choice import is_short_choice
from .spelling import Spelling


class Outlines:
    """Thread-safe."""

    name: Final[Literal["outlines"]] = "outlines"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._spell = Spelling(vocabulary)
        same: dict[bytes, list[int]] = {}
        for token, raw in enumerate(vocabulary.tokens):
            if raw:
                same.setdefault(raw, []).append(token)
        # it wants a token that ends the text, and is given one that no row has
        self._library = outlines_core.Vocabulary(vocabulary.size, same)

    def takes(self, grammar: Grammar) -> bool:
        return is_short_choice(grammar)

    def compile(self, grammar: Grammar) -> OutlinesGrammar:
        if not is_short_choice(grammar):
            raise BadGrammar("this engine takes short lists of choices only")
        try:
            index = outlines_core.Index("|".join(map(_escaped, grammar.options)), self._library)
        except (ValueError, OverflowError) as error:
            raise BadGrammar(f"the choices cannot be compiled: {str(error).splitlines()[0]}") from error
        return self._compiled(index, grammar)

    def export(self, compiled: Compiled) -> bytes:
        assert isinstance(compiled, OutlinesGrammar)
        return compiled.export()

    def load(self, grammar: Grammar, exported: bytes) -> OutlinesGrammar:
        assert isinstance(grammar, Choice)
        try:
            index = outlines_core.Index.from_binary(exported)
        except ValueError as error:
            raise BadGrammar("the compiled grammar is damaged or of another version") from error
        return self._compiled(index, grammar)

    def _compiled(self, index: outlines_core.Index, choice: Choice) -> OutlinesGrammar:
        options = tuple({option.encode() for option in choice.options})
        return OutlinesGrammar(index, options, self._vocabulary, self._spell)


class OutlinesGrammar:
    backend: Final[Literal["outlines"]] = "outlines"

    def __init__(
        self, index: outlines_core.Index, options: tuple[bytes, ...], vocabulary: Vocabulary, spell: Spelling
    ) -> None:
        self.index = index
        self.options = options
        self.spell = spell
        self.size = vocabulary.size
        self.bytes_of = vocabulary.tokens.__getitem__
        self._vocabulary = vocabulary
        self._rows: dict[int, Bits] = {}
        most_states = 1 + sum(map(len, options))
        self.nbytes = most_states * 4 * vocabulary.words

    def row(self, state: int) -> Bits:
        """The mask of a state, computed when it is first asked for."""
        row = self._rows.get(state)
        if row is None:
            tokens: list[int] = self.index.get_allowed_tokens(state) or []
            row = row_of(self._vocabulary, (token for token in tokens if token < self.size))
            self._rows[state] = row  # two threads would put the same there
        return row

    def start(self) -> OutlinesCursor:
        return OutlinesCursor(self)

    def export(self) -> bytes:
        _, (binary,) = self.index.__reduce__()
        return bytes(binary)


class OutlinesCursor:
    __slots__ = ("_grammar", "_states", "_tokens")

    def __init__(self, grammar: OutlinesGrammar) -> None:
        self._grammar = grammar
        self._states: list[int] = [grammar.index.get_initial_state()]
        self._tokens: list[int] = []

    def fill(self, row: Bits) -> None:
        np.copyto(row, self._grammar.row(self._states[-1]))

    def accept(self, token: int) -> bool:
        if not 0 <= token < self._grammar.size:
            return False
        state: int | None = self._grammar.index.get_next_state(self._states[-1], token)
        if state is None:
            return False
        self._states.append(state)
        self._tokens.append(token)
        return True

    def rollback(self, count: int) -> None:
        if count:
            del self._states[-count:]
            del self._tokens[-count:]

    def forced(self) -> Sequence[int]:
        """The rest of the only option that is left."""
        grammar = self._grammar
        text = b"".join(map(grammar.bytes_of, self._tokens))
        left = [option for option in grammar.options if option.startswith(text)]
        if len(left) != 1:
            return ()
        try:
            return grammar.spell(left[0][len(text) :].decode())
        except UnicodeDecodeError:  # in the middle of a character
            return ()

    def accepting(self) -> bool:
        return bool(self._grammar.index.is_final_state(self._states[-1]))

    def exhausted(self) -> bool:
        return not self._grammar.row(self._states[-1]).any()


def _escaped(text: str) -> str:
    return "".join(rf"\x{{{ord(letter):x}}}" for letter in text)

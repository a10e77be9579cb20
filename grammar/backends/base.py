"""What a constraint engine has to offer. Three implementations: llguidance, xgrammar, outlines-core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..spec import BackendName, Grammar

Bits = npt.NDArray[np.int32]
"""One row of a mask, int32 [ceil(vocabulary size / 32)], C-contiguous: bit `t % 32` of word `t // 32` allows token `t`."""


class Cursor(Protocol):
    """A place in a compiled grammar. Knows nothing of end tokens: they are never in a mask and never accepted here.

    For one thread at a time. Any method may raise MatcherError, after which the cursor is of no more use.
    """

    def fill(self, row: Bits) -> None:
        """Overwrite `row` with the tokens that may come next; all zero if nothing may, be it the end or a dead end."""
        ...

    def accept(self, token: int) -> bool:
        """Go on by a token; False, and no change, if it may not come next."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that spell what must come next, as the model's own tokeniser would; empty if there is a choice, or if
        whether there is one is not cheap to tell.

        Does not accept them. The text may end with the last of them or go on.
        """
        ...

    def accepting(self) -> bool:
        """The text so far is complete: it may end here."""
        ...

    def exhausted(self) -> bool:
        """No token may follow. False also where that takes a mask to find out: this is asked between two steps."""
        ...


class Compiled(Protocol):
    """A grammar ready to be followed, by any number of cursors at once. Immutable."""

    @property
    def backend(self) -> BackendName: ...

    @property
    def nbytes(self) -> int:
        """Memory it holds, an estimate."""
        ...

    def start(self) -> Cursor:
        """A cursor at the beginning. Cheap: at most about a millisecond."""
        ...


class Backend(Protocol):
    @property
    def name(self) -> BackendName: ...

    def takes(self, grammar: Grammar) -> bool:
        """Whether this backend has a form for the grammar at all. Constant or linear time, compiles nothing."""
        ...

    def compile(self, grammar: Grammar) -> Compiled:
        """Raises BadGrammar or TooComplex. May take seconds and gigabytes: the compiler runs it where that is harmless."""
        ...

    def export(self, compiled: Compiled) -> bytes:
        """What another process needs besides the grammar to have the same without compiling; empty if that costs more
        than to compile again. Only for `load` of the same version and vocabulary."""
        ...

    def load(self, grammar: Grammar, exported: bytes) -> Compiled:
        """What `export` gave, for a grammar that compiled elsewhere. Raises BadGrammar if it is damaged."""
        ...

"""Everything this package raises on purpose.

GrammarError
├── BadGrammar            no grammar, or one that no backend can take: the client's mistake
│   ├── BadSchema         the same for a JSON schema, with the place of the mistake
│   └── TooComplex        it may be right, but compiling it or following it costs more than the limits allow
├── CompilerUnavailable   too many grammars at once, or no process for them: the same grammar may do a little later
└── MatcherError          a matcher cannot go on; ends its own sequence, no other
    └── DeadEnd           the grammar allows no token at all
"""

from __future__ import annotations


class GrammarError(Exception):
    """Root of the tree. `str(error)` is one line that is safe to show a client."""


class BadGrammar(GrammarError):
    """`path` is the JSON pointer (RFC 6901) of the schema at fault, `keyword` the keyword in it, if there is one."""

    def __init__(self, message: str, *, path: str = "", keyword: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.keyword = keyword


class BadSchema(BadGrammar):
    pass


class TooComplex(BadGrammar):
    pass


class CompilerUnavailable(GrammarError):
    pass


class MatcherError(GrammarError):
    pass


class DeadEnd(MatcherError):
    pass

"""Where in a request a shape was asked for, and how a refusal says so."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import GrammarRefused
from grammar.contract import Verdict
from grammar.errors import BadGrammar, BadSchema, TooComplex

from ..errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Source:
    """`param` is the field as errors name it, `subject` what is in it ("schema for response_format 'x'"), `code` what an
    error has that finds the schema or the grammar to be none."""

    param: str
    subject: str
    code: str | None = "invalid_grammar"

    def invalid(self, problem: str) -> InvalidRequest:
        return InvalidRequest(f"Invalid {self.subject}: {problem}", param=self.param, code=self.code)

    def too_complex(self, problem: str) -> InvalidRequest:
        return InvalidRequest(
            f"Invalid {self.subject}: {problem}", param=self.param, code="grammar_too_complex"
        )

    def refused(self, error: BadGrammar | GrammarRefused) -> InvalidRequest:
        """The answer for a grammar that was found to be none, or too much, here or by the engine."""
        if isinstance(error, TooComplex) or (isinstance(error, GrammarRefused) and error.too_complex):
            return self.too_complex(str(error))
        if isinstance(error, BadSchema):
            return self.invalid(f"In context={context(error.path)}, {error}")
        return self.invalid(str(error))

    def unenforced(self, verdict: Verdict) -> InvalidRequest:
        """The answer for a keyword that would have to be enforced and cannot be."""
        reason = f": {verdict.reason}" if verdict.reason else ""
        return self.invalid(
            f"In context={context(verdict.path)[:-1]}, '{verdict.keyword}' is not permitted{reason}"
            f" (at {verdict.path})."
        )


def context(pointer: str) -> tuple[str, ...]:
    """A JSON pointer as OpenAI writes the path to a schema: a tuple of its steps."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])

"""What was asked for → an `AnswerShape`, or a 400; and what becomes of a finished text."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from grammar.contract import Verdict
from grammar.errors import BadGrammar, TooComplex
from grammar.limits import check_grammar
from grammar.spec import Grammar
from grammar.validate import Problem

from ..errors import InvalidRequest
from ..metrics import Metrics
from ..text_threads import TextThreads
from .asked import ShapeFields
from .schemas import Audited, Schema, Schemas
from .source import Source
from .structural_tags import TagReader
from .wishes import Demand, GrammarWish, SchemaWish, TagWish, Wish

INLINE_CHARACTERS = 2000
"""A text up to so long is checked in place: that takes well under a millisecond."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of holding a finished text against its schema. `checked` are the keywords that decoding did not enforce.

    `problems` is None if it would have taken too long to find out.
    """

    problems: tuple[Problem, ...] | None
    checked: tuple[Verdict, ...]

    @property
    def valid(self) -> bool | None:
        return None if self.problems is None else not self.problems

    @property
    def broken(self) -> Problem | None:
        """Everything was enforced, and this is wrong all the same: a bug of ours, never to be returned as success."""
        return self.problems[0] if self.problems and not self.checked else None

    def report(self) -> dict[str, object] | None:
        """`schema_check` of a choice; None if nothing was left to be checked."""
        if not self.checked:
            return None
        return {
            "valid": self.valid,
            "checked": [verdict.path for verdict in self.checked],
            "problems": [
                {"path": problem.path, "keyword": problem.keyword, "message": problem.message}
                for problem in self.problems or ()
            ],
        }


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """`grammar` is what decoding follows. `audited` is there if it comes from one JSON schema, which finished texts are
    then checked against. `strict`: everything in it is enforced."""

    grammar: Grammar
    source: Source
    strict: bool
    audited: Audited | None
    threads: TextThreads

    @property
    def exact(self) -> bool:
        """Nothing is left to be checked."""
        return self.audited is None or not self.audited.contract.checked

    async def verdict(self, text: str) -> Outcome:
        """What a text that ended by itself is worth; not for one that a limit or a stop string cut."""
        audited = self.audited
        if audited is None:
            return Outcome((), ())
        try:
            if len(text) <= INLINE_CHARACTERS:
                problems = audited.validator.problems(text)
            else:
                problems = await self.threads.run(lambda: audited.validator.problems(text))
        except TooComplex:
            return Outcome(None, audited.contract.checked)
        return Outcome(problems, audited.contract.checked)


class Shapes:
    """Reads what requests ask for, and counts what it refuses."""

    def __init__(self, threads: TextThreads, metrics: Metrics) -> None:
        self.metrics = metrics
        self.threads = threads
        self._schemas = Schemas(threads, metrics)

    async def read(self, asked: ShapeFields) -> AnswerShape | None:
        """The shape of the answer; None if it is free. Raises InvalidRequest naming the field at fault."""
        if not asked.asks:
            return None
        wish = await self.threads.run(asked.wish)
        return None if wish is None else await self.shape(wish)

    async def shape(self, wish: Wish) -> AnswerShape:
        """Raises InvalidRequest."""
        match wish:
            case SchemaWish():
                return await self._of_schema(wish)
            case GrammarWish():
                return await self._of_grammar(wish.grammar, wish.source)
            case TagWish():
                return await self._of_grammar(await self._tag(wish), wish.source)

    async def audit(self, schema: Schema, source: Source, *, strict: bool) -> Audited:
        """A schema of OpenAI's, by the rules of its strict subset or without. Raises InvalidRequest."""
        return await self._audit(schema, source, "openai" if strict else "checked")

    async def _audit(self, schema: Schema, source: Source, demand: Demand) -> Audited:
        try:
            audited = await self._schemas.audit(schema)
        except BadGrammar as error:
            raise self._refused(source, error) from None
        refusal = objection(audited, source, demand)
        if refusal is not None:
            self.metrics.grammar_refused("unmet")
            raise refusal
        return audited

    async def _of_schema(self, wish: SchemaWish) -> AnswerShape:
        audited = await self._audit(wish.schema, wish.source, wish.demand)
        grammar = msgspec.structs.replace(audited.contract.grammar, whitespace=wish.whitespace)
        return AnswerShape(grammar, wish.source, wish.demand != "checked", audited, self.threads)

    async def _of_grammar(self, grammar: Grammar, source: Source) -> AnswerShape:
        try:
            await self.threads.run(lambda: check_grammar(grammar))
        except BadGrammar as error:
            raise self._refused(source, error) from None
        return AnswerShape(grammar, source, strict=True, audited=None, threads=self.threads)

    async def _tag(self, wish: TagWish) -> Grammar:
        async def schema(part: Schema) -> Grammar:
            return (await self._audit(part, wish.source, "enforced")).contract.grammar

        return await TagReader(wish.source, schema).read(wish.tag)

    def _refused(self, source: Source, error: BadGrammar) -> InvalidRequest:
        self.metrics.grammar_refused("too_complex" if isinstance(error, TooComplex) else "invalid")
        return source.refused(error)


def objection(audited: Audited, source: Source, demand: Demand) -> InvalidRequest | None:
    """What keeps a good schema from what is demanded of it."""
    if demand == "openai" and audited.violation is not None:
        return source.refused(audited.violation)
    if demand != "checked" and audited.contract.checked:
        return source.unenforced(audited.contract.checked[0])
    return None

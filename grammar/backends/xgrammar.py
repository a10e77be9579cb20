"""xgrammar: EBNF, trees with EBNF in them, and schemas that it enforces exactly. An Earley parser over bytes.

Schemas are compiled dynamically, their masks on first use: compiling those of a large schema all at once takes seconds,
and more to hand over to another process. Everything else is small and compiled at once.

Not taken: patterns, whose anchors and lookarounds it ignores, and Lark, of which it has another dialect. Special tokens
are nothing to it, so a tree is cut at them. Nothing is forced: it looks for the forced text without end where a grammar forces an endless one.

Importing the library takes seconds and loads torch. It knows no limits: a cursor gives up when a step takes too long.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np
import xgrammar

from .. import spec
from ..errors import BadGrammar, BadSchema, MatcherError, TooComplex
from ..spec import Choice, Concat, Ebnf, Either, FreeText, Grammar, JsonSchema, Marker, Repeat, Whitespace
from ..vocabulary import Vocabulary
from .base import Bits, Compiled
from .failures import broken, sentence
from .rows import row_without, unspelled
from .segments import SegmentsGrammar, Way, compiled_ways, ways

STEP_SECONDS: Final = 0.25
"""CPU time after which a mask or a token ends its sequence. Ambiguous grammars grow slower with the text."""

_OPTIONS: Final[Mapping[Whitespace, Mapping[str, object]]] = {
    "compact": {"any_whitespace": False, "separators": (", ", ": ")},
    "flexible": {"any_whitespace": True, "max_whitespace_cnt": 2},
}


def builds(grammar: Grammar) -> bool:
    """Whether every node of the tree has a form here that is exact."""
    match grammar:
        case JsonSchema() | Ebnf() | Choice() | spec.Literal() | FreeText() | Marker():
            return True
        case Concat(parts=nodes) | Either(options=nodes):
            return all(map(builds, nodes))
        case Repeat(part=part):
            return builds(part)
    return False


class XGrammar:
    """Thread-safe."""

    name: Final[Literal["xgrammar"]] = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens = xgrammar.TokenizerInfo(
            list(vocabulary.tokens), vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[]
        )
        self._eager = xgrammar.GrammarCompiler(self._tokens, max_threads=1, cache_enabled=False)
        self._lazy = xgrammar.GrammarCompiler(
            self._tokens, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
        )

    def takes(self, grammar: Grammar) -> bool:
        return builds(grammar)

    def compile(self, grammar: Grammar) -> Compiled:
        found = ways(grammar, self._vocabulary.specials)
        if found == (Way((grammar,), ()),):
            return self._segment(grammar)
        return compiled_ways(found, self._segment, self.name, self._vocabulary.words)

    def _segment(self, grammar: Grammar) -> XGrammarGrammar:
        try:
            return XGrammarGrammar(
                self._compile(grammar), self._vocabulary, lazy=isinstance(grammar, JsonSchema)
            )
        except RuntimeError as error:
            raise _refusal(error, grammar) from error

    def _compile(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        match grammar:
            case JsonSchema(schema=schema, whitespace=whitespace):
                return self._lazy.compile_json_schema(
                    _checked_schema(schema), strict_mode=False, **_OPTIONS[whitespace]
                )
            case Ebnf(text=text):
                return self._eager.compile_grammar(_without_shorthand(text))
        tag = {"type": "structural_tag", "format": _format(grammar)}
        return self._eager.compile_structural_tag(json.dumps(tag))

    def export(self, compiled: Compiled) -> bytes:
        """Nothing for a schema: all its masks would have to be computed for that."""
        if isinstance(compiled, SegmentsGrammar):
            return msgspec.msgpack.encode([self.export(segment) for segment in compiled.segments()])
        assert isinstance(compiled, XGrammarGrammar)
        return compiled.export()

    def load(self, grammar: Grammar, exported: bytes) -> Compiled:
        found = ways(grammar, self._vocabulary.specials)
        if found == (Way((grammar,), ()),):
            return self._load_segment(grammar, exported)
        try:
            texts = iter(msgspec.msgpack.decode(exported, type=list[bytes]))
        except msgspec.DecodeError as error:
            raise _damaged() from error
        return compiled_ways(
            found,
            lambda segment: self._load_segment(segment, next(texts, b"")),
            self.name,
            self._vocabulary.words,
        )

    def _load_segment(self, grammar: Grammar, exported: bytes) -> XGrammarGrammar:
        if not exported:
            return self._segment(grammar)
        try:
            compiled = xgrammar.CompiledGrammar.deserialize_json(exported.decode(), self._tokens)
        except (RuntimeError, ValueError) as error:
            raise _damaged() from error
        return XGrammarGrammar(compiled, self._vocabulary, lazy=False)


class XGrammarGrammar:
    backend: Final[Literal["xgrammar"]] = "xgrammar"

    def __init__(self, compiled: xgrammar.CompiledGrammar, vocabulary: Vocabulary, *, lazy: bool) -> None:
        self._compiled = compiled
        self._lazy = lazy
        self._size = vocabulary.size
        self._barred = unspelled(vocabulary)
        self._kept = row_without(vocabulary, self._barred)

    @property
    def nbytes(self) -> int:
        return int(self._compiled.memory_size_bytes)

    def export(self) -> bytes:
        text: str = "" if self._lazy else self._compiled.serialize_json()
        return text.encode()

    def start(self) -> XGrammarCursor:
        matcher = xgrammar.GrammarMatcher(self._compiled)
        return XGrammarCursor(matcher, size=self._size, kept=self._kept, barred=self._barred)


class XGrammarCursor:
    __slots__ = ("_barred", "_kept", "_matcher", "_row", "_size")

    def __init__(
        self, matcher: xgrammar.GrammarMatcher, *, size: int, kept: Bits, barred: frozenset[int]
    ) -> None:
        """`kept` has a bit for each token that may ever be allowed, `barred` are the others."""
        self._matcher = matcher
        self._size = size
        self._kept = kept
        self._barred = barred
        self._row = np.empty((1, len(kept)), dtype=np.int32)

    def fill(self, row: Bits) -> None:
        start = time.thread_time()
        try:
            self._matcher.fill_next_token_bitmask(self._row)
        except BaseException as error:
            raise broken(error) from error
        np.bitwise_and(self._row[0], self._kept, out=row)
        _check_time(start)

    def accept(self, token: int) -> bool:
        if not 0 <= token < self._size or token in self._barred:
            return False
        start = time.thread_time()
        try:
            accepted: bool = self._matcher.accept_token(token)
        except BaseException as error:
            raise broken(error) from error
        _check_time(start)
        return accepted

    def rollback(self, count: int) -> None:
        if count == 0:
            return
        try:
            self._matcher.rollback(count)
        except BaseException as error:
            raise broken(error) from error

    def forced(self) -> Sequence[int]:
        return ()

    def accepting(self) -> bool:
        return bool(self._matcher.is_completed())

    def exhausted(self) -> bool:
        return False  # the library does not know without a mask


def _check_time(start: float) -> None:
    if time.thread_time() - start > STEP_SECONDS:
        raise MatcherError("following the grammar takes too long")


def _format(grammar: Grammar) -> Mapping[str, object]:
    """A node as a format of xgrammar's structural tags."""
    match grammar:
        case spec.Literal(text=text) | Marker(text=text):
            return {"type": "const_string", "value": text}
        case FreeText(without=without):
            return {"type": "any_text", "excludes": list(without)}
        case Ebnf() | JsonSchema():
            return {"type": "grammar", "grammar": _ebnf(grammar)}
        case Concat(parts=parts):
            return _sequence([_format(part) for part in parts])
        case Choice() | Either():
            return _either([_format(option) for option in _options(grammar)])
        case Repeat(part=part, least=least, most=most, between=between):
            return _repeated(_format(part), least, most, between)
    raise BadGrammar("patterns and Lark grammars cannot be put together with EBNF")


def _ebnf(grammar: Ebnf | JsonSchema) -> str:
    if isinstance(grammar, Ebnf):
        return _without_shorthand(grammar.text)
    # as a format of its own a schema would have no place for these options
    options = _OPTIONS[grammar.whitespace]
    return str(
        xgrammar.Grammar.from_json_schema(_checked_schema(grammar.schema), strict_mode=False, **options)
    )


def _options(grammar: Choice | Either) -> Sequence[Grammar]:
    if isinstance(grammar, Either):
        return grammar.options
    return [spec.Literal(text) for text in grammar.options]


_NOTHING: Final = {"type": "const_string", "value": ""}


def _sequence(elements: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    return {"type": "sequence", "elements": elements} if elements else _NOTHING


def _either(elements: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    if not elements:
        raise BadGrammar("a choice without options allows nothing")
    return {"type": "or", "elements": elements}


def _repeated(part: Mapping[str, object], least: int, most: int | None, between: str) -> Mapping[str, object]:
    if least < 0 or (most is not None and most < least):
        raise BadGrammar(f"a part cannot be repeated {least} to {most} times")
    if most == 0:
        return _NOTHING
    if not between:
        return {"type": "repeat", "min": least, "max": -1 if most is None else most, "content": part}
    following = _sequence([{"type": "const_string", "value": between}, part])
    more = _repeated(following, max(least - 1, 0), None if most is None else most - 1, "")
    repeated = _sequence([part, more])
    return {"type": "optional", "content": repeated} if least == 0 else repeated


def _checked_schema(schema: str) -> str:
    """The library takes a schema with anything behind it, and the last of two equal keys."""
    try:
        return json.dumps(json.loads(schema, parse_constant=_no_number))
    except RecursionError as error:
        raise TooComplex("the schema is nested too deeply") from error
    except ValueError as error:
        raise BadSchema(f"the schema is not JSON: {error}") from error


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


_GBNF = re.compile(
    r"""
      (?P<kept> "(?:\\.|[^"\\])*" | \[(?:\\.|[^\]\\])*\] )
    | (?P<comment> \#[^\n]* )
    | (?P<any> \. )
    | (?P<times> \{\s*, )
    | (?P<nothing> \|(?=\s*(?:\||\)|\Z|[\w-]+\s*::=)) )
    """,
    re.VERBOSE,
)

_WRITTEN_OUT: Final = {"any": r"[\x00-\U0010FFFF]", "times": "{0,", "nothing": '| ""', "comment": ""}


def _without_shorthand(text: str) -> str:
    """What llama.cpp's GBNF has and the library does not, written out: any character, repeats from nothing, an empty last
    option."""
    return _GBNF.sub(lambda match: _WRITTEN_OUT.get(match.lastgroup or "", match[0]), text)


def _damaged() -> BadGrammar:
    return BadGrammar("the compiled grammar is damaged or of another version")


def _refusal(error: RuntimeError, grammar: Grammar) -> BadGrammar:
    message = sentence(error)
    return BadSchema(message) if isinstance(grammar, JsonSchema) else BadGrammar(message)

"""xgrammar behind the protocol: EBNF, schemas, trees of both, errors, and steps that take too long."""

from __future__ import annotations

import json
import random

import pytest

from grammar.backends import xgrammar as module
from grammar.backends.xgrammar import XGrammar
from grammar.errors import BadGrammar, BadSchema, GrammarError, MatcherError, TooComplex
from grammar.matcher import Matcher
from grammar.spec import (
    ANY_OBJECT,
    Choice,
    Concat,
    Ebnf,
    Either,
    FreeText,
    Grammar,
    JsonSchema,
    Lark,
    Literal,
    Marker,
    Regex,
    Repeat,
)

from .cursors import BYTES, SPECIALS, allowed, followed, outcome

IM_START, IM_END, END_OF_TEXT = SPECIALS.values()
SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"type":"string"}}},'
    '"required":["a"]}'
)
LIST = Ebnf('root ::= item ("," item)*\nitem ::= [a-c]{1,2}')
THOUGHT = Concat((FreeText(("</think>",)), Marker("</think>"), LIST))

THINKS = Concat(
    (
        Repeat(
            Concat(
                (
                    Marker("<|im_start|>"),
                    FreeText(("<|im_end|>",)),
                    Marker("<|im_end|>"),
                    Choice(("", "\n")),
                )
            ),
            0,
            1,
        ),
        LIST,
    )
)
"""Thoughts between special tokens, if the text begins with one."""

TABLE: list[tuple[Grammar, str | list[str | bytes | int], str]] = [
    # EBNF, and what llama.cpp writes
    (LIST, "a,bc", "complete"),
    (LIST, "a,", "partial"),
    (LIST, "d", "refused"),
    (LIST, "", "partial"),
    (Ebnf('root ::= root "a" | "b"'), "baa", "complete"),
    (Ebnf('root ::= .{2} "\\\\." [.]'), "é\n\\..", "complete"),
    (Ebnf('root ::= "a" {,2} # . {,\n'), "aa", "complete"),
    (Ebnf('root ::= "a" {,2}'), "aaa", "refused"),
    (Ebnf('root ::= ("a" | ) "b" |\nx ::= "c"'), "", "complete"),
    (Ebnf('root ::= ("a" | ) "b" |\nx ::= "c"'), "b", "complete"),
    (Ebnf('root ::= "a" | "#." # "\n  | x-y\nx-y ::= "\\x41\\u00e9\\""'), 'Aé"', "complete"),
    (Ebnf('root ::= "a" | "#."'), "#.", "complete"),
    (Ebnf('root ::= [^"\\\\\\x00-\\x1f|]+ [|]'), "é.|", "complete"),
    (Ebnf('root ::= (a)*\na ::= "x"?'), "xx", "complete"),
    (Ebnf('root ::= ""'), "", "complete"),
    # schemas
    (JsonSchema(SCHEMA), '{"a": 1, "b": ["x", "y"]}', "complete"),
    (JsonSchema(SCHEMA), '{"a": 1, "b": [], "z": {}}', "complete"),
    (JsonSchema(SCHEMA), '{"b": []', "refused"),
    (JsonSchema(SCHEMA), '{"a":1', "refused"),
    (JsonSchema(SCHEMA), '{"a": 1} ', "refused"),
    (JsonSchema(SCHEMA, whitespace="flexible"), '{ \n"a"  : 1 ,"b":[  ]}', "complete"),
    (JsonSchema(SCHEMA, whitespace="flexible"), '{   "a"', "refused"),
    (JsonSchema("true"), "[1, null]", "complete"),
    (ANY_OBJECT, "[]", "refused"),
    (JsonSchema('{"const":"x","const":"y"}'), '"y"', "complete"),
    (JsonSchema('{"type":"string"}'), ['"', IM_END], "refused"),
    # trees
    (THOUGHT, "a</think>b,b", "complete"),
    (THOUGHT, "a</think", "partial"),
    (THOUGHT, "a</think>x", "refused"),
    (THOUGHT, ["a", IM_END], "refused"),
    (Concat((LIST, Literal(";"), JsonSchema(SCHEMA))), 'a;{"a": 1, "b": []}', "complete"),
    (Concat((LIST, Literal(";"), JsonSchema(SCHEMA))), 'a;{"a":1', "refused"),
    (Concat((LIST, JsonSchema(SCHEMA, whitespace="flexible"))), 'a{"a":\n1}', "complete"),
    (Concat(()), "", "complete"),
    (Either((LIST, Choice(("xy", "xz")))), "xz", "complete"),
    (Either((LIST, Choice(("xy", "xz")))), "b", "complete"),
    (Repeat(LIST, 0, 2, ";"), "", "complete"),
    (Repeat(LIST, 0, 2, ";"), "a;b,c", "complete"),
    (Repeat(LIST, 0, 2, ";"), "a;b;", "refused"),
    (Repeat(LIST, 2, None, ";"), "a", "partial"),
    (Repeat(LIST, 2, None, ";"), "a;a;a", "complete"),
    (Repeat(Literal("ab"), 0, 0), "", "complete"),
    (Repeat(Literal("ab"), 1, 2), "abab", "complete"),
    (Repeat(Literal("ab"), 0, 1, ","), "ab,", "refused"),
    # trees with special tokens
    (Marker("<|im_start|>"), [IM_START], "complete"),
    (Marker("<|im_start|>"), "<|im_start|>", "refused"),
    (THINKS, "a,b", "complete"),
    (THINKS, [IM_START], "partial"),
    (THINKS, [IM_START, "x", IM_END], "partial"),
    (THINKS, [IM_START, "x", IM_END, "\na"], "complete"),
    (THINKS, [IM_START, IM_END, "a"], "complete"),
    (THINKS, "\na", "refused"),
    (THINKS, [IM_START, "x", IM_START], "refused"),
    (THINKS, [IM_START, "x", END_OF_TEXT], "refused"),
    (THINKS, [IM_END], "refused"),
    (THINKS, ["a", IM_START], "refused"),
    (THINKS, "<|im_start|>x<|im_end|>a", "refused"),
    (Repeat(Concat((Marker("<|im_start|>"), LIST)), 1, 2), [IM_START, "a", IM_START, "b"], "complete"),
    (Repeat(Concat((Marker("<|im_start|>"), LIST)), 1, 2), ["a"], "refused"),
    (Either((Marker("<|im_end|>"), Concat((Marker("<|im_end|>"), LIST)))), [IM_END], "complete"),
    (Either((Marker("<|im_end|>"), Concat((Marker("<|im_end|>"), LIST)))), [IM_END, "c"], "complete"),
]  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> XGrammar:
    return XGrammar(BYTES)


@pytest.mark.parametrize(("grammar", "text", "expected"), TABLE, ids=[f"{i}" for i in range(len(TABLE))])
def test_languages(backend: XGrammar, grammar: Grammar, text: str, expected: str) -> None:
    assert backend.takes(grammar)
    assert outcome(backend, grammar, text) == expected


@pytest.mark.parametrize(
    "grammar",
    [Regex("a"), Lark('start: "a"'), Concat((LIST, Repeat(Either((Regex("a"),)))))],
)
def test_what_it_does_not_take(backend: XGrammar, grammar: Grammar) -> None:
    assert not backend.takes(grammar)


ERRORS: list[tuple[Grammar, type[GrammarError], str]] = [
    (Ebnf("root ::= ("), BadGrammar, "^EBNF parser error at line 1, column 11: Expect element, but got$"),
    (Ebnf('x ::= "a"'), BadGrammar, 'name "root" is not found$'),
    (Ebnf("root ::= foo"), BadGrammar, 'Rule "foo" is not defined$'),
    (Ebnf(""), BadGrammar, 'name "root" is not found$'),
    (JsonSchema("{"), BadSchema, "not JSON"),
    (JsonSchema('{"const":NaN}'), BadSchema, "NaN is no number"),
    (JsonSchema("{} x"), BadSchema, "not JSON"),
    (JsonSchema("[" * 100_000), TooComplex, "nested too deeply"),
    (JsonSchema("[]"), BadSchema, "^Schema should be an object or bool"),
    (JsonSchema('{"type":"strng"}'), BadSchema, 'Unsupported type "strng"$'),
    (Concat((LIST, Choice(()))), BadGrammar, "without options"),
    (Concat((LIST, Repeat(LIST, 2, 1))), BadGrammar, "2 to 1 times"),
    (Concat((LIST, Regex("a"))), BadGrammar, "put together with EBNF"),
    (Concat((Repeat(Marker("<|im_end|>")), LIST)), BadGrammar, "^special tokens that repeat cannot"),
    (Concat((*[Repeat(Marker("<|im_end|>"), 0, 1)] * 5, LIST)), BadGrammar, "^so many optional special"),
]


@pytest.mark.parametrize(("grammar", "kind", "message"), ERRORS, ids=[f"{i}" for i in range(len(ERRORS))])
def test_errors_are_one_clear_line(
    backend: XGrammar, grammar: Grammar, kind: type[GrammarError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        backend.compile(grammar)
    text = str(caught.value)
    assert "\n" not in text
    assert ".cc" not in text
    assert "/" not in text
    assert len(text) < 500


class TestCursor:
    def test_end_tokens_and_padding_are_never_allowed(
        self, backend: XGrammar, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for grammar in (FreeText(("x",)), FreeText(), ANY_OBJECT, Ebnf("root ::= Token(257) | [a-z]*")):
            cursor = backend.compile(grammar).start()
            assert not set(allowed(cursor, BYTES)) - set(range(256))
            for token in (-1, IM_START, END_OF_TEXT, 270, 299, 300, 10**9):
                assert not cursor.accept(token)
        assert capfd.readouterr().err == ""  # the library would warn of each

    def test_nothing_is_allowed_behind_the_end(self, backend: XGrammar) -> None:
        cursor = backend.compile(Ebnf('root ::= "ab"')).start()
        assert followed(cursor, b"ab")
        assert cursor.accepting()
        assert allowed(cursor, BYTES) == []
        assert not cursor.accept(97)
        cursor.rollback(1)
        assert allowed(cursor, BYTES) == [98]
        cursor.rollback(0)
        cursor.rollback(1)
        assert allowed(cursor, BYTES) == [97]

    def test_a_wrong_token_changes_nothing(self, backend: XGrammar) -> None:
        cursor = backend.compile(JsonSchema(SCHEMA)).start()
        for token in b'{"a": 1':
            before = allowed(cursor, BYTES)
            assert not cursor.accept(1)
            assert allowed(cursor, BYTES) == before
            assert cursor.accept(token)

    def test_cursors_are_apart(self, backend: XGrammar) -> None:
        compiled = backend.compile(Ebnf('root ::= "ab" | "ac"'))
        first, second = compiled.start(), compiled.start()
        assert followed(first, b"ab")
        assert allowed(second, BYTES) == [97]

    def test_endless_text_is_not_looked_for(self, backend: XGrammar) -> None:
        cursor = backend.compile(Ebnf('root ::= "a" root')).start()
        assert not cursor.forced()
        assert allowed(cursor, BYTES) == [97]

    def test_what_the_library_raises_ends_one_sequence(self, backend: XGrammar) -> None:
        cursor = backend.compile(LIST).start()
        with pytest.raises(MatcherError) as caught:
            cursor.rollback(1)
        assert ".cc" not in str(caught.value)

    def test_a_step_that_takes_too_long(self, backend: XGrammar, monkeypatch: pytest.MonkeyPatch) -> None:
        cursor = backend.compile(LIST).start()
        monkeypatch.setattr(module, "STEP_SECONDS", 0.0)
        with pytest.raises(MatcherError, match="too long"):
            allowed(cursor, BYTES)
        with pytest.raises(MatcherError, match="too long"):
            cursor.accept(97)

    @pytest.mark.parametrize("seed", range(8))
    def test_tokens_are_taken_back_across_special_ones(self, backend: XGrammar, seed: int) -> None:
        grammar = Either((THINKS, Repeat(Concat((Marker("<|im_start|>"), LIST)), 0, 2)))
        compiled = backend.compile(grammar)
        noise = random.Random(seed)
        cursor = compiled.start()
        tokens: list[int] = []
        for _ in range(60):
            options = allowed(cursor, BYTES)
            if not options or noise.random() < 0.3:
                count = noise.randint(0, len(tokens))
                cursor.rollback(count)
                del tokens[len(tokens) - count :]
                fresh = compiled.start()
                assert followed(fresh, tokens)
                assert allowed(cursor, BYTES) == allowed(fresh, BYTES)
                assert cursor.accepting() == fresh.accepting()
                continue
            marks = [token for token in options if token >= IM_START]
            tokens.append(noise.choice(marks if marks and noise.random() < 0.5 else options))
            assert cursor.accept(tokens[-1])


class TestExport:
    @pytest.mark.parametrize("grammar", [LIST, THOUGHT, THINKS, JsonSchema(SCHEMA)])
    def test_what_is_loaded_is_the_same(self, backend: XGrammar, grammar: Grammar) -> None:
        compiled = backend.compile(grammar)
        exported = backend.export(compiled)
        assert bool(exported) != isinstance(grammar, JsonSchema)
        loaded = XGrammar(BYTES).load(grammar, exported)
        noise = random.Random(0)
        first, second = compiled.start(), loaded.start()
        for _ in range(30):
            options = allowed(first, BYTES)
            assert allowed(second, BYTES) == options
            assert first.accepting() == second.accepting()
            if not options:
                break
            token = noise.choice(options)
            assert first.accept(token) == second.accept(token) is True
        assert compiled.backend == backend.name == "xgrammar"
        assert compiled.nbytes > 0

    def test_damaged(self, backend: XGrammar) -> None:
        for exported in (b"x", b"{}", b"\xff"):
            with pytest.raises(BadGrammar, match="damaged"):
                backend.load(LIST, exported)
        with pytest.raises(BadGrammar, match="damaged"):
            backend.load(THINKS, b"x")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_walks_end_in_the_language(backend: XGrammar, seed: int, whitespace: str) -> None:
    grammar = JsonSchema(SCHEMA, whitespace="compact" if whitespace == "compact" else "flexible")
    place = Matcher(backend.compile(grammar), (IM_END,), BYTES)
    noise = random.Random(seed)
    tokens: list[int] = []
    while not place.ended and len(tokens) < 400:
        options = allowed(place, BYTES)
        quick = [t for t in options if t in (IM_END, ord('"'), ord("}"), ord("]"))]
        tokens.append(noise.choice(quick if quick and noise.random() < 0.4 else options))
        place.accept(tokens[-1])
    if place.ended:
        value = json.loads(bytes(tokens[:-1]))
        assert isinstance(value["a"], int)

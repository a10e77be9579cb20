"""llguidance behind the protocol: every node's language, tokens, errors and limits."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from engine.model_store.store import LocalModel
from grammar.backends.llguidance import LLGuidance
from grammar.errors import BadGrammar, BadSchema, DeadEnd, GrammarError, MatcherError, TooComplex
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
from grammar.vocabulary import Vocabulary, load_vocabulary

from .cursors import BYTES, SPECIALS, Spelled, allowed, followed, outcome

IM_START, IM_END, END_OF_TEXT = SPECIALS.values()

SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"type":"string"}}},'
    '"required":["a"],"additionalProperties":false}'
)
CALL = Concat(
    (
        Marker("<tool_call>"),
        Literal('\n{"name": "f", "arguments": '),
        JsonSchema(SCHEMA),
        Literal("}\n"),
        Marker("</tool_call>"),
    )
)
TEXT = FreeText(("<tool_call>",))
AUTO = Concat((TEXT, Repeat(Concat((CALL, TEXT)))))
ONE = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
THOUGHT = Concat((FreeText(("</think>",)), Marker("</think>"), Literal("\n\n"), JsonSchema(SCHEMA)))
ELEMENTS = Concat(
    (
        Literal("<a>"),
        Repeat(Literal("<b>"), 0, 1),
        Repeat(Concat((Literal("<c>"), JsonSchema('{"type":"null"}'))), 0, 1),
        Literal("</a>"),
    )
)
BRACKETED_CALL = Concat(
    (FreeText(("<<|im_start|>",)), Literal("<"), Marker("<|im_start|>"), JsonSchema(SCHEMA))
)
SPECIAL_CALL = Concat((FreeText(("<|im_start|>",)), Marker("<|im_start|>"), JsonSchema(SCHEMA)))

TABLE: list[tuple[Grammar, str | list[str | bytes | int], str]] = [
    # schemas
    (JsonSchema(SCHEMA), '{"a": 1, "b": ["x", "y"]}', "complete"),
    (JsonSchema(SCHEMA), '{"a": 1', "partial"),
    (JsonSchema(SCHEMA), '{"a":1}', "refused"),
    (JsonSchema(SCHEMA), '{ "a": 1}', "refused"),
    (JsonSchema(SCHEMA), '{"a": 1,"b": []}', "refused"),
    (JsonSchema(SCHEMA), '{"a": 1} ', "refused"),
    (JsonSchema(SCHEMA), ' {"a": 1}', "refused"),
    (JsonSchema(SCHEMA), '{"b": []}', "refused"),
    (JsonSchema(SCHEMA, whitespace="flexible"), '{"a":1,"b":["x"]}', "complete"),
    (JsonSchema(SCHEMA, whitespace="flexible"), '{ \n"a"  :\t\t1\r\n, "b" :[ "x" ]  }', "complete"),
    (JsonSchema(SCHEMA, whitespace="flexible"), '{   "a"', "refused"),
    (JsonSchema(SCHEMA, whitespace="flexible"), '{"a": 1   ', "refused"),
    (JsonSchema(SCHEMA, whitespace="flexible"), ' {"a"', "refused"),
    (JsonSchema(SCHEMA, whitespace="flexible"), '{"a": 1} ', "refused"),
    (JsonSchema("true"), "[null, 1.5e3]", "complete"),
    (JsonSchema("{}"), '"x"', "complete"),
    (JsonSchema(' { "type" : "null" } '), "null", "complete"),
    (ANY_OBJECT, '{"x": [{}, {"y": true}]}', "complete"),
    (ANY_OBJECT, "[]", "refused"),
    (JsonSchema('{"const":"<|im_end|>"}'), '"<|im_end|>"', "complete"),
    (JsonSchema('{"const":"<|im_end|>"}'), ['"', IM_END, '"'], "refused"),
    (JsonSchema('{"type":"string"}'), ['"', IM_END], "refused"),
    (JsonSchema('{"type":"string"}'), '"é😀\\n\\u0007"', "complete"),
    (JsonSchema('{"type":"string"}'), [b'"\xff'], "refused"),
    # patterns
    (Regex("ab*c"), "abbc", "complete"),
    (Regex("ab*c"), "abb", "partial"),
    (Regex("^ab*c$"), "abbc", "complete"),
    (Regex("a|^b$"), "b", "complete"),
    (Regex("a/b\nc"), "a/b\nc", "complete"),
    (Regex("[/]"), "/", "complete"),
    (Regex(r"\d"), "7", "complete"),
    (Regex(r"\d"), "٣", "refused"),
    (Regex(r"\w"), "é", "refused"),
    (Regex(r"\p{L}+"), "éß", "complete"),
    (Regex("."), "\n", "refused"),
    (Regex("(?s:.)"), "\n", "complete"),
    (Regex("(?i)ab"), "Ab", "complete"),
    (Regex(""), "", "complete"),
    (Regex("|a"), "", "complete"),
    (Regex("(?i:é)[^x]"), "É\u2028", "complete"),
    (Regex('/ "b"\nstart: "c" //'), '/ "b"\nstart: "c" //', "complete"),
    # fixed texts
    (Choice(("a", "ab", "b")), "a", "complete"),
    (Choice(("a", "ab", "b")), "ab", "complete"),
    (Choice(("a", "ab", "b")), "ba", "refused"),
    (Choice(("", "x")), "", "complete"),
    (Choice(('"', "\\", "\x00\x7f", "é😀", "\n")), "\x00\x7f", "complete"),
    (Choice(('"', "\\", "\x00\x7f", "é😀", "\n")), "é😀", "complete"),
    (Literal("<|im_start|>"), "<|im_start|>", "complete"),
    (Literal("<|im_start|>"), [IM_START], "refused"),
    (Literal(""), "", "complete"),
    (Marker("<|im_start|>"), [IM_START], "complete"),
    (Marker("<|im_start|>"), "<", "refused"),
    (Marker("<|im_start|>"), [IM_END], "refused"),
    (Marker("<tool_call>"), "<tool_call>", "complete"),
    # free text
    (FreeText(), "", "complete"),
    (FreeText(), "anything\n<tool_call>", "complete"),
    (FreeText(), [IM_START], "refused"),
    (FreeText(), [b"\xc3"], "partial"),
    (FreeText(), [b"\xff"], "refused"),
    (TEXT, "a <tool_call", "complete"),
    (TEXT, "a <tool_call>", "refused"),
    (TEXT, "<tool_<tool_call", "complete"),
    (FreeText(("aab", "b")), "aaa", "complete"),
    (FreeText(("aab", "b")), "ab", "refused"),
    # calls in free text
    (AUTO, "", "complete"),
    (AUTO, "hi <tool", "complete"),
    (AUTO, "hi <tool_call>", "partial"),
    (AUTO, "hi <tool_call>x", "refused"),
    (AUTO, "hi <<tool_call>\n", "partial"),
    (AUTO, ONE, "complete"),
    (AUTO, "a" + ONE + " then <tool_cal", "complete"),
    (AUTO, ONE + ONE + "\n" + ONE, "complete"),
    (AUTO, ONE[:-1], "partial"),
    (AUTO, ONE + "</tool_call>", "complete"),
    (Concat((TEXT, Repeat(CALL, 1, 2, "\n"))), "x", "partial"),
    (Concat((TEXT, Repeat(CALL, 1, 2, "\n"))), "x" + ONE + "\n" + ONE, "complete"),
    (Concat((TEXT, Repeat(CALL, 1, 2, "\n"))), ONE + ONE, "refused"),
    (Concat((TEXT, Repeat(CALL, 1, 2, "\n"))), ONE + "\n" + ONE + "\n", "refused"),
    (THOUGHT, "</thin </think>\n\n{", "partial"),
    (THOUGHT, 'a\n</think>\n\n{"a": 1}', "complete"),
    (THOUGHT, "</think>{", "refused"),
    (SPECIAL_CALL, ["a", IM_START, '{"a": 1}'], "complete"),
    (SPECIAL_CALL, "a<|im_start|", "partial"),
    (SPECIAL_CALL, "a<|im_start|>", "refused"),
    (SPECIAL_CALL, ["a", IM_END], "refused"),
    (ELEMENTS, "<a></a>", "complete"),
    (ELEMENTS, "<a><b></a>", "complete"),
    (ELEMENTS, "<a><c>null</a>", "complete"),
    (ELEMENTS, "<a><b><c>null</a>", "complete"),
    (ELEMENTS, "<a><b><b></a>", "refused"),
    (BRACKETED_CALL, ["a < b <", IM_START, '{"a": 1}'], "complete"),
    (BRACKETED_CALL, ["<", IM_START, '{"a": 1}'], "complete"),
    (BRACKETED_CALL, ["a", IM_START], "refused"),
    (BRACKETED_CALL, "a < b <", "partial"),
    (BRACKETED_CALL, "a <<|im_start|>", "refused"),
    # trees
    (Concat((Regex("[a-z]*"), Literal("end"), Choice(("1", "2")))), "endend1", "complete"),
    (Concat((Literal("a"), Literal(""), Literal("b"))), "ab", "complete"),
    (Concat(()), "", "complete"),
    (Either((Literal("x"), JsonSchema(SCHEMA), ANY_OBJECT)), '{"z": 1}', "complete"),
    (Either((Literal("x"), JsonSchema(SCHEMA), ANY_OBJECT)), '{"a": 1}', "complete"),
    (Either((Literal("x"), JsonSchema(SCHEMA))), "x", "complete"),
    (Repeat(Regex("[ab]"), 2, 3), "a", "partial"),
    (Repeat(Regex("[ab]"), 2, 3), "aba", "complete"),
    (Repeat(Regex("[ab]"), 2, 3), "abab", "refused"),
    (Repeat(Regex("[ab]"), 0, 0), "", "complete"),
    (Repeat(Regex("[ab]"), 1, 1, ", "), "a", "complete"),
    (Repeat(Regex("[ab]"), 1, 1, ", "), "a, b", "refused"),
    (Repeat(Regex("[ab]"), 0, 1, ", "), "", "complete"),
    (Repeat(Regex("[ab]"), 0, 0), "a", "refused"),
    (Repeat(Regex("[ab]"), between=", "), "", "complete"),
    (Repeat(Regex("[ab]"), 1, 1, ", "), "a", "complete"),
    (Repeat(Regex("[ab]"), 1, 1, ", "), "a, ", "refused"),
    (Repeat(JsonSchema(SCHEMA), 0, 1, ";"), '{"a": 1}', "complete"),
    (Repeat(Regex("[ab]"), between=", "), "a, b, b", "complete"),
    (Repeat(Regex("[ab]"), between=", "), "a, ", "partial"),
    (Repeat(JsonSchema(SCHEMA), 1, None, ";"), '{"a": 1};{"a": 2};{"a": 3}', "complete"),
    (Repeat(Concat((Marker("<|im_end|>"), Literal("a"))), 0, 2, ","), [IM_END, "a,", IM_END, "a"], "complete"),
    (Repeat(Concat((Marker("<|im_end|>"), Literal("a"))), 0, 2, ","), "", "complete"),
    (Repeat(FreeText(("\n",)), 1, 1), "abc", "complete"),
    (Repeat(Concat((FreeText(("\n",)), Literal("\n"))), 2, 3), "a\n\nb\n", "complete"),
    (Repeat(Concat((FreeText(("\n",)), Literal("\n"))), 2, 3), "a\n\nb\nc", "refused"),
    (Concat((FreeText(("ab", "bc")), Choice(("abX", "bcY", "bcZ")))), "aabX", "complete"),
    (Concat((FreeText(("ab", "bc")), Choice(("abX", "bcY", "bcZ")))), "cbcZ", "complete"),
    (Concat((FreeText(("ab", "bc")), Choice(("abX", "bcY")), Literal("!"))), "abX", "partial"),
    (Concat((FreeText(("abc",)), Literal("ab"), Choice(("c", "cd")))), "abcd", "complete"),
    # Lark
    (Lark('start: "a" INT\n%import common.INT'), "a12", "complete"),
    (Lark('start: "a" | start "b"'), "abb", "complete"),
    (Lark('start: x\nx[capture="stop", suffix="."]: /[a-z ]*/'), "non stop.", "complete"),
    (Lark('start: "a" <[257]>'), "a", "partial"),
    (Lark('start: "a" <[257]>'), ["a", IM_END], "refused"),
    (Lark('start: "a" %json {"type":"null"}'), "anull", "complete"),
    (Concat((Literal("<"), Lark('start: A\nA: "a"'), Lark('start: A\nA: "b"'), Literal(">"))), "<ab>", "complete"),
]  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> LLGuidance:
    return LLGuidance(BYTES)


@pytest.mark.parametrize(("grammar", "text", "expected"), TABLE, ids=[f"{i}" for i in range(len(TABLE))])
def test_languages(backend: LLGuidance, grammar: Grammar, text: str, expected: str) -> None:
    assert backend.takes(grammar)
    assert outcome(backend, grammar, text) == expected


def test_what_it_does_not_take(backend: LLGuidance) -> None:
    assert not backend.takes(Ebnf('root ::= "a"'))
    assert not backend.takes(Concat((Literal("a"), Repeat(Either((Ebnf('root ::= "a"'),))))))


ERRORS: list[tuple[Grammar, type[GrammarError], str]] = [
    (JsonSchema("{"), BadSchema, "not JSON"),
    (JsonSchema("[]"), BadSchema, "an object or a boolean"),
    (JsonSchema("false"), BadSchema, "accepts nothing"),
    (JsonSchema('{"type":"strng"}'), BadSchema, "Invalid type: strng$"),
    (JsonSchema('{"uniqueItems":true}'), BadSchema, "uniqueItems"),
    (JsonSchema('{"$ref":"#/nope"}'), BadSchema, "'/nope' does not exist$"),
    (JsonSchema('{"enum":["\\ud800"]}'), BadSchema, "hex escape$"),
    (JsonSchema('{"const":NaN}'), BadSchema, "expected value$"),
    (JsonSchema('{"type":"string","pattern":"(?=a)"}'), BadSchema, "^look-around.*not supported$"),
    (
        JsonSchema('{"oneOf":[{"minimum":1},{"maximum":2}]}'),
        BadSchema,
        "oneOf constraints are not supported$",
    ),
    (JsonSchema('{"$ref":"#"}'), BadGrammar, "allows no text"),
    (JsonSchema("[" * 100_000), TooComplex, "nested too deeply"),
    (JsonSchema('{"items":' * 150 + "{}" + "}" * 150), TooComplex, "recursion limit exceeded$"),
    (JsonSchema(json.dumps({"enum": [f"x{i}" for i in range(100_000)]})), TooComplex, "too big"),
    (Regex("("), BadGrammar, r'^invalid regex "\(": unclosed group$'),
    (Regex("a^b"), BadGrammar, "lookarounds not supported"),
    (Regex(r"(a)\1"), BadGrammar, "backreferences are not supported$"),
    (Choice(()), BadGrammar, "without options"),
    (Either(()), BadGrammar, "without options"),
    (Concat((Literal("a"), Either((Choice(()), Literal("b"))))), BadGrammar, "without options"),
    (Repeat(Literal("a"), 3, 2), BadGrammar, "3 to 2 times"),
    (Repeat(Literal("a"), -1), BadGrammar, "-1 to None times"),
    (FreeText(("",)), BadGrammar, "the empty text"),
    (Concat((FreeText(), Literal("x"))), BadGrammar, '"x" may follow has to exclude'),
    (Concat((FreeText(("xyz",)), Literal("xy"))), BadGrammar, 'only "xy"'),
    (Concat((FreeText(("x",)), Regex("x"))), BadGrammar, "followed by a pattern"),
    (Concat((FreeText(("{",)), ANY_OBJECT)), BadGrammar, "followed by a schema"),
    (Concat((FreeText(("x",)), FreeText())), BadGrammar, "followed by free text"),
    (Repeat(FreeText(("x",))), BadGrammar, "followed by free text"),
    (Lark('start: x "b"\nx[lazy, max_tokens=2]: /a*/'), BadGrammar, "^line 2: .*max_tokens="),
    (Lark('start: x "b"\nx[stop = ""]: /a*/'), BadGrammar, "^line 2: .*stop="),
    (Lark("start: foo"), BadGrammar, '^line 1, column 8: unknown name: "foo"$'),
    (Lark('start: "a"\nx: ('), BadGrammar, "^line 2, column"),
    (Lark("start: <|nope|>"), BadGrammar, 'unknown special token: "<|nope|>"$'),
    (Lark("start: start"), BadGrammar, "allows no text"),
    (Lark('start: "a" @g1'), BadGrammar, "unknown grammar @g1"),
]


@pytest.mark.parametrize(("grammar", "kind", "message"), ERRORS, ids=[f"{i}" for i in range(len(ERRORS))])
def test_errors_are_one_clear_line(
    backend: LLGuidance, grammar: Grammar, kind: type[GrammarError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        backend.compile(grammar)
    text = str(caught.value)
    assert "\n" not in text
    assert ".rs" not in text
    assert len(text) < 500
    assert "x-guidance" not in text


class TestInjection:
    """A schema is a schema, whatever is written in it."""

    @pytest.mark.parametrize(
        "schema",
        [
            '{"x-guidance":{"whitespace_flexible":true,"lenient":true},"type":"array"}',
            '{"type":"array","x-guidance":{"item_separator":"x*"},"x-guidance":{"item_separator":"x*"}}',
            '{"x\\u002dguidance":{"whitespace_pattern":"x*"},"type":"array"}',
        ],
    )
    def test_options(self, backend: LLGuidance, schema: str) -> None:
        assert outcome(backend, JsonSchema(schema), "[1, 2]") == "complete"
        assert outcome(backend, JsonSchema(schema), "[1,2]") == "refused"
        assert outcome(backend, JsonSchema(schema), "[x") == "refused"
        assert outcome(backend, JsonSchema(schema), "[ 1") == "refused"

    def test_lenience(self, backend: LLGuidance) -> None:
        with pytest.raises(BadSchema, match="uniqueItems"):
            backend.compile(JsonSchema('{"uniqueItems":true,"x-guidance":{"lenient":true}}'))

    @pytest.mark.parametrize("text", ['{} | "x"', '{}\nstart: "x"', "{} // x"])
    def test_lark_text_behind_a_schema(self, backend: LLGuidance, text: str) -> None:
        with pytest.raises(BadSchema, match="not JSON"):
            backend.compile(JsonSchema(text))

    def test_literals(self, backend: LLGuidance) -> None:
        for text in ('" | "b', '"\nstart: "b"', '\\" //', "<[257]>", "/b/", "%json {}"):
            assert outcome(backend, Literal(text), text) == "complete"
            assert outcome(backend, Concat((FreeText((text,)), Literal(text))), "x" + text) == "complete"

    def test_a_lark_grammar_names_no_special_token(self, backend: LLGuidance) -> None:
        for text in ("start: <[*]>* ", "start: <|im_end|>", "start: <[257]>", "start: <[300]>"):
            cursor = backend.compile(Concat((Lark('start: "a"'), Repeat(Lark(text), 0, 1)))).start()
            assert followed(cursor, b"a")
            assert not set(allowed(cursor, BYTES)) - set(range(256))
            assert not any(cursor.accept(token) for token in range(256, 301))

    def test_a_lark_grammar_does_not_reach_into_another(self, backend: LLGuidance) -> None:
        tree = Concat((Lark('start: x\nx: "a"'), Lark('start: x\nx: "b"')))
        assert outcome(backend, tree, "ab") == "complete"
        assert outcome(backend, tree, "aa") == "refused"


class TestCursor:
    def test_end_tokens_and_padding_are_never_allowed(self, backend: LLGuidance) -> None:
        for grammar in (FreeText(), Regex("a?"), ANY_OBJECT):
            cursor = backend.compile(grammar).start()
            assert not set(allowed(cursor, BYTES)) - set(range(256))
            for token in (-1, IM_START, END_OF_TEXT, 270, 299, 300, 10**9):
                assert not cursor.accept(token)

    def test_nothing_is_allowed_behind_the_end(self, backend: LLGuidance) -> None:
        cursor = backend.compile(Literal("ab")).start()
        assert followed(cursor, b"ab")
        assert cursor.accepting()
        assert allowed(cursor, BYTES) == []
        assert not cursor.accept(97)
        cursor.rollback(1)
        assert allowed(cursor, BYTES) == [98]

    def test_a_wrong_token_changes_nothing(self, backend: LLGuidance) -> None:
        cursor = backend.compile(JsonSchema(SCHEMA)).start()
        for token in b'{"a": 1':
            before = allowed(cursor, BYTES)
            assert not cursor.accept(1)
            assert not cursor.accept(END_OF_TEXT)
            assert allowed(cursor, BYTES) == before
            assert cursor.accept(token)

    def test_rollback_of_nothing(self, backend: LLGuidance) -> None:
        cursor = backend.compile(Literal("ab")).start()
        cursor.rollback(0)
        assert allowed(cursor, BYTES) == [97]

    def test_cursors_are_apart(self, backend: LLGuidance) -> None:
        compiled = backend.compile(Choice(("ab", "ac")))
        first, second = compiled.start(), compiled.start()
        assert followed(first, b"ab")
        assert allowed(second, BYTES) == [97]
        assert followed(second, b"ac")
        assert allowed(compiled.start(), BYTES) == [97]

    def test_a_dead_end(self, backend: LLGuidance) -> None:
        cursor = backend.compile(Lark('start: "a" b | "c"\nb: b')).start()
        assert allowed(cursor, BYTES) == [97, 99]
        assert cursor.accept(97)
        with pytest.raises(DeadEnd):
            allowed(cursor, BYTES)

    def test_export_and_load(self, backend: LLGuidance) -> None:
        compiled = backend.compile(AUTO)
        cursor = backend.load(AUTO, backend.export(compiled)).start()
        assert followed(cursor, ONE.encode())
        assert compiled.backend == backend.name == "llguidance"
        assert compiled.nbytes > 0


class TestForced:
    @pytest.mark.parametrize(
        ("grammar", "before", "forced"),
        [
            (JsonSchema(SCHEMA), "", '{"a": '),
            (JsonSchema(SCHEMA), '{"a": 1, "b": []', "}"),
            (JsonSchema(SCHEMA), '{"a": ', ""),
            (JsonSchema(SCHEMA, whitespace="flexible"), "", "{"),
            (Literal("é"), "", "é"),
            (Literal("abc"), "ab", "c"),
            (Literal("abc"), "abc", ""),
            (Choice(("abc", "abd")), "", "ab"),
            (Choice(("ab", "abd")), "", "ab"),
            (Choice(("ab", "abd")), "ab", ""),
            (AUTO, "x <tool_call>", '\n{"name": "f", "arguments": {"a": '),
            (AUTO, "x <tool", ""),
            (Lark('start: "abc"'), "", ""),
        ],
    )
    def test_bytes(self, backend: LLGuidance, grammar: Grammar, before: str, forced: str) -> None:
        cursor = backend.compile(grammar).start()
        assert followed(cursor, before.encode())
        assert list(cursor.forced()) == list(forced.encode())

    def test_special_tokens(self, backend: LLGuidance) -> None:
        cursor = backend.compile(Concat((Literal("a"), Marker("<|im_end|>"), Literal("b")))).start()
        assert list(cursor.forced()) == [97, IM_END, 98]


HOSTILE: list[tuple[str, Grammar]] = [
    ("enum of 10,000", JsonSchema(json.dumps({"enum": [f"x{i}" for i in range(10_000)]}))),
    ("maxLength 1e9", JsonSchema('{"type":"string","maxLength":1000000000}')),
    ("minItems 1e5", JsonSchema('{"type":"array","minItems":100000}')),
    ("exponential pattern", Regex("(a|b)*a(a|b){24}")),
    ("optional repeats", Regex("(a?){500}a{500}")),
    ("long repeat", Regex(".{0,20000}")),
    ("nested repeats", Regex(r"(\p{L}{1,1000}){1,1000}")),
    ("nested quantifiers", Regex("(a+)+")),
    (
        "unsatisfiable recursion",
        JsonSchema('{"properties":{"a":{"$ref":"#"}},"required":["a"],"type":"object"}'),
    ),
    ("ambiguous", Lark('start: a\na: "x" | "xx" | a a')),
    ("ambiguous lexemes", Lark("start: a\na: /[a-z]+/ | a a")),
    ("endless", Lark("start: (a | b)\na: /x+/ b\nb: a")),
    ("endless and empty", Lark('start: "x" (a | b)\na: /x*/ b\nb: a')),
    ("right recursion", Lark('start: "x" start | "y"')),
    ("repeats of rules", Lark('start: (("x"{1,1000}){1,1000}){1,1000}')),
]


@pytest.mark.parametrize("grammar", [g for _, g in HOSTILE], ids=[name for name, _ in HOSTILE])
def test_hostile_grammars_cost_little_or_fail(backend: LLGuidance, grammar: Grammar) -> None:
    """Measured in CPU time of this thread, so that a busy machine is no failure; each step stays far below a second."""
    cursor = backend.compile(grammar).start()
    slowest = 0.0
    with contextlib.suppress(MatcherError):
        for step in range(400):
            start = time.thread_time()
            options = allowed(cursor, BYTES)
            if not options:
                break
            token = ord("x") if ord("x") in options else options[step % len(options)]
            assert cursor.accept(token)
            slowest = max(slowest, time.thread_time() - start)
    assert slowest < 0.5


@pytest.fixture(scope="module")
def vocabulary(demo_model: LocalModel) -> Vocabulary:
    return load_vocabulary(demo_model.path, size=49152)


@pytest.fixture(scope="module")
def large(vocabulary: Vocabulary) -> LLGuidance:
    return LLGuidance(vocabulary)


@pytest.fixture(scope="module")
def spelled_large(vocabulary: Vocabulary) -> Spelled:
    return Spelled(vocabulary)


@pytest.mark.demo_model
class TestDemoModel:
    def test_forced_text_is_spelled_as_the_model_would(
        self, large: LLGuidance, vocabulary: Vocabulary
    ) -> None:
        def spell(tokens: object) -> list[bytes]:
            assert isinstance(tokens, list)
            return [vocabulary.tokens[token] for token in tokens]

        cursor = large.compile(JsonSchema(SCHEMA)).start()
        assert spell(cursor.forced()) == [
            b'{"',
            b"a",
            b'":',
        ]  # the blank may be the beginning of a longer token
        cursor = large.compile(Literal("hello world")).start()
        assert spell(cursor.forced()) == [b"hello", b" world"]
        assert cursor.accept(cursor.forced()[0])
        assert spell(cursor.forced()) == [b" world"]

    def test_special_tokens_are_not_spelled_by_text(self, large: LLGuidance, vocabulary: Vocabulary) -> None:
        im_end = vocabulary.specials["<|im_end|>"]
        assert list(large.compile(Marker("<|im_end|>")).start().forced()) == [im_end]
        text = large.compile(Literal("<|im_end|>")).start()
        assert im_end not in allowed(text, vocabulary)
        assert not text.accept(im_end)
        assert b"".join(vocabulary.tokens[t] for t in text.forced()) == b"<|im_end|>"

    @pytest.mark.parametrize(("grammar", "text", "expected"), TABLE, ids=[f"{i}" for i in range(len(TABLE))])
    def test_languages(
        self, large: LLGuidance, spelled_large: Spelled, grammar: Grammar, text: str, expected: str
    ) -> None:
        cursor = large.compile(grammar).start()
        if not followed(cursor, spelled_large(text)):
            assert expected == "refused"
        else:
            assert expected == ("complete" if cursor.accepting() else "partial")

    def test_a_first_mask_that_costs_too_much(self, large: LLGuidance) -> None:
        with pytest.raises(TooComplex, match="too many expressions"):
            large.compile(Regex("(.{0,100}){0,100}"))

    def test_masks_have_no_special_token(self, large: LLGuidance, vocabulary: Vocabulary) -> None:
        ids = allowed(large.compile(FreeText()).start(), vocabulary)
        assert len(ids) > 48_000
        assert not set(ids) & set(vocabulary.specials.values())

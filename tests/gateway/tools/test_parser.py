"""The parser, on the format that most models use. What all formats share is in test_formats."""

from __future__ import annotations

import pytest

from gateway.tools.arguments.style import ToolShape
from gateway.tools.families import HERMES
from gateway.tools.parser import Arguments, CallBegins, CallEnds, Content, ReplyParser, Special
from grammar.spec import FreeText, Lark

from .replies import SET_TEMP, Call, Reply, read_all_ways, tool

SAVE = tool("save", {"text": {"type": "string"}})
PING = tool("ping", {})
MARKS = ("<tool_call>", "</tool_call>")


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_call_comes_in_parts_as_soon_as_they_are_certain() -> None:
    parser = ReplyParser(HERMES, [SAVE])
    assert parser.feed('Sure. <tool_call>\n{"name": "save", "arg') == [Content("Sure.")]
    assert parser.feed('uments": {"te') == [CallBegins(0, "save", None, "function"), Arguments(0, '{"te')]
    assert parser.feed('xt": "a}') == [Arguments(0, 'xt": "a}')]
    assert parser.feed('"}') == [Arguments(0, '"}')]
    assert parser.feed("}\n</tool_cal") == []
    assert parser.feed("l>") == [CallEnds(0)]
    assert parser.finish() == []


TEXTS = [
    "",
    "Hello.",
    "  two words \n",
    "a < b, <tool, <tool_cal",
    "<tool_call>",
    "<tool_call>\nnot JSON",
    '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "set_tempo", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "save", "arguments": []}\n</tool_call>',
    "</tool_call>",
    "<tool_call><tool_call>",
    "\n" * 1000,
    "a" + " " * 1000 + "b",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_call_is_text_and_whole(text: str) -> None:
    assert read_all_ways(HERMES, [SAVE, SET_TEMP], text) == Reply(content=text)


OPENING = '<tool_call>\n{"name": "save'


@pytest.mark.parametrize("before", ["", "Let me see.", hermes("ping", "{}")])
@pytest.mark.parametrize("length", range(len(OPENING) + 1))
def test_an_opening_that_was_cut_off_is_not_shown(before: str, length: int) -> None:
    reply = read_all_ways(HERMES, [SAVE, PING], before + OPENING[:length], stopped=False)
    shown = OPENING[:length] if length < 4 else ""  # too little to tell it from text
    if before.startswith("<"):
        assert reply == Reply(content=shown, calls=[Call("ping", "{}", whole=True)])
    else:
        assert reply == Reply(content=before + shown)


def test_where_a_call_has_to_come_the_first_character_of_its_mark_is_not_shown() -> None:
    for length in range(1, len(OPENING) + 1):
        reply = read_all_ways(HERMES, [SAVE], "Let me see. " + OPENING[:length], stopped=False, must=True)
        assert reply.content.rstrip() == "Let me see."


@pytest.mark.parametrize("text", ["a < b", "<tool_call>\nnot JSON", '<tool_call>\n{"name": "nobody", "argu'])
def test_text_that_was_cut_off_is_text(text: str) -> None:
    assert read_all_ways(HERMES, [SAVE], text, stopped=False) == Reply(content=text)


def test_text_before_a_broken_call_and_a_right_one_after_it() -> None:
    text = "<tool_call>\nfoo" + hermes("ping", "{}")
    assert read_all_ways(HERMES, [PING], text) == Reply(
        content="<tool_call>\nfoo", calls=[Call("ping", "{}", whole=True)]
    )


def test_blanks_beside_calls_belong_to_neither() -> None:
    ping, save = hermes("ping", "{}"), hermes("save", '{"text": "x"}')
    text = f"Two calls:\n\n{ping}\n{save}\n\nDone.\n"
    reply = read_all_ways(HERMES, [PING, SAVE], text)
    assert reply.content == "Two calls:Done.\n"
    assert [call.name for call in reply.calls] == ["ping", "save"]
    assert read_all_ways(HERMES, [PING], f"\n{ping}\n").content == ""


def test_blanks_within_a_call_may_be_others() -> None:
    text = '<tool_call>{"name":"save","arguments":\n\n{"text":"x"}  }</tool_call>'
    assert read_all_ways(HERMES, [SAVE], text).calls == [Call("save", '{"text":"x"}', whole=True)]


@pytest.mark.parametrize(
    ("cut", "arguments"),
    [
        (-1, '{"text": "x\\"}"}'),
        (-len("</tool_call>"), '{"text": "x\\"}"}'),
        (-len("}\n</tool_call>"), '{"text": "x\\"}"}'),
        (-len('"}}\n</tool_call>'), '{"text": "x\\"}'),
        (-len('"}"}}\n</tool_call>'), '{"text": "x\\'),
        (-len('{"text": "x\\"}"}}\n</tool_call>') + 1, "{"),
    ],
)
def test_call_that_is_cut_off_has_no_end(cut: int, arguments: str) -> None:
    text = hermes("save", '{"text": "x\\"}"}')[:cut]
    reply = read_all_ways(HERMES, [SAVE], text, stopped=False)
    assert reply == Reply(calls=[Call("save", arguments)])


def test_call_whose_closing_mark_is_missing_where_the_model_stopped_is_whole() -> None:
    text = hermes("ping", "{}").removesuffix("\n</tool_call>")
    assert read_all_ways(HERMES, [PING], text).calls == [Call("ping", "{}", whole=True)]


def test_call_that_goes_wrong_has_no_end_and_the_rest_is_text() -> None:
    text = '<tool_call>\n{"name": "save", "arguments": {"text": ]} and so on'
    reply = read_all_ways(HERMES, [SAVE], text)
    assert reply == Reply(content="]} and so on", calls=[Call("save", '{"text": ')])


class TestSpecialTokens:
    def test_marks_that_are_special_tokens_are_not_found_in_letters(self) -> None:
        parser = ReplyParser(HERMES, [PING], specials=MARKS)
        assert parser.marks == set(MARKS)
        text = hermes("ping", "{}")
        assert parser.feed(text) == [Content(text)]

    def test_and_as_tokens_they_are(self) -> None:
        reply = read_all_ways(HERMES, [PING], hermes("ping", "{}"), specials=MARKS)
        assert reply.calls == [Call("ping", "{}", whole=True)]

    def test_others_are_passed_over(self) -> None:
        parser = ReplyParser(HERMES, [PING], specials=(*MARKS, "<|pad|>"))
        assert parser.feed("a") + parser.feed(Special("<|pad|>")) + parser.feed("b") == [
            Content("a"),
            Content("b"),
        ]

    def test_within_arguments_they_end_the_call(self) -> None:
        text = '<tool_call>\n{"name": "save", "arguments": {"text": "a</tool_call>b'
        reply = read_all_ways(HERMES, [SAVE], text, specials=MARKS)
        assert reply == Reply(content="</tool_call>b", calls=[Call("save", '{"text": "a')])


class TestReasoning:
    def test_prompt_has_begun_it(self) -> None:
        text = f"I <tool_call> think.</think>\n\nHi. {hermes('ping', '{}')}"
        reply = read_all_ways(HERMES, [PING], text, reasoning="open")
        assert reply == Reply("Hi.", "I <tool_call> think.", [Call("ping", "{}", whole=True)])

    def test_reply_may_begin_with_it(self) -> None:
        assert read_all_ways(HERMES, [], "\n<think>Hm</think>Hi", reasoning="optional") == Reply("Hi", "Hm")
        assert read_all_ways(HERMES, [], "Hi<think>", reasoning="optional") == Reply("Hi<think>")

    def test_it_has_no_end(self) -> None:
        assert read_all_ways(HERMES, [PING], "Hm </thin", reasoning="open") == Reply("", "Hm </thin")

    def test_without_it_marks_are_text(self) -> None:
        assert read_all_ways(HERMES, [], "<think>Hm</think>").content == "<think>Hm</think>"


class TestCustomTools:
    @pytest.mark.parametrize(
        ("written", "text"),
        [
            ("", ""),
            ('a\\"b\\\\c\\nd/e\\/f', 'a"b\\c\nd/e/f'),
            ("\\ud83d\\ude00 \\u00e9 é", "😀 é é"),
            ("\\ud83d!", "\ufffd!"),
            ("</tool_call>", "</tool_call>"),
        ],
    )
    def test_text(self, written: str, text: str) -> None:
        note = ToolShape("note", custom=FreeText())
        reply = read_all_ways(HERMES, [note], hermes("note", f'{{"input": "{written}"}}'))
        assert reply.calls == [Call("note", text, whole=True, kind="custom")]

    def test_what_has_a_grammar_is_everything_to_the_end(self) -> None:
        patch = ToolShape("patch", custom=Lark("start: /(?s:.*)/"))
        text = f"x\n{hermes('patch', 'y')}\n</tool_call> and so on"
        expected = text[text.index("y}") :]
        assert read_all_ways(HERMES, [patch], text) == Reply(
            "x", calls=[Call("patch", expected, whole=True, kind="custom")]
        )
        assert not read_all_ways(HERMES, [patch], text, stopped=False).calls[0].whole


def test_time_is_linear() -> None:
    """Large pieces and many small ones: anything quadratic would run into the timeout."""
    call = hermes("save", '{"text": "' + "<tool_call>{ x " * 12_000 + '"}')
    parser = ReplyParser(HERMES, [SAVE])
    parts = [part for i in range(0, len(call), 8) for part in parser.feed(call[i : i + 8])]
    assert sum(len(part.text) for part in parts if isinstance(part, Arguments)) > 180_000
    assert read_all_ways(HERMES, [], "") == Reply()
    ReplyParser(HERMES, [SAVE]).feed("<tool_call> < " * 12_000)
    ReplyParser(HERMES, [SAVE]).feed(hermes("save", '{"text": ""}') * 4_000)

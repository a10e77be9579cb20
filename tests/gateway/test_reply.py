"""However tokens are cut into deltas, a reply has the same parts, counts and details; stop strings see content only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import FinishReason, SequenceDelta, TokenLogprob
from gateway.pieces import Answer, Piece, TextOptions, join
from gateway.reply import Reply
from gateway.stops import StopSearch
from gateway.tokenizer import Tokenizer
from gateway.tools.arguments.style import ToolShape
from gateway.tools.families import HERMES
from gateway.tools.parser import Arguments, CallBegins, CallEnds, Content, Part, Reasoning, ReplyParser
from tests.gateway import toys

TOKENIZER = Tokenizer.hash()
IM_START, IM_END = 256, 257
TOOLS = [ToolShape("add"), ToolShape("run")]
Thinks = Literal["off", "open", "optional"]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def called(index: int, name: str, arguments: str) -> list[Part]:
    return [CallBegins(index, name, None, "function"), Arguments(index, arguments), CallEnds(index)]


def read(
    tokens: Sequence[int],
    finish: FinishReason = "stop",
    cuts: Sequence[int] = (),
    *,
    thinks: Thinks = "off",
    options: TextOptions | None = None,
) -> tuple[Reply, Answer]:
    options = options or TextOptions()
    parser = ReplyParser(HERMES, TOOLS, specials=tuple(TOKENIZER.specials.ids), reasoning=thinks)
    reply = Reply(0, TOKENIZER, options, StopSearch(options.stops, include=options.include_stop), parser)
    pieces: list[Piece] = []
    edges = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        part = tuple(tokens[begin:end])
        logprobs = tuple(TokenLogprob(token, -1.0) for token in part)
        delta = SequenceDelta("r", 0, part, finish if end == len(tokens) else None, logprobs)
        piece = reply.push(delta)
        if piece is not None:
            pieces.append(piece)
        if reply.finish is not None:
            break
    assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    return reply, join(pieces)


def said(text: str) -> list[int]:
    return [*text.encode(), IM_END]


@pytest.mark.parametrize(
    ("text", "thinks", "parts"),
    [
        ("", "off", []),
        ("naïve <b>", "off", [Content("naïve <b>")]),
        (call("add", '{"a": 1}'), "off", called(0, "add", '{"a": 1}')),
        (
            "So:\n" + call("add", "{}") + "\n" + call("run", '{"x": "</tool_call>"}'),
            "off",
            [Content("So:"), *called(0, "add", "{}"), *called(1, "run", '{"x": "</tool_call>"}')],
        ),
        (
            "<think>one</think>\n\ntwo",
            "optional",
            [Reasoning("one"), Content("two")],
        ),
        ("one</think>two", "open", [Reasoning("one"), Content("two")]),
        ("<think>one</think>two", "off", [Content("<think>one</think>two")]),
        (
            "so</think>\n" + call("add", "{}"),
            "open",
            [Reasoning("so"), *called(0, "add", "{}")],
        ),
    ],
)
def test_parts(text: str, thinks: Thinks, parts: list[Part]) -> None:
    reply, answer = read(said(text), thinks=thinks)
    assert list(answer.parts) == parts
    assert answer.text == "".join(part.text for part in parts if isinstance(part, Content))
    assert (reply.tokens, answer.finish, answer.cut) == (len(said(text)), "stop", False)


TEXTS = st.lists(
    st.sampled_from(
        [
            *(
                "a",
                "b c",
                "\n",
                "<",
                "<tool_call>",
                "</tool_call>",
                "<think>",
                "</think>",
                "é",
                "{",
                "}",
                '"',
            ),
            *(call("add", '{"a": [1, "}"]}'), call("run", "{}"), call("other", "{}")),
        ]
    ),
    max_size=8,
).map("".join)


@given(
    TEXTS,
    st.lists(st.integers(0, 1000), max_size=12),
    st.sampled_from(["stop", "length"]),
    st.sampled_from(["off", "open", "optional"]),
    st.builds(
        TextOptions,
        stops=st.lists(st.sampled_from(["a", "b c", "\n<", "c<", "é"]), max_size=2).map(tuple),
        include_stop=st.booleans(),
        min_tokens=st.integers(0, 5),
        logprobs=st.just(True),
    ),
)
def test_cuts_do_not_matter(
    text: str, cuts: list[int], finish: FinishReason, thinks: Thinks, options: TextOptions
) -> None:
    tokens = said(text)
    at_once, whole = read(tokens, finish, thinks=thinks, options=options)
    in_parts, joined = read(tokens, finish, cuts, thinks=thinks, options=options)
    assert joined == whole
    assert (in_parts.tokens, in_parts.reasoning) == (at_once.tokens, at_once.reasoning)
    shown = at_once.tokens - (at_once.finish == "stop" and not whole.cut)
    assert [detail.id for detail in whole.details] == tokens[:shown]
    assert at_once.reasoning <= at_once.tokens


@pytest.mark.parametrize(
    ("stop", "parts", "finish", "cut"),
    [
        ("Oslo", [Content("In "), *called(0, "add", '{"x": "Oslo"}')], "stop", False),
        ("In", [], "stop", True),
        ("In<", [Content("In "), *called(0, "add", '{"x": "Oslo"}')], "stop", False),
    ],
)
def test_stop_strings_see_content_only(stop: str, parts: list[Part], finish: str, cut: bool) -> None:
    text = "In " + call("add", '{"x": "Oslo"}')
    _, answer = read(said(text), options=TextOptions(stops=(stop,)))
    parts = [Content("In") if part == Content("In ") else part for part in parts]
    assert (list(answer.parts), answer.finish, answer.cut) == (parts, finish, cut)


def test_a_stop_string_is_no_part_of_thoughts_and_may_follow_them() -> None:
    _, answer = read(
        said("<think>stop</think>go stop more"), thinks="optional", options=TextOptions(stops=("stop",))
    )
    assert list(answer.parts) == [Reasoning("stop"), Content("go ")]
    assert answer.cut


def test_what_a_limit_cuts_has_no_end() -> None:
    _, answer = read(list(call("add", '{"a": "lon').encode()[:-15]), "length")
    assert answer.finish == "length"
    assert CallEnds(0) not in answer.parts
    assert answer.parts[0] == CallBegins(0, "add", None, "function")


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>hm</think>\n\nHé " + call("add", "{}"), "Hé", "<think>hm"),
        ("<think></think>Hé", "Hé", ""),
        ("a<t<b <tool", "a<t<b <tool", ""),
        ("<t<b", "<t<b", ""),
        ("<tool_call>{", "<tool_call>{", ""),
        (call("add", "{}") + "\nso <", "so <", ""),
        ("<thin", "<thin", ""),
    ],
)
def test_log_probabilities_are_those_of_the_content(text: str, content: str, reasoning: str) -> None:
    reply, answer = read(said(text), thinks="optional", options=TextOptions(logprobs=True))
    told = bytes(detail.id for detail in answer.details if detail.logprob is not None)
    assert told.decode() == answer.text == content
    assert bytes(detail.id for detail in answer.details).decode() == text
    assert reply.reasoning == len(reasoning)


def test_special_tokens_that_are_no_marks_say_nothing() -> None:
    _, answer = read([*b"caf\xc3", IM_START, 0xA9, IM_END])
    assert list(answer.parts) == [Content("café")]


def test_marks_that_are_special_tokens_are_known_by_their_ids(tmp_path: Path) -> None:
    """The same in letters is text: a model cannot be made to call by what it quotes."""
    toy = toys.byte_level(["<|tool_calls_section_begin|>", "<|im_end|>"])
    toy.add_special_tokens(["<tool_call>", "</tool_call>"])
    tokenizer = Tokenizer.load(toys.write(tmp_path, toy))
    ids = tokenizer.specials.ids
    spelled = call("add", "{}")
    inside = spelled.removeprefix("<tool_call>").removesuffix("</tool_call>")
    segments = [spelled, ids["<|tool_calls_section_begin|>"], " so ", ids["<tool_call>"], inside]
    tokens = [*tokenizer.encode_segments([*segments, ids["</tool_call>"]]), ids["<|im_end|>"]]
    parser = ReplyParser(HERMES, TOOLS, specials=tuple(ids))
    reply = Reply(0, tokenizer, TextOptions(logprobs=True), StopSearch(()), parser)
    logprobs = tuple(TokenLogprob(token, -1.0) for token in tokens)
    piece = reply.push(SequenceDelta("r", 0, tuple(tokens), "stop", logprobs))
    assert piece is not None
    assert list(piece.parts) == [Content(f"{spelled} so"), *called(0, "add", "{}")]
    told = [detail.id for detail in piece.details if detail.logprob is not None]
    assert not {ids["<tool_call>"], ids["</tool_call>"]} & set(told)
    assert tokenizer.decode(told).startswith(f"{spelled} so")


def test_a_character_that_is_never_completed() -> None:
    _, answer = read([*b"a\xc3"], "length", options=TextOptions(logprobs=True))
    assert list(answer.parts) == [Content("a\ufffd")]
    assert [detail.logprob is not None for detail in answer.details] == [True, True]


def test_a_token_may_end_a_character_and_begin_one_that_is_never_completed() -> None:
    reply, answer = read([*b"a\xc3\xc3"], "length", [2], thinks="open", options=TextOptions(logprobs=True))
    assert list(answer.parts) == [Reasoning("a\ufffd\ufffd")]
    assert [detail.id for detail in answer.details] == [*b"a\xc3\xc3"]
    assert reply.reasoning == 3


@given(
    st.lists(st.sampled_from([*b"a<\n", 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, IM_START, IM_END]), max_size=10),
    st.lists(st.integers(0, 1000), max_size=4),
    st.sampled_from(["stop", "length"]),
    st.sampled_from(["off", "open", "optional"]),
)
def test_bytes_that_are_no_characters_are_read_too(
    tokens: list[int], cuts: list[int], finish: FinishReason, thinks: Thinks
) -> None:
    tokens = [*tokens, IM_END] if finish == "stop" else [*tokens, 97]
    reply, answer = read(tokens, finish, cuts, thinks=thinks, options=TextOptions(logprobs=True))
    shown = tokens[: len(tokens) - (finish == "stop")]
    assert [detail.id for detail in answer.details] == shown
    text = bytes(token for token in shown if token < IM_START).decode("utf-8", "replace")
    assert "".join(part.text for part in answer.parts if isinstance(part, Content | Reasoning)) == text
    assert reply.reasoning <= reply.tokens

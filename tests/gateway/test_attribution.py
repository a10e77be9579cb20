"""Whatever the tokens, those are told of that said at least one character of the content."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from engine.request import TokenLogprob
from gateway.attribution import Attribution
from gateway.pieces import TokenDetail
from gateway.tools.arguments.style import ToolShape
from gateway.tools.families import HERMES
from gateway.tools.parser import Content, Part, ReplyParser, Special

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": "x"}}\n</tool_call>'
MARK = "\ue000"
"""Stands for a special token that ends thoughts."""


def read(pieces: Sequence[str]) -> tuple[list[TokenDetail], str, int]:
    """Each piece is a token. Their details, the content, and the tokens of thoughts."""
    specials = ("</think>",) if MARK in pieces else ()
    parser = ReplyParser(HERMES, [ToolShape("add")], reasoning="optional", specials=specials)
    attribution = Attribution()
    details: list[TokenDetail] = []
    parts: list[Part] = []
    for i, piece in enumerate(pieces):
        attribution.add(i, len(piece), TokenLogprob(i, -1.0), shown=True)
        new = parser.feed(Special("</think>") if piece == MARK else piece) if piece else []
        details += attribution.settle(new, parser.held)
        parts += new
    new = parser.finish()
    details += attribution.settle(new, parser.held)
    parts += new
    content = "".join(part.text for part in parts if isinstance(part, Content))
    return [*details, *attribution.rest()], content, attribution.reasoning


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    """The text in pieces no longer than tokens are; a mark is always one of its own."""
    edges = {*range(0, len(text), 11), len(text), *(at % (len(text) + 1) for at in cuts)}
    for at, letter in enumerate(text):
        if letter == MARK:
            edges |= {at, at + 1}
    places = sorted(edges)
    return [text[a:b] for a, b in itertools.pairwise(places)]


TEXTS = st.lists(
    st.sampled_from(["a", "b c", "\n", "<", "<tool", "<tool_call>", "<think>", "</think>", CALL, "{", "</"]),
    max_size=8,
).map("".join)


@given(TEXTS, st.lists(st.integers(0, 1000), max_size=12))
@example("a<t<tool_c b", [1, 2, 10])
@example("so " + CALL, [70])
@example("<think>hm <" + MARK + "so", [9])
@example(CALL + "<", [])
@example("<think>a <b < c</think>d", [10, 14])
@example("<t" + CALL, list(range(9)))
def test_tokens_that_said_content_are_told_of(text: str, cuts: list[int]) -> None:
    letters, content, thoughts = read(list(text))
    assert "".join(text[d.id] for d in letters if d.logprob is not None) == content
    said = {detail.id for detail in letters if detail.logprob is not None}
    pieces = cut(text, cuts)
    details, whole, reasoning = read(pieces)
    assert whole == content
    assert [detail.id for detail in details] == list(range(len(pieces)))
    place = 0
    for detail, piece in zip(details, pieces, strict=True):
        assert detail.offset == place
        assert (detail.logprob is not None) == bool(said & set(range(place, place + len(piece)))), pieces
        place += len(piece)
    assert reasoning == sum(detail.offset < thoughts for detail in details)


def test_a_token_that_completes_nothing_goes_with_the_character_it_began() -> None:
    for before, told in (("a", True), ("<tool_call>", False)):
        attribution = Attribution()
        parts: list[Part] = []
        parser = ReplyParser(HERMES, [ToolShape("add")])
        details: list[TokenDetail] = []
        for i, piece in enumerate(
            [before, "", "\u00e9" if told else '\n{"name": "add", "arguments": {}}\n</tool_call>']
        ):
            attribution.add(i, len(piece), TokenLogprob(i, -1.0), shown=True)
            parts = parser.feed(piece) if piece else []
            details += attribution.settle(parts, parser.held)
        details += [*attribution.settle(parser.finish(), parser.held), *attribution.rest()]
        assert [detail.logprob is not None for detail in details] == [told] * 3

"""However the engine cuts its deltas, the text, its details and its counts are the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client import RequestStream
from engine.errors import RequestFailure
from engine.request import (
    FinishReason,
    GenerationRequest,
    RequestStarted,
    SamplingParams,
    SequenceDelta,
    TokenLogprob,
)
from gateway.errors import ServerStopping
from gateway.generation import Choice, Generation, together
from gateway.pieces import Piece, TextOptions
from gateway.stops import StopSearch
from gateway.tokenizer import Tokenizer

TOKENIZER = Tokenizer.hash()


def feed(
    tokens: Sequence[int], cuts: Sequence[int], finish: FinishReason, options: TextOptions
) -> tuple[Choice, list[Piece]]:
    choice = Choice(0, TOKENIZER, options, StopSearch(options.stops, include=options.include_stop))
    edges = sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    pieces = []
    for begin, end in itertools.pairwise(edges):
        part = tuple(tokens[begin:end])
        logprobs = tuple(TokenLogprob(token, -1.0) for token in part)
        delta = SequenceDelta("r", 0, part, finish if end == len(tokens) else None, logprobs)
        piece = choice.push(delta)
        if piece is not None:
            pieces.append(piece)
        if choice.finish is not None:
            break
    return choice, pieces


@given(
    st.lists(st.sampled_from([*b"abcab", 0xE2, 0x82, 0xAC, 256]), min_size=1, max_size=40),
    st.lists(st.integers(0, 100)),
    st.sampled_from(["stop", "length"]),
    st.builds(
        TextOptions,
        stops=st.lists(st.text("abc\u20ac", min_size=1, max_size=3), max_size=2).map(tuple),
        include_stop=st.booleans(),
        min_tokens=st.integers(0, 5),
        logprobs=st.just(True),
    ),
)
def test_cuts_do_not_matter(
    tokens: list[int], cuts: list[int], finish: FinishReason, options: TextOptions
) -> None:
    one, at_once = feed(tokens, (), finish, options)
    other, in_parts = feed(tokens, cuts, finish, options)
    assert "".join(p.text for p in at_once) == "".join(p.text for p in in_parts)
    assert [d for p in at_once for d in p.details] == [d for p in in_parts for d in p.details]
    assert (one.tokens, one.finish) == (other.tokens, other.finish)
    assert [p.finish for p in in_parts[:-1]] == [None] * (len(in_parts) - 1)
    assert in_parts[-1].finish is not None
    if not options.stops:
        shown = tokens[:-1] if finish == "stop" else tokens
        assert "".join(p.text for p in in_parts) == TOKENIZER.decode(shown)
        assert one.tokens == len(tokens)


def test_details_wait_for_their_text() -> None:
    choice = Choice(0, TOKENIZER, TextOptions(logprobs=True), StopSearch(()))
    for token in (0xE2, 0x82):
        assert choice.push(SequenceDelta("r", 0, (token,), None, (TokenLogprob(token, -1.0),))) is None
    piece = choice.push(SequenceDelta("r", 0, (0xAC,), None, (TokenLogprob(0xAC, -1.0),)))
    assert piece is not None
    assert (piece.text, [d.id for d in piece.details]) == ("\u20ac", [0xE2, 0x82, 0xAC])


class Wire:
    """A stream whose engine is the test."""

    def __init__(self, n: int = 1, *, options: TextOptions | None = None) -> None:
        request = GenerationRequest(request_id="r", prompt=[1, 2], sampling=SamplingParams(max_tokens=9), n=n)
        self.aborted: list[int | None] = []
        self.stream = RequestStream(request, lambda _, index: self.aborted.append(index))
        self.generation = Generation(self.stream, TOKENIZER, options or TextOptions())

    def delta(self, index: int, text: bytes, finish: FinishReason | None = None) -> None:
        self.stream.push(SequenceDelta("r", index, tuple(text), finish))


async def test_a_preempted_request_starts_once() -> None:
    wire = Wire()
    wire.stream.push(RequestStarted("r", 2, 0.0))
    wire.stream.push(RequestStarted("r", 1, 0.0))
    wire.delta(0, b"ab", "length")
    assert [a.text for a in await wire.generation.collect()] == ["ab"]
    assert wire.generation.usage.cached == 2


async def test_choices_are_kept_apart() -> None:
    wire = Wire(n=2)
    for index, text, finish in ((0, b"a", None), (1, b"x", None), (1, b"y", "length"), (0, b"b", "length")):
        wire.delta(index, text, finish)
    answers = await wire.generation.collect()
    assert [(a.index, a.text) for a in answers] == [(0, "ab"), (1, "xy")]


async def test_what_crosses_an_abort_is_dropped() -> None:
    wire = Wire(n=2, options=TextOptions(stops=("b",)))
    wire.delta(0, b"ab")
    wire.delta(0, b"cd", "length")
    wire.delta(1, b"x", "length")
    answers = await wire.generation.collect()
    assert [(a.text, a.finish) for a in answers] == [("a", "stop"), ("x", "length")]
    assert wire.generation.usage.completion == 3


@pytest.mark.parametrize("how", ["abort", "stopped"])
async def test_an_end_without_an_answer_is_a_failure(how: str) -> None:
    wire = Wire()
    wire.delta(0, b"a")
    if how == "abort":
        wire.delta(0, b"b", "abort")
        expected: type[Exception] = RequestFailure
    else:
        wire.generation.fail(ServerStopping("bye"))
        assert wire.aborted == [None]
        expected = ServerStopping
    with pytest.raises(expected):
        await wire.generation.collect()


async def test_the_first_failure_is_raised_alone() -> None:
    good, bad = Wire(), Wire()
    bad.stream.fail(RequestFailure("one"))
    with pytest.raises(RequestFailure, match=r"^one$"):
        await together([good.generation.collect(), bad.generation.collect()])


@pytest.mark.parametrize(
    ("text", "finish", "cut"),
    [(b"abz", "stop", True), (b"axz", "stop", False), (b"ax", "length", False), (b"xx", "length", False)],
)
async def test_an_answer_knows_whether_a_stop_string_ended_it(
    text: bytes, finish: FinishReason, cut: bool
) -> None:
    wire = Wire(options=TextOptions(stops=("ab",)))
    wire.delta(0, text, finish)
    (answer,) = await wire.generation.collect()
    assert (answer.finish, answer.cut) == (finish, cut)

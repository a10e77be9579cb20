"""A sequence's matcher: end tokens, forced tokens, and taking tokens back."""

from __future__ import annotations

import json
import random
import re

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model_store.store import LocalModel
from grammar.backends.llguidance import LLGuidance, LLGuidanceCursor
from grammar.errors import DeadEnd, MatcherError
from grammar.matcher import Matcher
from grammar.spec import (
    Choice,
    Concat,
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

from .cursors import BYTES, SPECIALS, allowed

IM_START, IM_END, END_OF_TEXT = SPECIALS.values()
SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","y",null]}},"required":["a"]}'
)
CALLS = Concat(
    (
        FreeText(("<t>",)),
        Repeat(Concat((Marker("<t>"), JsonSchema(SCHEMA), Marker("<|im_start|>"), FreeText(("<t>",))))),
    )
)
LANGUAGES: dict[str, Grammar] = {
    "schema": JsonSchema(SCHEMA),
    "flexible": JsonSchema(SCHEMA, whitespace="flexible"),
    "array": JsonSchema('{"type":"array","items":{"type":"number"},"maxItems":3}'),
    "pattern": Regex("(ab|c){1,4}[^d]?"),
    "choice": Choice(("one", "only", "two")),
    "calls": CALLS,
    "lark": Lark('start: "(" start ")" | "x"'),
}
BACKEND = LLGuidance(BYTES)
COMPILED = {name: BACKEND.compile(grammar) for name, grammar in LANGUAGES.items()}


def matcher(grammar: Grammar, *ends: int) -> Matcher:
    return Matcher(BACKEND.compile(grammar), ends, BYTES)


def feed(place: Matcher, text: str) -> Matcher:
    for token in text.encode():
        place.accept(token)
    return place


def walk(place: Matcher, noise: random.Random, most: int = 200) -> list[int]:
    """Tokens chosen at random from each mask until an end token or `most` of them."""
    tokens: list[int] = []
    while not place.ended and len(tokens) < most:
        options = allowed(place, BYTES)
        quick = [t for t in options if t in (IM_END, ord('"'), ord("}"), ord("]"))]
        token = noise.choice(quick if quick and noise.random() < 0.3 else options)
        place.accept(token)
        tokens.append(token)
    return tokens


def belongs(text: str, grammar: Grammar) -> bool:
    """By another implementation than the engine's."""
    match grammar:
        case JsonSchema(schema=schema):
            return bool(jsonschema_rs.is_valid(json.loads(schema), json.loads(text)))
        case Regex(pattern=pattern):
            return re.fullmatch(pattern, text, re.DOTALL) is not None
        case Choice(options=options):
            return text in options
    raise AssertionError(f"no reference for {grammar!r}")


@pytest.fixture(scope="module")
def large(demo_model: LocalModel) -> tuple[Vocabulary, LLGuidance]:
    vocabulary = load_vocabulary(demo_model.path, size=49152)
    return vocabulary, LLGuidance(vocabulary)


class TestEnd:
    def test_end_tokens_are_allowed_where_the_text_may_end(self) -> None:
        place = matcher(Choice(("a", "ab")), IM_END, END_OF_TEXT)
        assert allowed(place, BYTES) == [97]
        assert not place.accepting
        feed(place, "a")
        assert place.accepting
        assert not place.complete
        assert allowed(place, BYTES) == [98, IM_END, END_OF_TEXT]
        place.accept(END_OF_TEXT)
        assert place.ended

    def test_nothing_comes_behind_the_end(self) -> None:
        place = matcher(Choice(("a", "ab")), IM_END)
        feed(place, "a").accept(IM_END)
        with pytest.raises(MatcherError, match="after the end"):
            place.accept(98)
        with pytest.raises(DeadEnd):
            allowed(place, BYTES)
        assert place.forced() == ()

    def test_an_end_token_before_the_end_is_refused(self) -> None:
        place = matcher(Literal("ab"), IM_END)
        with pytest.raises(MatcherError, match="token 257"):
            place.accept(IM_END)
        assert allowed(feed(place, "a"), BYTES) == [98]

    def test_an_end_token_that_spells_text_is_text_where_the_text_may_not_end(self) -> None:
        place = matcher(Choice(("b", "ab", "aab")), 97, IM_END)
        assert allowed(place, BYTES) == [97, 98]
        feed(place, "a")
        assert not place.ended
        feed(place, "ab")
        assert allowed(place, BYTES) == [97, IM_END]
        place.accept(97)
        assert place.ended

    def test_a_marker_that_is_an_end_token(self) -> None:
        place = matcher(Concat((Marker("<|im_end|>"), Literal("a"))), IM_END)
        place.accept(IM_END)
        assert not place.ended
        assert place.forced() == (97, IM_END)

    def test_end_tokens_beyond_the_vocabulary_are_none(self) -> None:
        place = feed(matcher(Literal("a"), 300, -1, 10**6), "a")
        assert place.complete
        assert place.forced() == ()
        with pytest.raises(DeadEnd):
            allowed(place, BYTES)

    def test_without_end_tokens(self) -> None:
        place = matcher(Choice(("a", "ab")))
        feed(place, "a")
        assert place.accepting
        assert not place.complete
        assert place.forced() == ()
        feed(place, "b")
        assert place.complete
        assert place.forced() == ()

    def test_a_word_s_last_bit(self) -> None:
        """The sign bit of an int32."""
        assert allowed(matcher(Literal(""), 287, 255), BYTES) == [255, 287]

    def test_a_dead_end(self) -> None:
        place = feed(matcher(Lark('start: "a" b | "c"\nb: b'), IM_END), "a")
        with pytest.raises(DeadEnd):
            allowed(place, BYTES)


class TestForced:
    @pytest.mark.parametrize(
        ("grammar", "before", "forced"),
        [
            (Literal("ab"), "", (97, 98, IM_END)),
            (Literal("ab"), "ab", (IM_END,)),
            (Literal(""), "", ()),  # known with the first mask only
            (Choice(("ab", "ac")), "", (97,)),
            (Choice(("ab", "a")), "", (97,)),
            (Choice(("ab", "a")), "a", ()),
            (JsonSchema(SCHEMA), "", tuple(b'{"a": ')),
            (JsonSchema('{"type":"null"}'), "nu", (*b"ll", IM_END)),
            (FreeText(), "x", ()),
        ],
    )
    def test_table(self, grammar: Grammar, before: str, forced: tuple[int, ...]) -> None:
        place = feed(matcher(grammar, IM_END, END_OF_TEXT), before)
        assert place.forced() == forced
        assert place.forced() == forced

    def test_no_mask_is_computed_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """That may take long, and the engine's step waits for this answer, not for a mask."""
        places = [
            feed(matcher(grammar, IM_END), before)
            for grammar, before in ((Literal("ab"), "a"), (Literal("ab"), "ab"), (FreeText(), "x"))
        ]
        monkeypatch.setattr(LLGuidanceCursor, "fill", None)
        assert [place.forced() for place in places] == [(98, IM_END), (IM_END,), ()]

    @pytest.mark.parametrize("name", LANGUAGES)
    @pytest.mark.parametrize("seed", range(5))
    def test_each_is_the_only_one_allowed(self, name: str, seed: int) -> None:
        place = Matcher(COMPILED[name], (IM_END,), BYTES)
        noise = random.Random(seed)
        for _ in range(60):
            for token in place.forced():
                assert allowed(place, BYTES) == [token]
                place.accept(token)
            if place.ended:
                break
            place.accept(noise.choice(allowed(place, BYTES)))


class TestRollback:
    @given(st.sampled_from(sorted(LANGUAGES)), st.randoms(use_true_random=False), st.data())
    def test_equals_a_fresh_replay(self, name: str, noise: random.Random, data: st.DataObject) -> None:
        place = Matcher(COMPILED[name], (IM_END,), BYTES)
        kept: list[int] = []
        for _ in range(4):
            kept += walk(place, noise, most=data.draw(st.integers(1, 25)))
            for wrong in (END_OF_TEXT, 300):
                with pytest.raises(MatcherError):
                    place.accept(wrong)
            count = data.draw(st.integers(0, len(kept)))
            place.rollback(count)
            kept = kept[: len(kept) - count]
            fresh = Matcher(COMPILED[name], (IM_END,), BYTES)
            for token in kept:
                fresh.accept(token)
            assert place.ended == fresh.ended
            assert place.accepting == fresh.accepting
            assert place.complete == fresh.complete
            assert place.forced() == fresh.forced()
            if not place.ended:
                assert allowed(place, BYTES) == allowed(fresh, BYTES)

    def test_across_the_end(self) -> None:
        place = feed(matcher(Literal("ab"), IM_END), "ab")
        place.accept(IM_END)
        place.rollback(1)
        assert not place.ended
        assert allowed(place, BYTES) == [IM_END]
        place.accept(IM_END)
        place.rollback(2)
        assert allowed(place, BYTES) == [98]
        assert not place.complete

    def test_more_than_there_is(self) -> None:
        place = feed(matcher(Literal("ab"), IM_END), "a")
        for count in (2, -1):
            with pytest.raises(MatcherError, match="taken back"):
                place.rollback(count)
        assert allowed(place, BYTES) == [98]


class TestWalks:
    """Whatever is chosen from the masks, text that ends is text of the language."""

    @pytest.mark.parametrize("name", ["schema", "flexible", "array", "pattern", "choice"])
    @pytest.mark.parametrize("seed", range(12))
    def test_ends_in_the_language(self, name: str, seed: int) -> None:
        place = Matcher(COMPILED[name], (IM_END,), BYTES)
        tokens = walk(place, random.Random(seed))
        text = bytes(tokens[:-1] if place.ended else tokens).decode(errors="replace")
        if not place.ended:
            return
        assert belongs(text, LANGUAGES[name])

    def test_some_do_end(self) -> None:
        ended = 0
        for name in LANGUAGES:
            for seed in range(12):
                place = Matcher(COMPILED[name], (IM_END,), BYTES)
                walk(place, random.Random(seed))
                ended += place.ended
        assert ended > 40


@pytest.mark.demo_model
class TestDemoModel:
    """Tokens of many bytes, which begin in one part of a grammar and end in the next."""

    @pytest.mark.parametrize("name", ["schema", "flexible", "array", "pattern", "choice"])
    def test_walks_and_rollbacks(self, large: tuple[Vocabulary, LLGuidance], name: str) -> None:
        vocabulary, backend = large
        end = vocabulary.specials["<|im_end|>"]
        quick = {*map(vocabulary.tokens.index, (b'"', b"}", b"]", b'"}')), end}
        compiled = backend.compile(LANGUAGES[name])
        ended = 0
        for seed in range(6):
            noise = random.Random(seed)
            place = Matcher(compiled, (end,), vocabulary)
            tokens: list[int] = []
            while not place.ended and len(tokens) < 60:
                forced = place.forced()
                options = allowed(place, vocabulary)
                assert not forced or forced[0] in options
                likely = sorted(quick.intersection(options))
                tokens.append(noise.choice(likely if likely and noise.random() < 0.5 else options))
                place.accept(tokens[-1])
                if noise.random() < 0.1:
                    count = noise.randint(0, len(tokens))
                    place.rollback(count)
                    del tokens[len(tokens) - count :]
            fresh = Matcher(compiled, (end,), vocabulary)
            for token in tokens:
                fresh.accept(token)
            assert fresh.ended == place.ended
            if place.ended:
                ended += 1
                assert belongs(
                    b"".join(vocabulary.tokens[token] for token in tokens).decode(), LANGUAGES[name]
                )
        assert ended

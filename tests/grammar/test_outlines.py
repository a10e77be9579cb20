"""outlines-core behind the protocol: short lists of choices, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model_store.store import LocalModel
from grammar.backends.llguidance import LLGuidance
from grammar.backends.outlines import Outlines
from grammar.errors import BadGrammar
from grammar.spec import Choice, Grammar, Literal, Regex
from grammar.vocabulary import load_vocabulary

from .cursors import BYTES, SPECIALS, allowed, followed, outcome, spelled

BACKEND = Outlines(BYTES)
OTHER = LLGuidance(BYTES)

options = (
    st.lists(st.text("ab(|\\^$.*é😀\n ", max_size=6), min_size=1, max_size=6)
    .map(tuple)
    .filter(lambda texts: BACKEND.takes(Choice(texts)))
)


@given(options, st.text("ab(|\\^$.*é😀\n ", max_size=7))
def test_exactly_the_options(choice: tuple[str, ...], text: str) -> None:
    for candidate in {*choice, text, choice[0] + "a"}:
        expected = "complete" if candidate in choice else "partial"
        if not any(option.startswith(candidate) for option in choice):
            expected = "refused"
        assert outcome(BACKEND, Choice(choice), candidate) == expected


@given(options, st.data())
def test_masks_are_those_of_llguidance(choice: tuple[str, ...], data: st.DataObject) -> None:
    cursor, other = (backend.compile(Choice(choice)).start() for backend in (BACKEND, OTHER))
    while True:
        open_to = allowed(cursor, BYTES)
        assert open_to == allowed(other, BYTES)
        assert cursor.accepting() == other.accepting()
        if not open_to:
            break
        token = data.draw(st.sampled_from(open_to))
        assert cursor.accept(token)
        assert other.accept(token)


@pytest.mark.parametrize(
    ("grammar", "taken"),
    [
        (Choice(("ab", "ac", "ab")), True),
        (Choice(("",)), True),
        (Choice(("b", "ab", "a")), False),
        (Choice(("", "a")), False),
        (Choice(()), False),
        (Choice(tuple(map(str, range(100, 200)))), True),
        (Choice(tuple(map(str, range(100, 201)))), False),
        (Choice(("x" * 1000,)), True),
        (Choice(("x" * 1001,)), False),
        (Regex("a"), False),
        (Literal("a"), False),
    ],
)
def test_what_it_takes(grammar: Grammar, taken: bool) -> None:
    assert BACKEND.takes(grammar) == taken
    if not taken:
        with pytest.raises(BadGrammar, match="short lists"):
            BACKEND.compile(grammar)


def test_end_tokens_and_padding_are_never_allowed() -> None:
    cursor = BACKEND.compile(Choice(("a", "bb"))).start()
    for text in ("", "a", "b"):
        followed(cursor, spelled(text))
        assert not set(allowed(cursor, BYTES)) - set(range(256))
        assert not any(cursor.accept(token) for token in (-1, *SPECIALS.values(), 270, 299, 300, 10**9))


def test_rollback() -> None:
    cursor = BACKEND.compile(Choice(("abc", "abd"))).start()
    assert followed(cursor, b"abc")
    cursor.rollback(0)
    assert allowed(cursor, BYTES) == []
    cursor.rollback(1)
    assert allowed(cursor, BYTES) == [99, 100]
    cursor.rollback(2)
    assert allowed(cursor, BYTES) == [97]


@pytest.mark.parametrize(
    ("before", "forced"),
    [("", ""), ("o", ""), ("on", "ly"), ("onl", "y"), ("only", ""), ("é", "té"), (b"\xc3", "")],
)
def test_forced(before: str | bytes, forced: str) -> None:
    cursor = BACKEND.compile(Choice(("only", "off", "été", "ète", "only"))).start()
    assert followed(cursor, spelled(before))
    assert list(cursor.forced()) == list(forced.encode())


def test_export_and_load() -> None:
    choice = Choice(("ac", "ab", "é"))
    compiled = BACKEND.compile(choice)
    loaded = Outlines(BYTES).load(choice, BACKEND.export(compiled)).start()
    assert followed(loaded, b"ab")
    assert loaded.accepting()
    assert compiled.backend == BACKEND.name == "outlines"
    assert compiled.nbytes > 0
    for damaged in (b"", b"x"):
        with pytest.raises(BadGrammar, match="damaged"):
            BACKEND.load(choice, damaged)


@pytest.mark.demo_model
def test_on_the_demo_model(demo_model: LocalModel) -> None:
    vocabulary = load_vocabulary(demo_model.path, size=49152)
    choice = Choice(("positive", "negative", "neutral", "nothing"))
    cursor, other = (backend(vocabulary).compile(choice).start() for backend in (Outlines, LLGuidance))
    negative = vocabulary.tokens.index(b"neg")
    assert {b"p", b"n", b"pos", b"ne"} <= {vocabulary.tokens[t] for t in allowed(cursor, vocabulary)}
    assert set(allowed(other, vocabulary)) <= set(allowed(cursor, vocabulary))
    assert cursor.accept(negative)
    assert b"".join(vocabulary.tokens[t] for t in cursor.forced()) == b"ative"
